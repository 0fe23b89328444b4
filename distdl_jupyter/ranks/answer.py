"""Data classes for the responses of ranks: events while a cell runs, its result, and its failures.

Values are unpickled on first use, so that showing the result of a cell does not import modules. As in jobs
(``core.failure``), an error that reports a lost peer is not the cause if there is another error. Errors are dicts as
reported by ranks (``worker.failure.describe``).
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distdl_jupyter.core.errors import JobFailed, JobStillRunning
from distdl_jupyter.core.failure import is_lost_peer_error
from distdl_jupyter.core.humanize import name_ranks

Error = Mapping[str, Any]


class RanksBusy(JobStillRunning):
    """The ranks are running another cell; the message names the cell and its client."""


class RanksState(str):
    """``"idle"``, ``"busy"`` or ``"ended"``. ``reason`` explains the state; it is "" if the ranks are idle."""

    __slots__ = ("reason",)
    reason: str

    def __new__(cls, state: str, reason: str = "") -> RanksState:
        """Return the state with its reason."""
        instance = super().__new__(cls, state)
        instance.reason = reason
        return instance


@dataclass(frozen=True, slots=True)
class UnsentValue:
    """Placeholder for a value that was not sent: its ``repr`` on the rank, and the reason."""

    repr: str
    why: str


class Output(NamedTuple):
    """Output of a rank on the stream "out" or "err", usually complete lines.

    A redrawn line, such as a progress bar, begins with a carriage return.
    """

    rank: int
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class RankResult:
    """The last event of a rank, which has finished the cell.

    ``repr`` is the text of the value, at most 400 characters. ``shown`` has its representations by MIME type
    (``text/plain`` is the full text; pictures are base64). Both are empty if the value is None. ``error`` has the form
    of the error in a job's ``result`` event (see ``worker.failure``). ``unsent`` is why the value was not sent, ""
    if it was.
    """

    rank: int
    ok: bool
    repr: str = ""
    shown: Mapping[str, str] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    unsent: str = ""


class Notice(NamedTuple):
    """A message for the user while a cell runs, for example which ranks have not finished."""

    text: str


Event = Output | RankResult | Notice


@dataclass
class Answer:
    """The result of one cell, by rank: ``errors`` of the failed ranks, and ``results`` of all.

    ``pickles`` are the values of the other ranks until ``values`` is used.
    """

    errors: dict[int, dict[str, Any]] = field(default_factory=dict)
    results: dict[int, RankResult] = field(default_factory=dict)
    pickles: dict[int, bytes] = field(default_factory=dict)

    @functools.cached_property
    def values(self) -> dict[int, Any]:
        """The values by rank. A value that was not sent or cannot be unpickled is replaced by ``UnsentValue``."""
        return {rank: _load_value(self.pickles.pop(rank), self.results[rank]) for rank in sorted(self.pickles)}

    def check(self) -> Answer:
        """Return this answer if every rank succeeded. Raises CellFailed with the traceback of the first failed rank."""
        failures = find_failures(self.errors, sorted(self.results))
        if failures is not None:
            raise CellFailed(failures, self.errors)
        return self


class CellInterrupt(KeyboardInterrupt):
    """The cell was interrupted on every rank. ``answer`` is the partial result."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("The cell was interrupted. The ranks are idle again.")
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Failures:
    """The failures of a cell: rank ``first`` failed first, with ``error``.

    ``summary`` is a sentence with ``subject`` ("Rank 1 of 4 failed first"), the error and its ``location``, such as
    "Cell [7] in a.ipynb, line 11", or "" if no frame is in the user's code. ``others`` has the other failed ranks with
    their error as text, if it differs on any rank. ``is_interrupt`` is whether an interrupt was the only failure.
    """

    first: int
    error: Error
    summary: str
    subject: str
    location: str
    others: tuple[tuple[tuple[int, ...], str], ...]
    is_interrupt: bool

    def describe_others(self) -> list[str]:
        """Return one sentence for each other error and its ranks."""
        return [f"{name_ranks(ranks).capitalize()}: {text}." for ranks, text in self.others]


class CellFailed(JobFailed):
    """A cell raised an exception on at least one rank. The ranks keep running.

    ``rank`` failed first; ``error`` is its exception as a dict, and ``errors`` has the exceptions of all failed ranks.
    """

    code = "cell-failed"

    def __init__(self, failures: Failures, errors: Mapping[int, Error], *, shown: bool = False) -> None:
        error = dict(failures.error)
        super().__init__(
            failures.summary,
            rank=failures.first,
            error=error,
            traceback=str(error.get("traceback", "")),
            others=tuple(failures.describe_others()),
            code=str(error.get("code", "")),
            hint=str(error.get("hint", "")),
        )
        self.errors = dict(errors)
        self._shown = shown

    def _render_traceback_(self) -> list[str]:
        """Return the lines to show in IPython, without frames of this process: one line if the cell shows the rest."""
        return [f"CellFailed: {self.message}"] if self._shown else f"CellFailed: {self}".splitlines()


def find_failures(errors: Mapping[int, Error], ranks: Sequence[int]) -> Failures | None:
    """Return the failures of a cell, or None if there are none."""
    if not errors:
        return None

    def get_sort_key(rank: int) -> tuple[bool, float, int]:
        error = errors[rank]
        is_late = is_lost_peer_error(dict(error)) or error.get("type") == "KeyboardInterrupt"
        return is_late, float(error.get("time") or 0.0), rank

    first, *later = sorted(errors, key=get_sort_key)
    error, size = errors[first], len(ranks)
    same_error_ranks: list[int] = []
    by_text: dict[str, list[int]] = {}
    for rank in later:
        is_same = all(errors[rank].get(name) == error.get(name) for name in ("type", "message"))
        (same_error_ranks if is_same else by_text.setdefault(describe_error(errors[rank]), [])).append(rank)
    subject = f"Rank {first} of {size} failed first" if size > 1 else f"Rank {first} failed"
    if len(same_error_ranks) + 1 == size > 1:
        subject = f"{'Both' if size == 2 else f'All {size}'} ranks failed with the same error"
    elif same_error_ranks:
        by_text = {"the same error": same_error_ranks, **by_text}
    frames, index = error.get("frames") or [], error.get("values_at")
    frame = frames[index] if isinstance(index, int) and index < len(frames) else None
    location = f"{frame['label']}, line {frame['line']}" if frame else ""
    summary = f"{subject}: {describe_error(error).rstrip('.')}{f', in {location}' if location else ''}."
    if is_interrupt := error.get("type") == "KeyboardInterrupt":
        summary = f"Interrupted on {name_ranks((first, *same_error_ranks))}."
    others = tuple((tuple(sorted(group)), text) for text, group in by_text.items())
    return Failures(first, error, summary, subject, location, others, is_interrupt)


def _load_value(data: bytes, result: RankResult) -> Any:
    if result.unsent:
        return UnsentValue(result.repr, result.unsent)
    try:
        return pickle.loads(data)
    except Exception as error:  # noqa: BLE001 - unpickling runs the code of the value, which can raise anything
        problem = f"The value cannot be loaded here ({type(error).__name__}: {error})."
        fix = "Import the modules that it needs, or end the cell with plain data."
        return UnsentValue(result.repr, f"{problem} {fix}")


def describe_error(error: Error) -> str:
    """Return an error as a short phrase: ``KeyError: 'label'``."""
    message = str(error.get("message", "")).strip()
    error_type = str(error.get("type", "Error"))
    return f"{error_type}: {message.splitlines()[0][:300]}" if message else error_type
