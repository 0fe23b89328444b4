"""What comes back from ranks: events while a cell runs, then one answer. Plain data; it knows no socket and no screen.

A value stays a pickle until somebody looks at it: showing a cell's result needs none of the modules that opening it
would import.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from distdl_jupyter.core.errors import JobFailed, JobStillRunning
from distdl_jupyter.core.failure import is_echo


class RanksBusy(JobStillRunning):
    """The ranks run something else now; the message says what and whose."""


class RanksState(str):
    """``"idle"``, ``"busy"`` or ``"ended"``, with one sentence why in ``reason`` ("" when idle)."""

    __slots__ = ("reason",)
    reason: str

    def __new__(cls, word: str, reason: str = "") -> RanksState:
        """Return the word with its reason."""
        made = super().__new__(cls, word)
        made.reason = reason
        return made


@dataclass(frozen=True, slots=True)
class Unsent:
    """Stands for a value that stayed in its rank: its text there, and why."""

    repr: str
    why: str


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of what a rank printed on "out" or "err", mostly whole lines.

    A line that is drawn over begins with a carriage return.
    """

    rank: int
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """A rank has finished. All its output came before.

    ``repr`` is the value's text, at most 400 characters, and ``shown`` its forms by MIME type (``text/plain`` the whole
    text; pictures are base64), both empty for None. ``error`` is None, or the error as in a job's ``result`` event
    (see worker.failure). ``unsent`` says why the value itself stayed there, "" when it came.
    """

    rank: int
    ok: bool
    repr: str = ""
    shown: Mapping[str, str] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    seconds: float = 0.0
    unsent: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence for the user while a cell runs: who is waited for, and what can be done."""

    text: str


Event = Output | Done | Notice


class Values(Mapping[int, Any]):
    """Values by rank, each opened when it is first looked at; one that cannot be opened here is ``Unsent``."""

    def __init__(self) -> None:
        self._pickles: dict[int, tuple[bytes, str]] = {}
        self._opened: dict[int, Any] = {}

    def put(self, rank: int, data: bytes, done: Done) -> None:
        """Keep what a rank sent."""
        if done.unsent:
            self._opened[rank] = Unsent(done.repr, done.unsent)
        self._pickles[rank] = (data, done.repr)

    def __getitem__(self, rank: int) -> Any:
        if rank not in self._opened:
            self._opened[rank] = _opened(*self._pickles[rank])
            self._pickles[rank] = (b"", "")
        return self._opened[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._pickles))

    def __len__(self) -> int:
        return len(self._pickles)

    def __repr__(self) -> str:
        return repr(dict(self))


def _opened(data: bytes, text: str) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:  # noqa: BLE001  a value's own code runs here and can raise anything
        return Unsent(text, f"The value cannot be loaded here ({type(error).__name__}: {error}). Import what it "
            "needs first, or end the cell with plain data.")  # fmt: skip


@dataclass(slots=True)
class Answer:
    """What one cell gave: ``values`` and ``errors`` by rank, ``seconds`` from the call to the last rank's end."""

    values: Values = field(default_factory=Values)
    errors: dict[int, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    dones: dict[int, Done] = field(default_factory=dict)

    @property
    def first_failure(self) -> int | None:
        """The rank that failed first; one that only lost its peer comes last. None when all succeeded."""

        def order(rank: int) -> tuple[bool, float, int]:
            error = self.errors[rank]
            return is_echo(error), float(error.get("time") or 0.0), rank

        return min(self.errors, key=order, default=None)

    def check(self) -> Answer:
        """Return this answer when every rank succeeded. Raises JobFailed with the first failing rank's traceback."""
        rank = self.first_failure
        if rank is None:
            return self
        error = self.errors[rank]
        others = tuple(f"Rank {other}: {_what(one)}" for other, one in sorted(self.errors.items()) if other != rank)
        raise JobFailed(
            f"Rank {rank} failed{' first' if others else ''}: {_what(error)}{_place(error)}.",
            rank=rank, error=error, traceback=str(error.get("traceback", "")), others=others,
            code=str(error.get("code", "")), hint=str(error.get("hint", "")),
        )  # fmt: skip


def _what(error: dict[str, Any]) -> str:
    line = (str(error.get("message", "")).strip().splitlines() or [""])[0]
    return f"{error.get('type')}: {line}" if line else str(error.get("type"))


def _place(error: dict[str, Any]) -> str:
    frames, at = error.get("frames") or [], error.get("values_at")
    if not isinstance(at, int) or not 0 <= at < len(frames):
        return ""
    return f", in {frames[at]['label']}, line {frames[at]['line']}"


class Interrupted(KeyboardInterrupt):
    """The cell was interrupted and every rank has stopped; ``answer`` is what came of it."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("The cell was interrupted. The ranks are idle again.")
        self.answer = answer
