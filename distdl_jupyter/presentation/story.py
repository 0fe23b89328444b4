"""A failed job told for reading: the first failure with its place, and what happened in order.

Pure, and only what the events say: a place or a time that nobody reported is left out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from distdl_jupyter.core import words
from distdl_jupyter.core.failure import Failure, crash, describe, is_echo, is_lost
from distdl_jupyter.core.rank import RankView
from distdl_jupyter.core.state import State
from distdl_jupyter.core.view import JobView
from distdl_jupyter.presentation.schema import Cause, FailureCard, Frame, Moment, OtherRank

#: A failure is told when the job has come to its end: before that the first sign may still turn out to be an echo.
_TOLD = (State.FAILED, State.LOST)
#: Others that ended within so many seconds of each other, in the same way, are one entry.
_TOGETHER = 1.0


def failure_card(view: JobView) -> FailureCard | None:
    """Return the failure as the panel shows it, None when there is none.

    A job that failed as a whole, before any rank did or because its ranks did not make the same calls, has ``rank``
    None; the state's reason or ``what`` says why.
    """
    if view.state not in _TOLD:
        return None
    failure = view.failure
    if failure is None:
        return FailureCard(rank=None, when=view.ended) if view.state is State.FAILED else None
    error = failure.error or {}
    return FailureCard(
        rank=None if failure.kind == "unequal" else failure.rank,
        when=failure.when,
        what=failure.what,
        error_type=str(error.get("type", "")),
        message=str(error.get("message", "")),
        place=place(view.ranks[failure.rank]),
        hint=" ".join(str(part) for part in (error.get("hint", ""), failure.evidence) if part and part != "stopped"),
        frames=_frames(error),
        values=tuple((str(name), str(value)) for name, value in error.get("values", [])),
        values_at=error.get("values_at"),
        causes=tuple(_cause(cause) for cause in error.get("causes", [])),
        traceback=str(error.get("traceback", "")),
        others=tuple(OtherRank(other["rank"], other["what"], other["after"]) for other in failure.others),
        story=tuple(story(view, failure)),
    )


def _cause(error: dict[str, Any]) -> Cause:
    return Cause(str(error.get("type", "")), str(error.get("message", "")), _frames(error))


def _frames(error: dict[str, Any]) -> tuple[Frame, ...]:
    return tuple(_frame(frame) for frame in error.get("frames", []))


def _frame(frame: dict[str, Any]) -> Frame:
    return Frame(
        file=str(frame.get("file", "")),
        line=int(frame.get("line") or 0),
        function=str(frame.get("function") or ""),
        kind=str(frame.get("kind", "")),
        label=str(frame.get("label", "")),
        cell=frame.get("cell"),
        source=tuple((int(number), str(text)) for number, text in frame.get("source") or ()),
    )


def place(rank: RankView) -> str:
    """Return where a rank runs, as far as it is known: ``node-b (pid 48213, GPU 0)``."""
    inside = [f"pid {rank.pid}"] if rank.pid is not None else []
    inside += [f"GPU {rank.gpu}"] if rank.gpu is not None else []
    if not rank.host:
        return ", ".join(inside)
    return f"{rank.host} ({', '.join(inside)})" if inside else rank.host


def story(view: JobView, failure: Failure) -> list[Moment]:
    """Return what happened: when the ranks met, the first failure, the others grouped by how they ended."""
    told = [*_met(view), Moment(failure.when, _first(view, failure), bad=True), *_others(view, failure)]
    if view.process_count > 1 and view.ended is not None and all(rank.status == "ended" for rank in view.ranks):
        told[-1] = dataclasses.replace(told[-1], text=f"{told[-1].text}; no process left")
    return told


def _met(view: JobView) -> list[Moment]:
    train = next((phase for phase in view.phases if phase.phase == "train"), None)
    if train is None or train.begun is None:
        return []
    who = f"{words.plural(view.process_count, 'rank')} met and started" if view.process_count > 1 else "Started"
    return [Moment(train.begun, f"{who} training", bad=False)]


def _first(view: JobView, failure: Failure) -> str:
    who = f"Rank {failure.rank}" if view.process_count > 1 else "The process"
    if failure.kind == "unequal":
        return failure.what
    if failure.error and failure.kind != "signal":
        return f"{who} raised {failure.error.get('type', 'an exception')}"
    return f"{who} {_ended(view.ranks[failure.rank])}"


def _ended(rank: RankView) -> str:
    if rank.signal:
        return f"ended by SIG{rank.signal}"
    if rank.code:
        return f"ended with exit code {rank.code}"
    return f"was {describe(rank)}" if is_lost(rank) else describe(rank)


def _others(view: JobView, failure: Failure) -> list[Moment]:
    groups: list[tuple[str, float, list[int]]] = []
    for other in failure.others:
        how, after = _how(view.ranks[other["rank"]], failure.rank), other["after"]
        if groups and groups[-1][0] == how and after - groups[-1][1] <= _TOGETHER:
            groups[-1][2].append(other["rank"])
        else:
            groups.append((how, after, [other["rank"]]))
    return [
        Moment(failure.when + after, f"{words.ranks(sorted(ranks)).capitalize()} {how}", bad=False)
        for how, after, ranks in groups
    ]


def _how(rank: RankView, first: int) -> str:
    if is_echo(rank.error):
        return f"lost rank {first}"
    if rank.error and not crash(rank):
        return f"raised {rank.error.get('type', 'an exception')}"
    return _ended(rank)
