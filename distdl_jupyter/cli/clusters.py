"""``distdl clusters``: list, add, show, check and remove clusters, and create and delete their machines.

The options of ``add`` and ``change`` come from the cluster type, those of ``compute create`` from its ``compute_spec``.
Machines are created and deleted only after confirmation.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from distdl_jupyter.cli.command import Reply, add_command, add_group
from distdl_jupyter.clusters import cluster_configs, handle
from distdl_jupyter.clusters.base import Provisioner
from distdl_jupyter.clusters.cluster_configs import probe_all
from distdl_jupyter.core import humanize, registry
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.options import describe_unknown
from distdl_jupyter.form.arguments import Parser, add_option

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Seconds after which a cluster that has not responded is listed as such.
TIMEOUT_SECONDS = 5.0


def add_commands(commands: Any) -> None:
    """Add the command and its subcommands to the parser of ``distdl``."""
    group = add_group(commands, "clusters", _list, "list, add, show, check and remove clusters", has_json=True)

    command = _add_named(group, "add", _add, "add a cluster: a name for a cluster type with its options")
    command.add_argument("kind", help=f"one of {', '.join(registry.list_names('clusters'))}")
    _add_options(command, "options of the cluster type; list them with: distdl clusters add NAME KIND --help")
    command = _add_named(group, "change", _change, "change options of a cluster")
    _add_options(command, 'options of its type; an empty value "" restores the default')
    _add_named(group, "show", _show, "show the details of one cluster", has_json=True)
    summary = "check every node for problems that would prevent a job from running"
    command = _add_named(group, "check", _check, summary, has_json=True)
    backend_help = "also check what this backend needs"
    command.add_argument("-b", "--backend", "--distributed-backend", metavar="NAME", help=backend_help)
    _add_named(group, "remove", _remove, "remove a cluster from the list; its machines are not changed")

    summary = "list, create and delete the machines of a cluster"
    compute = add_group(group, "compute", _list_machines, summary, has_json=True)
    command = add_command(compute, "list", _list_machines, "list clusters with their machines and costs", has_json=True)
    command.add_argument("name", nargs="?", help="name of a cluster, to list its other resources too")
    _add_named(compute, "sizes", _list_sizes, "list the sizes available for new machines of a cluster", has_json=True)
    command = _add_named(compute, "create", _create, "create the machines of a cluster")
    _add_options(command, "options of the machines; list them with: distdl clusters compute create NAME --help")
    _add_yes(_add_named(compute, "delete", _delete, "delete the machines of a cluster; its name is kept"))


def _add_named(commands: Any, name: str, run: Any, summary: str, *, has_json: bool = False) -> argparse.ArgumentParser:
    command = add_command(commands, name, run, summary, has_json=has_json)
    command.add_argument("name", help="name of the cluster")
    return command


def _add_options(command: argparse.ArgumentParser, help_text: str) -> None:
    command.add_argument("flags", nargs=argparse.REMAINDER, metavar="--option value", help=help_text)


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


def _make_parser(command: str, description: str, fields: Iterable[Any]) -> Parser:
    """Return the parser of ``command`` with an option for each of ``fields``."""
    parser = Parser(prog=command, description=description, argument_default=argparse.SUPPRESS, allow_abbrev=False)
    for field in fields:
        add_option(parser, field)
    return parser


# clusters ---------------------------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> Reply:
    clusters = handle.clusters()
    if args.json:
        return Reply(clusters.look(TIMEOUT_SECONDS))
    hint = "Add a cluster, for example: distdl clusters add lab ssh --hosts gpu1,gpu2"
    return Reply(clusters, notes=() if any(config.named for config in cluster_configs.list_clusters()) else (hint,))


def _add(args: argparse.Namespace) -> None:
    options = _parse_options(f"distdl clusters add {args.name} {args.kind}", args.kind, args.flags)
    handle.add_cluster(args.name, args.kind, **options)
    print(f"Added cluster {args.name}. Check it with: distdl clusters check {args.name}")


def _change(args: argparse.Namespace) -> None:
    cluster = handle.ClusterHandle(args.name)
    options = _parse_options(f"distdl clusters change {args.name}", cluster.kind, args.flags)
    cluster.change(**{name: None if value == "" else value for name, value in options.items()})
    print(f"Changed cluster {args.name}.")


def _parse_options(command: str, kind: str, arguments: list[str]) -> dict[str, Any]:
    """Parse the options of a cluster type. Raises InvalidSpec."""
    names = registry.list_names("clusters")
    if kind not in names:
        raise InvalidSpec(describe_unknown(kind, names, "cluster type"), code="cluster-kind-unknown", field="kind")
    fields = registry.get_options("clusters", kind)
    if arguments and not fields:
        raise InvalidSpec(
            f"The cluster type {kind} has no options.", code="cluster-kind-without-options", field="options"
        )
    return vars(_make_parser(command, f"Options of the cluster type {kind}.", fields).parse_args(arguments))


def _show(args: argparse.Namespace) -> Reply:
    cluster = handle.ClusterHandle(args.name)
    (status,) = probe_all([cluster.target], 2 * TIMEOUT_SECONDS)
    if args.json:
        return Reply(status)
    lines = [humanize.format_text(handle.build_cluster_rows([status]))]
    lines += [f"{name}: {value}" for name, value in cluster.options.items()]
    nodes = [humanize.format_text(handle.build_node_rows(status.nodes))] if status.nodes else []
    return Reply(cluster, "\n".join([*lines, *nodes]))


def _check(args: argparse.Namespace) -> Reply:
    checks = handle.ClusterHandle(args.name).check(args.backend)
    return Reply(checks, code=0 if checks.ok else 1)


def _remove(args: argparse.Namespace) -> None:
    handle.ClusterHandle(args.name).remove()
    print(f"Removed cluster {args.name}.")


# their machines ---------------------------------------------------------------------------------------


def _list_machines(args: argparse.Namespace) -> Reply:
    if getattr(args, "name", None) is not None:
        return Reply(_get_cluster(args.name).choices("compute"))
    configs = [config for config in cluster_configs.list_clusters() if _is_provisioner(config.kind)]
    statuses = probe_all(configs, 2 * TIMEOUT_SECONDS) if configs else []
    empty_message = (
        "No cluster has machines that distdl can create. Add one, for example: distdl clusters add gpu azureml --help"
    )
    return Reply(statuses, humanize.format_text(handle.build_cluster_rows(statuses)) if statuses else empty_message)


def _list_sizes(args: argparse.Namespace) -> Any:
    return _get_cluster(args.name).choices("vm_size")


def _create(args: argparse.Namespace) -> Reply | None:
    cluster = _get_cluster(args.name)
    fields = dataclasses.fields(registry.get("clusters", cluster.kind).compute_spec)
    parser = _make_parser(f"distdl clusters compute create {cluster.name}", "Options of the new machines.", fields)
    _add_yes(parser)
    parser.add_argument("--wait", action="store_true", help="wait until the machines are ready")
    options = vars(parser.parse_args(args.flags))
    is_confirmed, wait = options.pop("yes", False), options.pop("wait", False)
    summary = ", ".join(f"{name}={value}" for name, value in options.items())
    warning = handle.format_idle_cost(int(options.get("min_nodes") or 0))
    print(f"Machines of {cluster.name}: {summary}. {warning}".strip())
    if not (is_confirmed or _confirm("Create them?")):
        return Reply(code=1)
    cluster.create(wait=wait, **options)
    state = "is ready" if wait else "is being created"
    print(f"{cluster.name} {state}. Show it with: distdl clusters show {cluster.name}")
    return None


def _delete(args: argparse.Namespace) -> Reply | None:
    cluster = _get_cluster(args.name)
    if not (args.yes or _confirm(f"Delete the machines of {cluster.name}?")):
        return Reply(code=1)
    cluster.delete()
    print(f"The machines of {cluster.name} are being deleted.")
    return None


def _is_provisioner(kind: str) -> bool:
    return isinstance(registry.get("clusters", kind), Provisioner)


def _get_cluster(name: str) -> handle.ClusterHandle:
    """Return a cluster whose type can create machines. Raises ClusterNotFound, InvalidSpec."""
    cluster = handle.ClusterHandle(name)
    if not _is_provisioner(cluster.kind):
        raise InvalidSpec(
            f"distdl cannot create or delete the machines of {name}.", code="machines-not-managed", field="name"
        )
    return cluster


def _confirm(question: str) -> bool:
    """Ask for confirmation on the terminal. Raises InvalidSpec without a terminal."""
    if not sys.stdin.isatty():
        raise InvalidSpec(
            "This command needs confirmation.", code="confirmation-missing", field="yes", hint="Add --yes."
        )
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
