"""``clusters()`` and ``add_cluster(...)``: the Python interface to named clusters, and their tables.

A handle stores only the name; each call queries the cluster. Tables are displayed as text and as HTML.
"""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.clusters.base import CheckLevel, Cluster, Machines, NodeCheck, NodeInfo, OptionValue, Provisioner
from distdl_jupyter.clusters.cluster_configs import ClusterConfig, ClusterStatus
from distdl_jupyter.core import events, humanize, registry
from distdl_jupyter.core.errors import ClusterRefused, DistDLError, InvalidSpec, explain_interrupt
from distdl_jupyter.core.events import ENDED
from distdl_jupyter.core.humanize import TIMES, plural
from distdl_jupyter.core.store import JobFolder, JobStore

#: Seconds after which a cluster is shown as not responding.
STATUS_SECONDS = 5.0
#: Seconds between two polls of machines that are being created, and the timeout of ``create(wait=True)``.
_POLL_SECONDS, CREATION_SECONDS = 2.0, 900.0
#: The number of bytes at the end of a job's events that are searched for the end of the job.
_TAIL_BYTES = 64 * 1024
_NODE_SIGNS = {"up": "●", "down": "✗", "starting": "◔", "unknown": "?"}
#: The sign of each level, the most severe level first.
_LEVEL_SIGNS: dict[CheckLevel, str] = {"error": "✗", "warning": "!", "info": "·", "ok": "✓"}
_LEVELS = list(_LEVEL_SIGNS)
#: The maximum number of host names listed in a line of passed checks.
_MAX_NAMES = 3


class NodeTable(humanize.Display, list[NodeInfo]):
    """The machines of a cluster, displayed as a table."""

    def _parts(self) -> list[str | humanize.Rows]:
        return [build_node_rows(self) if self else "The cluster has no known nodes."]


class ChoiceTable(humanize.Display, list[OptionValue]):
    """The allowed values of an option, displayed as a table."""

    def _parts(self) -> list[str | humanize.Rows]:
        rows = [(choice.value, choice.label, choice.detail) for choice in self]
        return [[("Value", "Name", "Detail"), *rows] if rows else "No values available."]


class CheckTable(humanize.Display, list[NodeCheck]):
    """The checks of each node, displayed as a table with a fix for each failed check."""

    @property
    def ok(self) -> bool:
        """Return whether all checks passed, so that jobs can run on the cluster."""
        return not any(check.level == "error" for check in self)

    def _parts(self) -> list[str | humanize.Rows]:
        if not self:
            return ["Nothing was checked."]
        checks = merge_hosts(self)
        rows = [(_LEVEL_SIGNS[check.level], check.node, check.what, check.message, check.remedy) for check in checks]
        return [[("", "Node", "Check", "Result", "Fix"), *rows], "", summarize_checks(checks)]

    def __str__(self) -> str:
        return format_checks(merge_hosts(self)) if self else "Nothing was checked."


class ClusterHandle(humanize.Display):
    """A handle of one cluster; its name is the value of ``compute_target``."""

    def __init__(self, name: str) -> None:
        self.name = cluster_configs.get(name).name

    @property
    def target(self) -> ClusterConfig:
        """Return the stored name, kind and options. Raises ClusterNotFound."""
        return cluster_configs.get(self.name)

    @property
    def kind(self) -> str:
        """Return the type of the cluster, such as ``"local"``, ``"ssh"`` or ``"slurm"``."""
        return self.target.kind

    @property
    def options(self) -> dict[str, Any]:
        """Return the options that are set."""
        return dict(self.target.options)

    def nodes(self) -> NodeTable:
        """Return the current state of its machines, including machines that do not respond. Raises DistDLError."""
        cluster, options = cluster_configs.load_plugin(self.target)
        with explain_interrupt(lambda: f"Interrupted while listing the nodes of {self.name}. Nothing was changed."):
            return NodeTable(cluster.list_nodes(options))

    def check(self, distributed_backend: str | None = None) -> CheckTable:
        """Check on every node whether jobs can run there, for up to 30 seconds.

        With ``distributed_backend``, also check its requirements. Raises InvalidSpec for an unknown backend.
        """
        needs = cluster_configs.get_needs(distributed_backend) if distributed_backend else None
        with explain_interrupt(lambda: f"Interrupted while checking {self.name}. Nothing was changed."):
            return CheckTable(cluster_configs.check(self.target, needs))

    def change(self, **options: Any) -> ClusterHandle:
        """Change options of the cluster; None resets an option to its default. Raises InvalidSpec, ClusterNotFound."""
        target = self.target
        if not target.named:
            text = f"{self.name} is built in and has no options to change."
            raise InvalidSpec(text, code="cluster-without-options", field="name")
        merged = {name: value for name, value in {**target.options, **options}.items() if value is not None}
        cluster_configs.change(self.name, merged)
        return self

    def choices(self, field: str) -> ChoiceTable:
        """Return the allowed values of an option, or of an argument of ``create``; this can take some seconds.

        Raises InvalidSpec, DistDLError.
        """
        return ChoiceTable(list_choices(self.kind, field, self.options))

    def machines(self) -> Machines | None:
        """Return the machines as a whole, or None if they are not created by this package. Raises DistDLError."""
        cluster, options = cluster_configs.load_plugin(self.target)
        return cluster.get_machines(options) if isinstance(cluster, Provisioner) else None

    def create(self, *, wait: bool = False, **compute: Any) -> ClusterHandle:
        """Create the machines of the cluster: ``create(vm_size="Standard_NC4as_T4_v3", max_nodes=4)``.

        Returns when the request is accepted, or with ``wait`` when the machines are ready. Raises InvalidSpec, and
        ClusterRefused if clusters of this type cannot create machines.
        """
        cluster, options = self._load_provisioner()
        description = f"machines of a cluster of type {self.kind}"
        cluster.create(options, registry.make_options(cluster.compute_spec, compute, description))
        command = f"clusters()[{self.name!r}].delete()"
        text = f"Interrupted; {self.name} is still being created. To delete its machines, run {command}"
        with explain_interrupt(lambda: text):
            deadline = time.monotonic() + CREATION_SECONDS
            while wait and (machines := cluster.get_machines(options)) is not None and time.monotonic() < deadline:
                if machines.state:
                    time.sleep(_POLL_SECONDS)
                elif machines.problem:
                    raise ClusterRefused(machines.problem, code="machines-not-changed")
                else:
                    break
        return self

    def delete(self) -> ClusterHandle:
        """Delete the machines and keep the name of the cluster. Raises ClusterRefused while a job runs on it."""
        cluster_configs.refuse_active(self.name, list_active_jobs(self.name))
        cluster, options = self._load_provisioner()
        cluster.delete(options)
        return self

    def _load_provisioner(self) -> tuple[Provisioner, Any]:
        cluster, options = cluster_configs.load_plugin(self.target)
        if not isinstance(cluster, Provisioner):
            text = f"Clusters of type {cluster.title or cluster.name} do not support creating or deleting machines."
            raise ClusterRefused(text, code="cluster-machines-fixed")
        return cluster, options

    def remove(self) -> None:
        """Remove the name of the cluster and keep its machines. Raises ClusterRefused while a job runs on it."""
        cluster_configs.remove(self.name, list_active_jobs(self.name))

    def _parts(self) -> list[str | humanize.Rows]:
        return [build_cluster_rows(cluster_configs.probe_all([self.target], STATUS_SECONDS))]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterHandle) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class ClusterList(humanize.Display, Sequence[ClusterHandle]):
    """All clusters, indexed by number or by name, and displayed as a table with their current state."""

    def __init__(self) -> None:
        self._targets = cluster_configs.list_clusters()

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [ClusterHandle(target.name) for target in self._targets[key]]
        return ClusterHandle(key if isinstance(key, str) else self._targets[key].name)

    def __contains__(self, key: object) -> bool:
        name = key.name if isinstance(key, ClusterHandle) else key
        return any(target.name == name for target in self._targets)

    def look(self, seconds: float = STATUS_SECONDS) -> list[ClusterStatus]:
        """Return the current state of all clusters within ``seconds`` seconds."""
        with explain_interrupt(lambda: "Interrupted while querying the status of the clusters."):
            return cluster_configs.probe_all(self._targets, seconds)

    def _parts(self) -> list[str | humanize.Rows]:
        return [build_cluster_rows(self.look())]


def clusters() -> ClusterList:
    """Return all clusters: this machine and the named ones. ``clusters()["lab"]`` is the cluster named lab.

    Raises DistDLError if the file of the named clusters cannot be read.
    """
    return ClusterList()


def add_cluster(name: str, kind: str, **options: Any) -> ClusterHandle:
    """Add a cluster of a type under a name, for use as ``compute_target``: ``add_cluster("lab", "ssh", hosts=...)``.

    It is stored in the user's Jupyter configuration, for notebooks, JupyterLab and the command line. Raises
    InvalidSpec, PluginUnavailable, and ClusterRefused if the name is in use.
    """
    cluster_configs.add(name, kind, options)
    return ClusterHandle(name)


def list_choices(kind: str, option: str, options: Mapping[str, Any]) -> list[OptionValue]:
    """Return the allowed values of an option of a cluster type, or of its machines. Raises InvalidSpec, DistDLError."""
    cluster: Cluster = registry.get("clusters", kind)
    if not isinstance(cluster, Provisioner) or option not in cluster.dynamic_options:
        text = f"Values of {option} cannot be listed for clusters of type {kind}."
        raise InvalidSpec(text, code="choices-unavailable", field=option)
    return cluster.list_choices(option, options)


def list_active_jobs(name: str) -> list[JobFolder]:
    """Return the jobs on a cluster that have neither a summary nor, shortly before it, an end in their last events."""
    active_jobs = []
    for folder in JobStore().list_folders():
        with contextlib.suppress(DistDLError):  # skip jobs that cannot be read
            if folder.read_spec().compute_target == name and not folder.summary.exists():
                position = max(0, events.get_size(folder.events) - _TAIL_BYTES)
                last_events = (event for batch, _ in events.read_batches(folder.events, position) for event in batch)
                if not any(event["type"] == "state" and event.get("state") in ENDED for event in last_events):
                    active_jobs.append(folder)
    return active_jobs


# tables ---------------------------------------------------------------------------------------------


def build_cluster_rows(statuses: Iterable[ClusterStatus]) -> list[tuple[str, ...]]:
    """Return the rows of a table of clusters, header first."""
    rows: list[tuple[str, ...]] = [("Name", "Kind", "Nodes", "GPUs", "Cost", "Problem")]
    for cluster in statuses:
        node_count = max(len(cluster.nodes), cluster.machines.max_nodes if cluster.machines else 0)
        nodes_up = [node for node in cluster.nodes if node.state == "up"]
        nodes = f"{len(nodes_up)} of {node_count} up" if node_count else ""
        gpus = str(sum(node.gpus for node in nodes_up)) if cluster.nodes else ""
        cost, price = "", cluster.cost_per_hour
        if cluster.billed:
            amount = "price unknown" if price is None else f"{price:,.2f} {cluster.currency}/h".replace("  ", " ")
            cost = f"{plural(cluster.billed, 'node')} {'costs' if cluster.billed == 1 else 'cost'} money: {amount}"
        unresponsive = [node for node in cluster.nodes if node.state in ("down", "unknown")]
        problem = (
            f"{cluster.problem} {cluster.remedy}".strip()
            or (cluster.machines.problem if cluster.machines else "")
            or "; ".join(f"{node.name}: {node.detail or 'not responding'}" for node in unresponsive)
        )
        rows.append((cluster.name, cluster.kind, nodes, gpus, cost, problem))
    return rows


def format_idle_cost(min_nodes: int) -> str:
    """Return a warning about nodes that are up without a job, or "" if there are none."""
    verb = "keeps running and costs" if min_nodes == 1 else "keep running and cost"
    return f"{plural(min_nodes, 'node')} {verb} money even without a job." if min_nodes else ""


def build_node_rows(nodes: Sequence[NodeInfo]) -> list[tuple[str, ...]]:
    """Return the rows of a table of nodes, header first; unknown values are empty."""
    rows: list[tuple[str, ...]] = [("Node", "State", "GPUs", "Cores", "Load", "Ranks", "Python", "Detail")]
    for node in nodes:
        gpus = f"{node.gpus} {TIMES} {node.gpu_name or 'GPU'}" if node.gpus else ""
        load = "" if node.load is None else f"{node.load:.1f}"
        ranks = "" if node.ranks is None else str(node.ranks)
        state, cores = f"{_NODE_SIGNS[node.state]} {node.state}", str(node.cores or "")
        rows.append((node.name, state, gpus, cores, load, ranks, node.python, node.detail))
    return rows


def format_checks(checks: Sequence[NodeCheck], width: int = 100) -> str:
    """Return the checks as a text table of ``width`` characters, each problem followed by its fix, then a summary.

    A fix is never wrapped, so that commands can be copied.
    """
    node_width, name_width = (max(len(getattr(check, name)) for check in checks) for name in ("node", "what"))
    indent = " " * (node_width + name_width + 6)
    wrapper = textwrap.TextWrapper(max(len(indent) + 30, width), break_long_words=False, break_on_hyphens=False)
    wrapper.subsequent_indent = indent
    lines = []
    for check in checks:
        names = f"{check.node:<{node_width}}  {check.what:<{name_width}}"
        wrapper.initial_indent = f"{_LEVEL_SIGNS[check.level]} {names}  "
        lines += wrapper.wrap(check.message) or [wrapper.initial_indent.rstrip()]
        if check.remedy and check.level in ("warning", "error"):
            lines.append(f"{indent}\N{RIGHTWARDS ARROW} {check.remedy}")
    return "\n".join([*lines, "", summarize_checks(checks)])


def merge_hosts(checks: Sequence[NodeCheck]) -> list[NodeCheck]:
    """Merge hosts with the same result of a check into one row, whose ``node`` lists them.

    Checks keep their order; for each check, the worst result comes first.
    """
    hosts = list(dict.fromkeys(check.node for check in checks if check.node))
    order = list(dict.fromkeys(check.what for check in checks))
    nodes_by_result: dict[NodeCheck, list[str]] = {}
    for check in sorted(checks, key=lambda check: (order.index(check.what), _LEVELS.index(check.level))):
        nodes_by_result.setdefault(replace(check, node=""), []).append(check.node)
    merged = []
    for check, nodes in nodes_by_result.items():
        names = ", ".join(nodes)
        if len(hosts) > 1 and len(nodes) == len(hosts) and names:
            names = f"all {len(hosts)} hosts"
        elif check.level in ("ok", "info") and len(nodes) > _MAX_NAMES:
            names = plural(len(nodes), "host")
        merged.append(replace(check, node=names))
    return merged


def summarize_checks(checks: Iterable[NodeCheck]) -> str:
    """Return the number of errors and warnings (``1 error, 2 warnings.``); a row of several hosts counts once."""
    levels = [row.level for row in merge_hosts(list(checks))]
    counts = [plural(levels.count(level), level) for level in ("error", "warning") if level in levels]
    return f"{', '.join(counts)}." if counts else "No problems found."
