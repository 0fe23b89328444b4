"""Determines which rank of a job failed first, and how the others ended because of it. Pure functions.

In synchronous training, one failing rank makes all others fail within milliseconds, sometimes before the first failure
is detected. So an error that only reports a lost peer is not the cause if there is another error. If the lost peer had
finished its code, the cause is that the ranks did not make the same calls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from distdl_jupyter.core.collectives import UNEVEN_REMEDY, Collective, CollectiveFinding
from distdl_jupyter.core.humanize import count
from distdl_jupyter.core.humanize import ranks as format_ranks
from distdl_jupyter.worker.hooks.frameworks import is_peer_lost

#: Signals that indicate a crash.
CRASHES = ("ABRT", "SEGV", "BUS", "FPE", "ILL")
#: ``evidence`` of a rank that the launcher stopped because of another rank.
_STOPPED = "stopped"
#: Failure codes of signals.
_SIGNAL_CODES = {**dict.fromkeys(CRASHES, "rank-crashed"), "KILL": "rank-killed", "TERM": "rank-terminated"}
#: Common names of the step variable in training loops.
_STEP_NAMES = ("step", "global_step", "batch_idx", "batch_index", "iteration", "i")
#: Error messages of torch about a collective operation that did not complete or that ranks called differently.
_COLLECTIVE_ERROR = re.compile(
    r"monitoredBarrier|Watchdog caught collective|Detected mismatch between collectives|collective operation timeout|"
    r"Received data size doesn't match|Application timeout caused pair closure"
)
_ENDED_EARLY_REMEDY = "The code called os._exit(), or a C library called exit(). Let the code end, or call sys.exit()."
_UNEQUAL_REMEDY = (
    "All ranks must make the same collective calls with tensors of the same shape. Check for calls that only some "
    f"ranks make, and for uneven data. {UNEVEN_REMEDY}"
)


@dataclass(slots=True)
class RankView:
    """One rank: where it runs and how its process ended."""

    rank: int
    node: int = 0
    host: str = ""
    local_rank: int = 0
    pid: int | None = None
    gpu: int | None = None
    #: waiting, started (process runs), ready (connected to the others), ended
    status: str = "waiting"
    #: Whether torch.compile is running; the rank reports nothing until it ends.
    compiling: bool = False
    code: int | None = None
    signal: str | None = None
    #: Why the process ended, for example an out-of-memory kill; "stopped" if the launcher stopped it, "" if unknown.
    evidence: str = ""
    ended: float | None = None
    last_step: float | None = None
    lines: int = 0
    error_lines: int = 0
    result: str | None = None
    ok: bool | None = None
    error: dict[str, Any] | None = None
    error_time: float | None = None
    #: When the result or the error was received, by the supervisor's clock.
    result_time: float | None = None
    #: Why the value of a rank that completed is missing, or "" if it is not.
    problem: str = ""
    #: Its last collective operations when its code ended (worker.streams.collect_operations).
    collectives: dict[str, Any] | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process has started and not ended."""
        return self.status in ("started", "ready")


@dataclass(slots=True)
class Failure:
    """The cause of a failed job, at ``when`` (epoch seconds). ``what`` is a phrase such as ``KeyError: 'label'``.

    ``kind`` is exception, exit, signal, lost or unequal. If it is unequal, ``what`` is a sentence about the ranks that
    had finished while ``rank`` still waited for them. ``others`` are the other ranks without a result, as ``{"rank",
    "what", "after"}`` in order of ``after``, the seconds since the first failure. ``evidence`` explains the failure
    and says what to do, or is "". ``code`` is a stable name for programs and help links. ``collectives`` is the last
    collective operation of each rank if one of them caused the failure.
    """

    rank: int
    when: float
    what: str
    kind: str
    error: dict[str, Any] | None = None
    evidence: str = ""
    others: list[dict[str, Any]] = field(default_factory=list)
    code: str = ""
    collectives: list[Collective] = field(default_factory=list)


def is_lost_peer_error(error: dict[str, Any] | None) -> bool:
    """Return whether an exception only reports a lost peer."""
    return error is not None and is_peer_lost(str(error.get("type", "")), str(error.get("message", "")))


def may_concern_collectives(error: dict[str, Any] | None) -> bool:
    """Return whether ranks may have failed because they did not make the same collective calls."""
    if error is None:
        return False
    is_mismatch = error.get("code") == "collective-mismatch" or is_lost_peer_error(error)
    return is_mismatch or bool(_COLLECTIVE_ERROR.search(f"{error.get('message', '')} {error.get('crash', '')}"))


def add_collectives(failure: Failure, table: Sequence[Collective], finding: CollectiveFinding | None) -> Failure:
    """Return the failure with the table of last collective operations and the finding that explains it."""
    failure = replace(failure, collectives=list(table))
    if finding is not None:
        # The number of steps explains more than the last call.
        remedy = UNEVEN_REMEDY if failure.evidence == UNEVEN_REMEDY else finding.remedy
        failure.evidence = f"{finding.text} {remedy}"
        failure.code = failure.code if failure.kind == "unequal" else finding.code
    return failure


def find_first_failure(ranks: Sequence[RankView]) -> Failure | None:
    """Return the earliest failure that is not a lost-peer error (else the earliest such error), or None."""
    failed = [rank for rank in ranks if has_failed(rank)]
    if failed and all(rank.evidence == _STOPPED for rank in failed):
        # The launcher ended them early because another rank crashed after its work was done.
        failed += [rank for rank in ranks if has_crashed_at_end(rank)]
    if not failed:
        return None

    def get_time(rank: RankView) -> float:
        return min((t for t in (rank.error_time, rank.ended) if t is not None), default=0.0)

    first = min(failed, key=lambda rank: (_may_be_consequence(rank), get_time(rank), rank.rank))
    when, (text, kind, code) = get_time(first), describe_end(first)
    evidence = _ENDED_EARLY_REMEDY if has_ended_early(first) else first.evidence
    others = [rank for rank in ranks if rank is not first and rank.ok is not True and (has_failed(rank) or rank.ended)]
    others.sort(key=get_time)
    endings = [{"rank": r.rank, "what": describe_end(r)[0], "after": max(0.0, get_time(r) - when)} for r in others]
    code = str((first.error or {}).get("code", "")) or code
    failure = Failure(first.rank, when, text, kind, first.error, evidence, endings, code)
    if first.result_time is None or not is_lost_peer_error(first.error):
        return failure
    finished = [rank for rank in ranks if rank.ok is True and (rank.result_time or math.inf) <= first.result_time]
    return _explain_finished(failure, first, finished) if finished else failure


def _explain_finished(failure: Failure, waiting: RankView, finished: Sequence[RankView]) -> Failure:
    """Return the failure of a rank whose lost peers had finished, not failed."""
    text = f"{format_ranks([rank.rank for rank in finished])} had finished".capitalize()
    steps = [rank.last_step for rank in finished if rank.last_step is not None]
    if len(steps) == len(finished):
        text += f" (step {count(last_step := max(steps))})"
        # The step of the waiting rank comes from its last report, or from the loop variable at the failed line.
        values = (waiting.error or {}).get("values") or []
        is_next = any(name in _STEP_NAMES and str(value) == f"{last_step + 1:.0f}" for name, value in values)
        step = last_step + 1 if is_next else waiting.last_step
        if step is not None and step > last_step:
            text += f" while rank {waiting.rank} was at step {count(step)}: the ranks ran different numbers of steps"
            return replace(failure, kind="unequal", what=text, evidence=UNEVEN_REMEDY, code="uneven-steps")
    text += f" while rank {waiting.rank} was still waiting for {'it' if len(finished) == 1 else 'them'}: the ranks"
    text += " did not run the same steps or collective calls"
    return replace(failure, kind="unequal", what=text, evidence=_UNEQUAL_REMEDY, code="unequal-calls")


def _may_be_consequence(rank: RankView) -> bool:
    if is_lost(rank):
        return False  # the errors of the other ranks are consequences
    is_done, was_stopped = rank.ok is True and not has_crashed_at_end(rank), rank.evidence == _STOPPED
    return is_done or was_stopped or is_lost_peer_error(rank.error) or rank.signal in ("INT", "TERM")


def has_failed(rank: RankView) -> bool:
    """Return whether the rank raised, exited with a nonzero code or without its result, was killed, or is lost.

    A process that crashes after its result was saved has not failed, because libraries with background threads (such
    as torch's Gloo) sometimes abort during shutdown. Neither has a process that the launcher stopped at that point.
    """
    if rank.ok is False:
        return True
    if rank.status != "ended" or has_crashed_at_end(rank) or (rank.ok is True and rank.evidence == _STOPPED):
        return False
    return bool(rank.code) or rank.signal is not None or is_lost(rank) or has_ended_early(rank)


def has_ended_early(rank: RankView) -> bool:
    """Return whether the process exited normally although the rank's code had not finished; see ``Exit.evidence``."""
    return (rank.status, rank.code, rank.signal, rank.ok, rank.evidence) == ("ended", 0, None, None, "")


def is_lost(rank: RankView) -> bool:
    """Return whether it is unknown how the rank's process ended, because its node no longer responds."""
    return rank.status == "ended" and rank.code is None and rank.signal is None


def has_crashed_at_end(rank: RankView) -> bool:
    """Return whether the process crashed after the rank's result was saved."""
    return rank.ok is True and rank.signal in CRASHES


def describe_end(rank: RankView) -> tuple[str, str, str]:
    """Return how a rank ended as a short phrase, and the kind and the code of this failure (see ``Failure``)."""
    error, code = rank.error or {}, ""
    if rank.signal and (error.get("crash") or not error):  # for example: Segmentation fault in Cell [3], line 3
        text = f"ended by SIG{rank.signal}" + (f": {error['crash']}" if error else "")
        kind, code = "signal", _SIGNAL_CODES.get(rank.signal, "")
    elif error:
        kind, message = "exception", str(error.get("message", "")).strip().partition("\n")[0]
        text = ": ".join(part for part in (str(error.get("type", "Error")), message) if part)
    elif is_lost(rank):
        kind, text = "lost", f"lost with {rank.host}" if rank.host else "lost"
    elif has_ended_early(rank):
        kind, text, code = "exit", "exited with code 0 before the training code finished", "rank-ended-early"
    else:
        kind, text = "exit", f"exit code {rank.code}" if rank.code else "ended"
    return text, kind, code or f"rank-{kind}"
