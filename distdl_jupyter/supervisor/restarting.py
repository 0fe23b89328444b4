"""What stands between two attempts at a job: how long to wait, what of the first goes, and how it is told.

What ranks keep in their checkpoint folder stays. Whether there is another attempt is the supervisor's decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.core.failure import is_lost
from distdl_jupyter.core.words import plural

if TYPE_CHECKING:
    from distdl_jupyter.core.rank import RankView
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.core.view import JobView

#: Seconds before the first restart, doubled before each further one, and the most.
_FIRST, _MOST = 1.0, 30.0
#: Seconds in which what ended ended together.
_AT_ONCE = 0.9


def pause(number: int) -> float:
    """Return how many seconds to wait before the restart of this number, from 1."""
    return float(min(_MOST, _FIRST * 2 ** min(number - 1, 10)))


def clear(folder: JobFolder) -> None:
    """Remove the values of the attempt that ended: those of the next one take their place."""
    for path in folder.results.glob("rank-*.pkl"):
        path.unlink(missing_ok=True)


def lost_nodes(view: JobView) -> frozenset[int]:
    """Return the nodes that were lost whole with the first failure: nobody can tell of their ranks, or all were killed.

    What is told as killed counts where nodes are emulated, which cannot fall silent; a real one that is there after
    all is used again.
    """
    failure = view.failure
    if failure is None:
        return frozenset()
    nodes = {rank.node for rank in view.ranks}
    fallen = {rank.rank for rank in view.ranks if is_lost(rank) or _killed_at(rank, failure.when)}
    return frozenset(node for node in nodes if all(one.rank in fallen for one in view.ranks if one.node == node))


def _killed_at(rank: RankView, moment: float) -> bool:
    """Say whether the rank was killed then and not by the supervisor, which waits a second before it ends others."""
    return rank.signal == "KILL" and rank.ended is not None and rank.ended - moment < _AT_ONCE


def announcement(view: JobView, seconds: float) -> str:
    """Return what is shown while a restart is waited for: "restart 2 of 3 in 2 s"."""
    return f"restart {view.restart_count} of {view.max_restarts} in {seconds:g} s"


def heading(view: JobView) -> str:
    """Return the line of the log between two attempts."""
    return f"--- restart {view.restart_count} of {view.max_restarts}: {view.restarts[-1].reason} ---"


def used_up(reason: str, view: JobView) -> str:
    """Return why a job failed for good: the last failure, and those that it was started anew after."""
    if not view.restarts:
        return reason
    before = "; ".join(f"{number}. {one.reason.rstrip('.')}" for number, one in enumerate(view.restarts, 1))
    return f"{reason.rstrip('.')}. It was restarted {plural(len(view.restarts), 'time')} before, after: {before}."
