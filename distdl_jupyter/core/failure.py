"""Which rank failed first, and what the others did because of it: pure rules.

In synchronous training one failing rank makes all others fail too, within milliseconds and sometimes before the first
one's end is noticed. So an error that only says "a peer is gone" never counts as the cause while another one exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distdl_jupyter.worker.echo import says_peer_is_gone

if TYPE_CHECKING:
    from distdl_jupyter.core.rank import RankView


#: Signals by which a process ends itself.
_CRASHES = ("ABRT", "SEGV", "BUS", "FPE", "ILL")
#: The evidence of a rank that a launcher ended because of another one.
_STOPPED = "stopped"


@dataclass(slots=True)
class Failure:
    """The cause of a failed job. ``when`` is in epoch seconds.

    ``what`` is a short phrase: ``KeyError: 'label'``, ``exit code 3``, ``ended by SIGKILL``, ``lost with node-b``;
    ``kind`` is exception, exit, signal or lost. ``others`` are
    ``{"rank", "what", "after"}`` in order of time, ``after`` in seconds behind the first failure.
    """

    rank: int
    when: float
    what: str
    kind: str
    error: dict[str, Any] | None = None
    evidence: str = ""
    others: list[dict[str, Any]] = field(default_factory=list)


def _kind(rank: RankView) -> str:
    if is_lost(rank):
        return "lost"
    return "signal" if rank.signal else "exit"


def is_echo(error: dict[str, Any] | None) -> bool:
    """Say whether an exception only reports that another rank is gone."""
    if not error:
        return False
    return says_peer_is_gone(str(error.get("type", "")), str(error.get("message", "")))


def first_failure(ranks: Sequence[RankView]) -> Failure | None:
    """Return the earliest failure that is no echo (else the earliest echo), None when no rank failed."""
    failed = [rank for rank in ranks if has_failed(rank)]
    if not failed:
        return None
    if all(rank.evidence == _STOPPED for rank in failed):
        # A launcher ended them before their work was done, because another one crashed after its own.
        failed += [rank for rank in ranks if crashed_at_the_end(rank)]
    first = min(failed, key=lambda rank: (_secondary(rank), _when(rank), rank.rank))
    when = _when(first)
    others = sorted((r for r in ranks if r is not first and (has_failed(r) or r.ended)), key=_when)
    return Failure(
        rank=first.rank,
        when=when,
        what=describe(first),
        kind="exception" if first.error else _kind(first),
        error=first.error,
        evidence=first.evidence,
        others=[{"rank": r.rank, "what": describe(r), "after": max(0.0, _when(r) - when)} for r in others],
    )


def has_failed(rank: RankView) -> bool:
    """Say whether the rank raised, ended with another code than 0, was killed or is lost with its node.

    A process that crashes while it shuts down, after its result was saved, has not failed: libraries with threads of
    their own (torch's Gloo among them) sometimes abort then, by chance. Nor has one that a launcher stopped after that.
    """
    if rank.ok is False:
        return True
    if crashed_at_the_end(rank) or (rank.ok is True and rank.evidence == _STOPPED):
        return False
    return rank.status == "ended" and (bool(rank.code) or rank.signal is not None or is_lost(rank))


def is_lost(rank: RankView) -> bool:
    """Say whether nobody can tell how the rank's process ended: its node does not answer any more."""
    return rank.status == "ended" and rank.code is None and rank.signal is None


def crashed_at_the_end(rank: RankView) -> bool:
    """Say whether the process crashed by itself after the rank's work was done and its result was saved."""
    return rank.ok is True and rank.signal in _CRASHES


def _secondary(rank: RankView) -> bool:
    if is_lost(rank):
        return False  # whatever the others say, they say it because this one is gone
    return is_echo(rank.error) or rank.signal in ("INT", "TERM") or rank.evidence == _STOPPED


def _when(rank: RankView) -> float:
    times = [t for t in (rank.error_time, rank.ended) if t is not None]
    return min(times, default=0.0)


def describe(rank: RankView) -> str:
    """Return how a rank ended as a short phrase."""
    if rank.error:
        message = str(rank.error.get("message", ""))
        first_line = message.strip().splitlines()[0] if message.strip() else ""
        return f"{rank.error.get('type', 'Error')}: {first_line}" if first_line else str(rank.error.get("type"))
    if rank.signal:
        return f"ended by SIG{rank.signal}"
    if rank.code:
        return f"exit code {rank.code}"
    if is_lost(rank):
        return f"lost with {rank.host}" if rank.host else "lost"
    return "ended"
