"""``distdl clusters compute``: list, create and delete the machines of clusters whose kind can create them.

NAME is a named cluster. The flags of ``create`` come from what its kind says of machines (``Cluster.Wanted``). What
costs money is said, and asked, before it is done.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.form.arguments import Parser, add_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.clusters.handle import ClusterHandle

_TIMEOUT = 10.0


def add_to(verbs: Any) -> None:
    """Add the command with its own commands to the parser of ``distdl clusters``."""
    text = "list, create and delete the machines of a cluster"
    parser = verbs.add_parser("compute", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(run=lambda _chosen: _usage(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    one = _verb(commands, "list", _list, "list clusters with their machines and costs")
    one.add_argument("name", nargs="?", help="name of a cluster, to list its other resources too")

    one = _verb(commands, "sizes", _sizes, "list the sizes available for new machines of a cluster")
    one.add_argument("name", help="name of the cluster")

    one = _verb(commands, "create", _create, "create the machines of a cluster")
    one.add_argument("name", help="name of the cluster")
    one.add_argument("flags", nargs=argparse.REMAINDER, metavar="--option value",
                     help="options of the machines; list them with: distdl clusters compute create NAME "
                     "--help")  # fmt: skip

    one = _verb(commands, "delete", _delete, "delete the machines of a cluster; its name is kept")
    one.add_argument("name", help="name of the cluster")
    _add_yes(one)


def _verb(commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    one.set_defaults(run=run)
    return one


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


def _usage(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _list(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.clusters import cluster_configs
    from distdl_jupyter.clusters.status import look_at_all
    from distdl_jupyter.clusters.tables import cluster_rows
    from distdl_jupyter.core import registry, table

    if chosen.name is not None:
        print(repr(_place(chosen.name).choices("compute")))
        return 0
    makers = [target for target in cluster_configs.every() if registry.get("clusters", target.kind).can_create]
    if not makers:
        print(
            "No cluster has machines that distdl can create. Add one, for example: distdl clusters add gpu azureml "
            "--help"
        )
        return 0
    print(table.text(cluster_rows(look_at_all(makers, _TIMEOUT))))
    return 0


def _sizes(chosen: argparse.Namespace) -> int:
    print(repr(_place(chosen.name).choices("vm_size")))
    return 0


def _create(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.clusters.tables import idle_cost_warning
    from distdl_jupyter.core import registry

    place = _place(chosen.name)
    wanted = _wanted(registry.get("clusters", place.kind), place.name, chosen.flags)
    yes, wait = wanted.pop("yes", False), wanted.pop("wait", False)
    options = ", ".join(f"{name}={value}" for name, value in wanted.items())
    print(f"Machines of {place.name}: {options}. {idle_cost_warning(int(wanted.get('min_nodes') or 0))}".strip())
    if not (yes or _agreed("Create them?")):
        return 1
    place.create(wait=wait, **wanted)
    print(f"{place.name} {'is ready' if wait else 'is being created'}. Show it with: distdl clusters show {place.name}")
    return 0


def _wanted(kind: Any, name: str, words: list[str]) -> dict[str, Any]:
    """Return the fields of ``Wanted`` that the words of a command line give, and ``yes`` and ``wait``."""
    import dataclasses

    parser = Parser(f"distdl clusters compute create {name}", "Which machines to create.")
    parser.argument_default = argparse.SUPPRESS
    for field in dataclasses.fields(kind.Wanted):
        add_option(parser, field)
    _add_yes(parser)
    parser.add_argument("--wait", action="store_true", help="wait until the machines are ready")
    if {"-h", "--help"} & set(words):
        parser.print_help()
        raise SystemExit(0)
    return parser.read(words)


def _delete(chosen: argparse.Namespace) -> int:
    place = _place(chosen.name)
    if not (chosen.yes or _agreed(f"Delete the machines of {place.name}?")):
        return 1
    place.delete()
    print(f"The machines of {place.name} are being deleted.")
    return 0


def _place(name: str) -> ClusterHandle:
    """Return a cluster whose kind can make machines. Raises ClusterNotFound, InvalidSpec."""
    from distdl_jupyter.clusters.handle import ClusterHandle
    from distdl_jupyter.core import registry

    place = ClusterHandle(name)
    if not registry.get("clusters", place.kind).can_create:
        raise InvalidSpec(
            f"distdl cannot create or delete the machines of {name}.", code="machines-not-managed", field="name"
        )
    return place


def _agreed(question: str) -> bool:
    """Ask at the terminal; where nobody can answer, the flag --yes must have said it."""
    if not sys.stdin.isatty():
        raise InvalidSpec(
            "This command needs confirmation.", code="confirmation-missing", field="yes", hint="Add --yes."
        )
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
