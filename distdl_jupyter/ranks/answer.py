"""Data classes for the responses of ranks: events while a cell runs, its result, and its failures.

Values are unpickled on first use, so that showing the result of a cell does not import modules. Failures follow the
rules of jobs (``core.failure``): a lost-peer error is not the cause if there is another error. Errors are dicts as
reported by ranks (``worker.failure.describe``).
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from distdl_jupyter.core.errors import JobFailed, JobStillRunning
from distdl_jupyter.core.failure import is_echo

Error = Mapping[str, Any]


class RanksBusy(JobStillRunning):
    """The ranks are running another cell; the message names the cell and its client."""


class RanksState(str):
    """``"idle"``, ``"busy"`` or ``"ended"``, with an explanation in ``reason`` ("" if idle)."""

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


@dataclass(frozen=True, slots=True)
class Output:
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


@dataclass(frozen=True, slots=True)
class Notice:
    """A message for the user while a cell runs, for example which ranks have not finished."""

    text: str


Event = Output | RankResult | Notice


class Values(Mapping[int, Any]):
    """Values by rank, each unpickled on first use. A value that cannot be unpickled is replaced by ``UnsentValue``."""

    def __init__(self) -> None:
        self._pickles: dict[int, tuple[bytes, RankResult]] = {}
        self._loaded: dict[int, Any] = {}

    def put(self, rank: int, data: bytes, done: RankResult) -> None:
        """Store the response of a rank."""
        self._pickles[rank] = (data, done)

    def __getitem__(self, rank: int) -> Any:
        if rank not in self._loaded:
            data, done = self._pickles[rank]
            try:
                self._loaded[rank] = UnsentValue(done.repr, done.unsent) if done.unsent else pickle.loads(data)
            except Exception as error:  # noqa: BLE001  unpickling runs the code of the value, which can raise anything
                problem = f"The value cannot be loaded here ({type(error).__name__}: {error})."
                fix = "Import the modules that it needs, or end the cell with plain data."
                self._loaded[rank] = UnsentValue(done.repr, f"{problem} {fix}")
            self._pickles[rank] = (b"", done)
        return self._loaded[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._pickles))

    def __len__(self) -> int:
        return len(self._pickles)

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass(slots=True)
class Answer:
    """The result of one cell: ``values``, ``errors`` and the last event by rank."""

    values: Values = field(default_factory=Values)
    errors: dict[int, dict[str, Any]] = field(default_factory=dict)
    results: dict[int, RankResult] = field(default_factory=dict)

    def check(self) -> Answer:
        """Return this answer if every rank succeeded. Raises CellFailed with the traceback of the first failed rank."""
        failed = find_failures(self.errors, sorted(self.results))
        if failed is not None:
            raise CellFailed(failed, self.errors)
        return self


class CellInterrupt(KeyboardInterrupt):
    """The cell was interrupted on every rank. ``answer`` is the partial result."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("The cell was interrupted. The ranks are idle again.")
        self.answer = answer


_SAME_ERROR = "the same error"


@dataclass(frozen=True, slots=True)
class Failures:
    """The failures of a cell that ran on ``ranks``: rank ``first`` failed first, with ``error``.

    ``others`` has pairs of other failed ranks and their error as text; those with the same error come first.
    """

    ranks: tuple[int, ...]
    first: int
    error: Error
    others: tuple[tuple[tuple[int, ...], str], ...]

    @property
    def is_interrupt(self) -> bool:
        """Whether an interrupt was the only failure."""
        return self.error.get("type") == "KeyboardInterrupt"

    @property
    def _same_error_ranks(self) -> tuple[int, ...]:
        return next((ranks for ranks, text in self.others if text == _SAME_ERROR), ())

    @property
    def subject(self) -> str:
        """The subject and verb of a sentence: ``Rank 1 of 4 failed first``, ``All 4 ranks failed with ...``."""
        size = len(self.ranks)
        if len(self._same_error_ranks) + 1 == size > 1:
            return f"{'Both' if size == 2 else f'All {size}'} ranks failed with the same error"
        return f"Rank {self.first} failed" if size == 1 else f"Rank {self.first} of {size} failed first"

    @property
    def location(self) -> str:
        """The location, such as ``Cell [7] in quickstart.ipynb, line 11``, or "" if no frame is in the user's code."""
        frames, i = self.error.get("frames") or [], self.error.get("values_at")
        return f"{frames[i]['label']}, line {frames[i]['line']}" if isinstance(i, int) and i < len(frames) else ""

    def describe(self) -> str:
        """Return the ranks, error and location of the failure as one sentence."""
        if self.is_interrupt:
            return f"Interrupted on {name_ranks((self.first, *self._same_error_ranks))}."
        location = f", in {self.location}" if self.location else ""
        return f"{self.subject}: {describe_error(self.error).rstrip('.')}{location}."

    def describe_others(self) -> list[str]:
        """Return one sentence for each other error and its ranks, none if all ranks have the same error."""
        are_all_same = len(self._same_error_ranks) + 1 == len(self.ranks)
        return [] if are_all_same else [f"{name_ranks(ranks).capitalize()}: {text}." for ranks, text in self.others]


class CellFailed(JobFailed):
    """A cell raised an exception on at least one rank. The ranks keep running.

    ``rank`` failed first; ``error`` is its exception as a dict, and ``errors`` has the exceptions of all failed ranks.
    """

    code = "cell-failed"

    def __init__(self, failures: Failures, errors: Mapping[int, Error], *, shown: bool = False) -> None:
        error = dict(failures.error)
        super().__init__(
            failures.describe(),
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

    def sort_key(rank: int) -> tuple[bool, float, int]:
        error = errors[rank]
        is_late = is_echo(dict(error)) or error.get("type") == "KeyboardInterrupt"
        return is_late, float(error.get("time") or 0.0), rank

    first, *later = sorted(errors, key=sort_key)
    groups: dict[str, list[int]] = {_SAME_ERROR: []}
    for rank in later:
        is_same = all(errors[rank].get(name) == errors[first].get(name) for name in ("type", "message"))
        groups.setdefault(_SAME_ERROR if is_same else describe_error(errors[rank]), []).append(rank)
    others = tuple((tuple(sorted(group)), text) for text, group in groups.items() if group)
    return Failures(tuple(ranks), first, errors[first], others)


def describe_error(error: Error) -> str:
    """Return an error as a short phrase: ``KeyError: 'label'``."""
    message = str(error.get("message", "")).strip()
    error_type = str(error.get("type", "Error"))
    return f"{error_type}: {message.splitlines()[0][:300]}" if message else error_type


def format_spans(ranks: Iterable[int]) -> str:
    """Format ranks as for ``%%ranks``: ``0-3``, ``0,2``, ``0-2,5``."""
    pairs = groupby(enumerate(sorted(set(ranks))), key=lambda pair: pair[1] - pair[0])
    runs = [[rank for _, rank in run] for _, run in pairs]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def name_ranks(ranks: Collection[int]) -> str:
    """Format ranks for a sentence: ``rank 2``, ``ranks 0-3``."""
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {format_spans(ranks)}"
