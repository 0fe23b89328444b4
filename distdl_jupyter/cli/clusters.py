"""``distdl clusters``: the clusters that there are, and those of the user's own made, looked at, checked and removed.

The flags of ``add`` and ``change`` come from the options of the kind. A silent cluster costs the others nothing: after
``TIMEOUT`` seconds it is shown as such.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from distdl_jupyter.cli import computes
from distdl_jupyter.core import registry
from distdl_jupyter.core.aliases import unknown
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.form.arguments import Parser, add_option

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT = 5.0


def add_to(commands: Any) -> None:
    """Add the command with its own commands to the parser of ``distdl``."""
    text = "list, add, show, check and remove clusters"
    parser = commands.add_parser("clusters", help=text, description="List, add, show, check or remove clusters.")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    parser.set_defaults(run=_list)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND")

    one = _verb(verbs, "add", _add, "add a cluster: a name for a cluster type with its options")
    one.add_argument("name", help="new name, for --compute-target")
    one.add_argument("kind", help=f"one of {', '.join(registry.names('clusters'))}")
    one.add_argument("flags", nargs=argparse.REMAINDER, metavar="--option value",
                     help="options of the cluster type; list them with: distdl clusters add NAME KIND "
                     "--help")  # fmt: skip

    one = _verb(verbs, "change", _change, "change options of a cluster")
    one.add_argument("name", help="name of the cluster")
    one.add_argument("flags", nargs=argparse.REMAINDER, metavar="--option value",
                     help='options of its type; an empty value "" restores the default')  # fmt: skip

    one = _verb(verbs, "show", _show, "show the details of one cluster")
    one.add_argument("name", help="name of the cluster")

    one = _verb(verbs, "check", _check, "check every node for problems that would keep a job from running")
    one.add_argument("name", help="name of the cluster")
    one.add_argument("-b", "--distributed-backend", metavar="NAME", help="also check what this backend needs")

    one = _verb(verbs, "remove", _remove, "remove a cluster from the list; its machines are not changed")
    one.add_argument("name", help="name of the cluster")

    computes.add_to(verbs)


def _verb(verbs: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    one.set_defaults(run=run)
    return one


def _list(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.clusters.handle import clusters
    from distdl_jupyter.clusters.tables import cluster_rows
    from distdl_jupyter.core import table
    from distdl_jupyter.views.wire import to_json

    statuses = clusters().look(TIMEOUT)
    if chosen.json:
        print(json.dumps(to_json(statuses), indent=1))
        return 0
    print(table.text(cluster_rows(statuses)))
    if not any(status.named for status in statuses):
        print("Add a cluster, for example: distdl clusters add lab ssh --hosts gpu1,gpu2")
    return 0


def _add(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.clusters.handle import add_cluster

    options = _read(f"distdl clusters add {chosen.name} {chosen.kind}", chosen.kind, chosen.flags)
    add_cluster(chosen.name, chosen.kind, **options)
    print(f"Added cluster {chosen.name}. Check it with: distdl clusters check {chosen.name}")
    return 0


def _change(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.clusters.handle import ClusterHandle

    place = ClusterHandle(chosen.name)
    options = _read(f"distdl clusters change {chosen.name}", place.kind, chosen.flags)
    place.change(**{name: None if value == "" else value for name, value in options.items()})
    print(f"{chosen.name} changed.")
    return 0


def _read(call: str, kind: str, words: list[str]) -> dict[str, Any]:
    """Return the options of a kind that the words of a command line give. Raises InvalidSpec."""
    kinds = registry.names("clusters")
    if kind not in kinds:
        raise InvalidSpec(unknown(kind, kinds, "cluster type"), code="cluster-kind-unknown", field="kind")
    fields = registry.options("clusters", kind)
    if words and not fields:
        raise InvalidSpec(
            f"The cluster type {kind} has no options.", code="cluster-kind-without-options", field="options"
        )
    parser = Parser(call, f"Options of the cluster type {kind}.")
    parser.argument_default = argparse.SUPPRESS
    for field in fields:
        add_option(parser, field)
    if {"-h", "--help"} & set(words):
        parser.print_help()
        raise SystemExit(0)
    return parser.read(words)


def _show(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.clusters.handle import ClusterHandle
    from distdl_jupyter.clusters.status import look_at_all
    from distdl_jupyter.clusters.tables import cluster_line, node_rows
    from distdl_jupyter.core import table

    place = ClusterHandle(chosen.name)
    (found,) = look_at_all([place.target], 2 * TIMEOUT)
    print(cluster_line(found))
    for name, value in place.options.items():
        print(f"{name}: {value}")
    if found.nodes:
        print(table.text(node_rows(found.nodes)))
    return 0


def _check(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.clusters.handle import ClusterHandle

    found = ClusterHandle(chosen.name).check(chosen.distributed_backend)
    print(repr(found))
    return 0 if found.ok else 1


def _remove(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.clusters.handle import ClusterHandle

    ClusterHandle(chosen.name).remove()
    print(f"{chosen.name} removed.")
    return 0
