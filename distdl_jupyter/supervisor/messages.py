"""Message texts of the supervisor about versions, exits and restarts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.core import registry
from distdl_jupyter.core.failure import is_lost
from distdl_jupyter.core.humanize import plural, ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distdl_jupyter.core.failure import Failure, RankView
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.view import JobView


def versions(spec: JobSpec) -> str:
    """Return the versions of the ranks: "horovod-gloo, Horovod 0.28.1, torch 2.13.0, Python 3.11.7"."""
    backend, options = registry.backend(spec.distributed_backend, dict(spec.backend_options))
    shown = {package.name: package.title for package in backend.packages(options)} | {"python": "Python"}
    known = [f"{title} {spec.versions[name]}" for name, title in shown.items() if name in spec.versions]
    return ", ".join([spec.distributed_backend, *known])


def endings(all_ranks: Sequence[RankView]) -> str:
    """Return how the ranks' processes ended, grouped by exit: "4 ranks ended with code 0"."""
    alike: dict[str, list[int]] = {}
    for rank in all_ranks:
        alike.setdefault(_ending(rank), []).append(rank.rank)
    if len(alike) == 1:
        return f"{plural(len(all_ranks), 'rank')} {next(iter(alike))}"
    return "; ".join(f"{ranks(numbers)} {how}" for how, numbers in alike.items())


def _ending(rank: RankView) -> str:
    if is_lost(rank):
        return "lost"
    return f"ended by SIG{rank.signal}" if rank.signal else f"ended with code {rank.code}"


def world(spec: JobSpec, node_count: int) -> str:
    """Return the message that the number of nodes has changed."""
    if node_count == spec.node_count:
        return f"All {node_count} nodes are available again, with {plural(spec.process_count, 'process')}."
    count = node_count * spec.process_count_per_node
    return f"The job continues with {node_count} of {spec.node_count} nodes, {plural(count, 'process')}."


def waiting_for(ranks: list[int]) -> str:
    """Return which ranks the others wait for, "" for none."""
    if not ranks:
        return ""
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return f"waiting for rank{'s' if len(ranks) > 1 else ''} {shown}"


def failed_first(failure: Failure, process_count: int) -> str:
    """Return which rank failed first, and how."""
    if failure.kind == "unequal":
        return failure.what
    who = f"Rank {failure.rank} of {process_count} failed first" if process_count > 1 else "The process failed"
    text = f"{who}: {failure.what}"
    if failure.kind == "lost" and failure.evidence:
        text += f". {failure.evidence}"
    return text


def restart_announcement(view: JobView, seconds: float) -> str:
    """Return the status during the delay of a restart: "restart 2 of 3 in 2 s"."""
    return f"restart {view.restart_count - view.requeue_count} of {view.max_restarts} in {seconds:g} s"


def restart_heading(view: JobView) -> str:
    """Return the log line between two attempts."""
    last = view.restarts[-1]
    if last.requeued:
        return f"--- requeue {view.requeue_count}: {last.reason} ---"
    return f"--- restart {view.restart_count - view.requeue_count} of {view.max_restarts}: {last.reason} ---"


def restarts_used_up(reason: str, view: JobView) -> str:
    """Return the reason of a job that has no restarts left: its last failure and the earlier ones."""
    if not view.restarts:
        return reason
    before = "; ".join(f"{number}. {restart.reason.rstrip('.')}" for number, restart in enumerate(view.restarts, 1))
    return f"{reason.rstrip('.')}. The job had been restarted {plural(len(view.restarts), 'time')}, after: {before}."
