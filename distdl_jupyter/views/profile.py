"""A profile as a display for notebooks and terminals, as a DataFrame, and as data for a page."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distdl_jupyter.core import table
from distdl_jupyter.core.errors import DiskRefused, JobNotFound
from distdl_jupyter.core.humanize import clock, plural, ranks
from distdl_jupyter.core.profiles import Operator, Profile, ProfiledRank
from distdl_jupyter.views.wire import from_fields

if TYPE_CHECKING:
    import pandas as pd

#: Maximum number of operators, and of ranks with their own column.
_MOST_OPERATORS, _MOST_RANKS = 20, 8
#: Share of a step below which an operator is left out; maximum length of a name.
_LEAST_SHARE, _LONGEST = 0.0005, 60


@dataclass(frozen=True, slots=True)
class JobProfile:
    """Recorded steps of a job: the operators with the most time of their own, most first.

    ``seconds`` is the mean step time. ``says`` has a sentence for each missing rank. ``traces`` are the ranks that
    have a Chrome trace.
    """

    number: int
    t: float
    steps: int
    seconds: float
    says: tuple[str, ...]
    ranks: tuple[ProfiledRank, ...]
    operators: tuple[Operator, ...]
    traces: tuple[int, ...]


class ProfileShown(table.Display, Profile):
    """A profile as a notebook shows it: ``print``, display, ``to_pandas()``, ``traces`` and ``save(folder)``."""

    def _parts(self) -> list[str | table.Rows]:
        return [*_sentences(self), *([_rows(self)] if self.operators else [])]

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each operator and rank: ``operator``, ``kind``, ``rank`` and its own ``seconds`` a step.

        ``calls`` a step and the ``share`` of the step are the mean over ranks.
        """
        import pandas as pd

        names = ["operator", "kind", "rank", "calls", "seconds", "share"]
        rows = [(operator.name, operator.kind, rank, operator.calls, seconds, operator.share)
                for operator in self.operators for rank, seconds in sorted(operator.by_rank.items())]  # fmt: skip
        return pd.DataFrame(rows, columns=names)

    def save(self, folder: str | Path) -> list[Path]:
        """Copy the trace of each rank into a folder, which is created if needed, and return the copies.

        Raises JobNotFound when there are none, DiskRefused.
        """
        if not self.traces:
            raise JobNotFound("The traces of this profile no longer exist.", code="trace-gone")
        target = Path(folder).expanduser()
        try:
            target.mkdir(parents=True, exist_ok=True)
            return [Path(shutil.copyfile(trace, target / f"profile-{self.number}-{trace.name}"))
                    for trace in self.traces.values()]  # fmt: skip
        except OSError as error:
            raise DiskRefused(
                f"The traces cannot be saved in {target}: {error.strerror}.", code="trace-not-saved"
            ) from error


def _sentences(of: Profile) -> list[str]:
    who = ranks([part.rank for part in of.ranks])
    outliers = [_outlier(operator) for operator in of.operators if operator.stands_out is not None]
    head = f"{plural(of.steps, 'step')} of {who}, recorded at {clock(of.t)}: {_milliseconds(of.seconds)} ms per step."
    return [head, *outliers[:3], *_missing(of)]


def _missing(of: Profile) -> list[str]:
    alike: dict[str, list[int]] = {}
    for rank, why in sorted(of.missing.items()):
        alike.setdefault(why, []).append(rank)
    return [f"{ranks(which).capitalize()} recorded no profile: {why}" for why, which in alike.items()]


def _outlier(operator: Operator) -> str:
    seconds = operator.by_rank.get(operator.stands_out or 0, 0.0)
    than = f", {operator.times:.1f} times as long as" if operator.times else ", but no time"
    name, rank = _short(operator.name), operator.stands_out
    return f"{name} needs {_milliseconds(seconds)} ms per step on rank {rank}{than} on the other ranks."


def shown(of: Profile) -> list[Operator]:
    """Return the operators that are shown."""
    return [operator for operator in of.operators if operator.share >= _LEAST_SHARE][:_MOST_OPERATORS]


def _rows(of: Profile) -> list[tuple[str, ...]]:
    columns = [part.rank for part in of.ranks][:_MOST_RANKS] if len(of.ranks) > 1 else []
    ranks_of = (f"rank {rank}" for rank in columns)
    rows = [("operator", "kind", "calls per step", "own ms per step", "of the step", *ranks_of, "outlier")]
    for operator in shown(of):
        times = f", {operator.times:.1f}x" if operator.times else ""
        rows.append(
            (
                _short(operator.name),
                operator.kind,
                f"{operator.calls:g}" if operator.calls == int(operator.calls) else f"{operator.calls:.1f}",
                _milliseconds(operator.own),
                f"{100 * operator.share:.1f} %",
                *(_milliseconds(operator.by_rank.get(rank, 0.0)) for rank in columns),
                "" if operator.stands_out is None else f"rank {operator.stands_out}{times}",
            )
        )
    return rows


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"


def job_profile(of: Profile) -> JobProfile:
    """Return a profile for a page."""
    return from_fields(JobProfile, of, says=tuple(_missing(of)), operators=tuple(shown(of)), traces=tuple(of.traces))
