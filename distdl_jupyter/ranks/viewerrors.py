"""A cell that failed on some of its ranks: which rank failed first, what the others say, and the exception for it.

The rules are those of jobs (``core.failure``): an error that only says that a peer is gone is never the cause while
another one exists. Errors are data as ranks report them (``worker.failure.describe``). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distdl_jupyter.core import humanize
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.failure import is_echo
from distdl_jupyter.ranks.view import named

Error = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failures:
    """``first`` failed first, with ``error``; ``alike`` failed with the same, ``others`` say something else.

    ``others`` are (ranks, what they say, seconds behind the first failure). ``asked`` are all ranks of the cell.
    """

    asked: tuple[int, ...]
    first: int
    error: Error
    alike: tuple[int, ...]
    others: tuple[tuple[tuple[int, ...], str, float], ...]

    @property
    def who(self) -> str:
        """Return who failed, as a sentence begins: ``Rank 1 of 4 failed first``, ``All 4 ranks failed alike``."""
        if len(self.alike) + 1 == len(self.asked) > 1:
            return f"{('Both' if len(self.asked) == 2 else f'All {len(self.asked)}')} ranks failed with the same error"
        alone = len(self.asked) == 1
        return f"Rank {self.first} failed" if alone else f"Rank {self.first} of {len(self.asked)} failed first"

    @property
    def interrupted(self) -> bool:
        """Say whether an interrupt is all that happened."""
        return self.error.get("type") == "KeyboardInterrupt"

    @property
    def where(self) -> str:
        """Return ``Cell [7] in quickstart.ipynb, line 11``, "" when no frame is the user's."""
        frames, at = self.error.get("frames") or [], self.error.get("values_at")
        return f"{frames[at]['label']}, line {frames[at]['line']}" if isinstance(at, int) and at < len(frames) else ""

    def sentence(self) -> str:
        """Return who failed with what and where, as one sentence."""
        if self.interrupted:
            return f"Interrupted on {named((self.first, *self.alike))}."
        place = f", in {self.where}" if self.where else ""
        return f"{self.who}: {what(self.error).rstrip('.')}{place}."

    def rest(self) -> list[str]:
        """Return one sentence for each group of the other failed ranks."""
        partly = self.alike and len(self.alike) + 1 < len(self.asked)
        same = [(self.alike, "the same error", 0.0)] if partly else []
        return [_said(*one) for one in (*same, *self.others)]


class CellFailed(DistDLError):
    """A cell raised on at least one rank; the ranks live on.

    ``rank`` failed first, ``error`` is its exception as data, ``errors`` those of all ranks that failed.
    """

    code = "cell-failed"

    def __init__(self, failures: Failures, errors: Mapping[int, Error], *, shown: bool = False) -> None:
        super().__init__(
            failures.sentence(), code=str(failures.error.get("code", "")), hint=str(failures.error.get("hint", ""))
        )
        self.rank = failures.first
        self.error = failures.error
        self.errors = dict(errors)
        self._rest = failures.rest()
        self._shown = shown

    def __str__(self) -> str:
        return "\n".join([super().__str__(), str(self.error.get("traceback", "")).rstrip(), *self._rest]).strip()

    def _render_traceback_(self) -> list[str]:
        """Show one line where the cell's output already tells the rest, else all: local frames mend nothing."""
        return [f"CellFailed: {self.message}"] if self._shown else f"CellFailed: {self}".splitlines()


def failures(errors: Mapping[int, Error], asked: Sequence[int]) -> Failures | None:
    """Return what failed on the ranks that the cell was for; None when nothing did."""
    if not errors:
        return None
    ordered = sorted(errors, key=lambda rank: (_secondary(errors[rank]), _when(errors[rank]), rank))
    first = ordered[0]
    alike = tuple(sorted(rank for rank in ordered[1:] if _same(errors[rank], errors[first])))
    groups: dict[str, list[int]] = {}
    for rank in ordered[1:]:
        if rank not in alike:
            groups.setdefault(what(errors[rank]), []).append(rank)
    others = tuple(
        (tuple(sorted(ranks)), said, max(0.0, max(_when(errors[rank]) for rank in ranks) - _when(errors[first])))
        for said, ranks in groups.items()
    )
    return Failures(tuple(asked), first, errors[first], alike, others)


def what(error: Error) -> str:
    """Return an error as a short phrase: ``KeyError: 'label'``."""
    message = str(error.get("message", "")).strip()
    kind = str(error.get("type", "Error"))
    return f"{kind}: {message.splitlines()[0][:300]}" if message else kind


def _said(ranks: Sequence[int], said: str, after: float) -> str:
    late = f" after {humanize.seconds_taken(after)}" if after >= 0.05 else ""
    return f"{named(ranks).capitalize()}: {said}{late}."


def _secondary(error: Error) -> bool:
    return is_echo(dict(error)) or error.get("type") == "KeyboardInterrupt"


def _when(error: Error) -> float:
    return float(error.get("time") or 0.0)


def _same(one: Error, other: Error) -> bool:
    return (one.get("type"), one.get("message")) == (other.get("type"), other.get("message"))
