"""Format clusters, nodes and checks as tables and sentences, for terminals and notebooks."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace

from distdl_jupyter.clusters.base import CheckLevel, NodeCheck, NodeInfo
from distdl_jupyter.clusters.status import ClusterStatus
from distdl_jupyter.core.humanize import TIMES, plural

_NODE_SIGNS = {"up": "●", "down": "✗", "starting": "◔", "unknown": "?"}
_LEVEL_SIGNS: dict[CheckLevel, str] = {"ok": "✓", "info": "·", "warning": "!", "error": "✗"}
_SEVERITY: dict[CheckLevel, int] = {"error": 0, "warning": 1, "info": 2, "ok": 3}
#: Maximum number of host names listed in a line of passed checks.
_MOST_NAMES = 3


def cluster_rows(statuses: Iterable[ClusterStatus]) -> list[tuple[str, ...]]:
    """Return the rows of a table of clusters, header first; the cost column is omitted if no cluster costs money."""
    rows = [("Name", "Kind", "Nodes", "GPUs", "Cost", "Problem")]
    for status in statuses:
        node_count = max(len(status.nodes), status.machines.max_nodes if status.machines else 0)
        up = [node for node in status.nodes if node.state == "up"]
        nodes = f"{len(up)} of {node_count} up" if node_count else ""
        gpus = str(sum(node.gpus for node in up)) if status.nodes else ""
        rows.append((status.name, status.kind, nodes, gpus, _cost(status), _problem(status)))
    return rows if any(row[4] for row in rows[1:]) else [(*row[:4], row[5]) for row in rows]


def _cost(status: ClusterStatus) -> str:
    """Return the current cost of a cluster: ``2 nodes cost money: 1.05 USD/h``; "" if it is free."""
    if not status.billed:
        return ""
    verb = "costs" if status.billed == 1 else "cost"
    cost = status.cost_per_hour
    amount = "price unknown" if cost is None else f"{cost:,.2f} {status.currency}/h".replace("  ", " ")
    return f"{plural(status.billed, 'node')} {verb} money: {amount}"


def idle_cost_warning(min_nodes: int) -> str:
    """Return a warning about nodes that stay up without a job, "" if there are none."""
    if not min_nodes:
        return ""
    verb = "keeps running and costs" if min_nodes == 1 else "keep running and cost"
    return f"{plural(min_nodes, 'node')} {verb} money even without a job."


def _problem(status: ClusterStatus) -> str:
    """Return the problem of a cluster or of its unresponsive nodes in one line, "" if there is none."""
    if status.problem:
        return f"{status.problem} {status.remedy}".strip()
    if status.machines is not None and status.machines.problem:
        return status.machines.problem
    unresponsive = [node for node in status.nodes if node.state in ("down", "unknown")]
    return "; ".join(f"{node.name}: {node.detail or 'not responding'}" for node in unresponsive)


def node_rows(nodes: Sequence[NodeInfo]) -> list[tuple[str, ...]]:
    """Return the rows of a table of nodes, header first; unknown values are empty."""
    rows = [("Node", "State", "GPUs", "Cores", "Load", "Ranks", "Python", "Detail")]
    for node in nodes:
        gpus = f"{node.gpus} {TIMES} {node.gpu_name or 'GPU'}" if node.gpus else ""
        load = "" if node.load is None else f"{node.load:.1f}"
        ranks = "" if node.ranks is None else str(node.ranks)
        state, cores = f"{_NODE_SIGNS[node.state]} {node.state}", str(node.cores or "")
        rows.append((node.name, state, gpus, cores, load, ranks, node.python, node.detail))
    return rows


def check_rows(checks: Sequence[NodeCheck]) -> list[tuple[str, ...]]:
    """Return the rows of a table of checks, header first."""
    rows = [(_LEVEL_SIGNS[check.level], check.node, check.what, check.message, check.remedy) for check in checks]
    return [("", "Node", "Check", "Result", "Fix"), *rows]


def check_text(checks: Sequence[NodeCheck], width: int = 100) -> str:
    """Return the checks as a text table of ``width`` characters, each problem followed by its fix, then a summary.

    A fix is never wrapped, so that commands can be copied.
    """
    node, what = (max(len(getattr(check, name)) for check in checks) for name in ("node", "what"))
    indent = " " * (node + what + 6)
    wrapper = textwrap.TextWrapper(max(len(indent) + 30, width), break_long_words=False, break_on_hyphens=False)
    wrapper.subsequent_indent = indent
    lines = []
    for check in checks:
        wrapper.initial_indent = f"{_LEVEL_SIGNS[check.level]} {check.node:<{node}}  {check.what:<{what}}  "
        lines += wrapper.wrap(check.message) or [wrapper.initial_indent.rstrip()]
        if check.remedy and check.level in ("warning", "error"):
            lines.append(f"{indent}\N{RIGHTWARDS ARROW} {check.remedy}")
    return "\n".join([*lines, "", check_summary(checks)])


def merge_hosts(checks: Sequence[NodeCheck]) -> list[NodeCheck]:
    """Merge hosts with the same result of a check into one row, whose ``node`` lists them.

    Checks keep their order; for each check, the worst result comes first.
    """
    hosts = list(dict.fromkeys(check.node for check in checks if check.node))
    order = list(dict.fromkeys(check.what for check in checks))
    ordered = sorted(checks, key=lambda check: (order.index(check.what), _SEVERITY[check.level]))
    nodes_by_result: dict[NodeCheck, list[str]] = {}
    for check in ordered:
        nodes_by_result.setdefault(replace(check, node=""), []).append(check.node)
    merged = []
    for check, nodes in nodes_by_result.items():
        names = ", ".join(nodes)
        if len(hosts) > 1 and len(nodes) == len(hosts) and names:
            names = f"all {len(hosts)} hosts"
        elif check.level in ("ok", "info") and len(nodes) > _MOST_NAMES:
            names = plural(len(nodes), "host")
        merged.append(replace(check, node=names))
    return merged


def check_summary(checks: Iterable[NodeCheck]) -> str:
    """Return the number of errors and warnings (``1 error, 2 warnings.``); a row of several hosts counts once."""
    levels = [row.level for row in merge_hosts(list(checks))]
    counts = [plural(levels.count(level), level) for level in ("error", "warning") if level in levels]
    return f"{', '.join(counts)}." if counts else "No problems found."
