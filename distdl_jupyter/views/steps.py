"""Step times, split into parts, and recorded profiles: for notebooks and terminals, as DataFrames, and for pages."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import humanize
from distdl_jupyter.core.errors import DiskRefused, JobNotFound
from distdl_jupyter.core.humanize import clock, count, number, plural, printable, ranks
from distdl_jupyter.core.profiles import Operator, Profile, ProfiledRank
from distdl_jupyter.core.step_times import PARTS, StepTime, StepTimes, Straggler
from distdl_jupyter.views.stacks import group_by_reason
from distdl_jupyter.views.wire import from_fields

if TYPE_CHECKING:
    import pandas as pd

#: Maximum number of displayed operators.
_MAX_OPERATORS = 20
#: Maximum number of ranks that have a column.
_MAX_COLUMNS = 8
#: Operators with a smaller share of the step are not displayed.
_MIN_SHARE = 0.0005


@dataclass(frozen=True, slots=True)
class JobTime:
    """The mean step time of each rank, split into parts, and the newest steps, in seconds.

    ``sentences`` are shown above the table, or explain why ``ranks`` is empty. ``own_share`` is the share of the ranks'
    time (0 to 1) that is neither communication nor waiting.
    """

    sentences: tuple[str, ...]
    samples_per_second: float | None
    own_share: float | None
    straggler: Straggler | None
    ranks: tuple[StepTime, ...]
    steps: tuple[StepTime, ...]


class StepTimesDisplay(humanize.Display, StepTimes):
    """The step times of a job for notebooks and terminals: ``print``, display, ``to_pandas()`` and ``figure()``."""

    def _parts(self) -> list[str | humanize.Rows]:
        return [*_make_sentences(self), *([_make_rows(self)] if self.rows else [])]

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each rank and step, with its parts in seconds. In a long job, a row covers several steps."""
        import pandas as pd

        return pd.DataFrame(map(asdict, self.rows), columns=list(StepTime.__dataclass_fields__))

    def figure(self) -> Any:
        """Return a plotly Figure: a bar for each rank with the parts of its mean step."""
        import plotly.graph_objects as go

        names = [f"rank {rank_time.rank}" for rank_time in self.ranks()]
        figure = go.Figure()
        for part in PARTS:
            times = [1000 * getattr(rank_time, part) for rank_time in self.ranks()]
            figure.add_bar(name=_format_title(part), y=names, x=times, orientation="h", hovertemplate="%{x:.2f} ms")
        figure.update_yaxes(autorange="reversed")
        return figure.update_layout(barmode="stack", xaxis_title="ms per step", legend_traceorder="normal")


def _format_title(part: str) -> str:
    return "waiting for others" if part == "waiting" else part


def make_job_time(times: StepTimes, max_records: int) -> JobTime:
    """Return the mean steps of the ranks and the newest ``max_records`` records as data for a page."""
    newest = sorted({(row.attempt, row.step) for row in times.rows})[-max_records:] if max_records else []
    steps = tuple(row for row in times.rows if newest and (row.attempt, row.step) >= newest[0])
    return JobTime(tuple(_make_sentences(times)), times.samples_per_second, times.own_share,
                   times.straggler, tuple(times.ranks()), steps)  # fmt: skip


def _make_sentences(times: StepTimes) -> list[str]:
    if not times.rows:
        return [times.why]
    rank_times, rate = times.ranks(), times.samples_per_second
    summary = f"{plural(max(rank_time.steps for rank_time in rank_times), 'step')} measured"
    summary += "" if rate is None else f", {number(rate)} samples per second"
    if times.straggler is not None:
        return [f"{summary}.", str(times.straggler)]
    if len(rank_times) > 1 and times.own_share is not None:
        summary += f", {100 * (1 - times.own_share):.0f} % of the time is communication and waiting"
    if len(rank_times) > 1 and not times.has_enough_steps:
        return [f"{summary}.", "Too few steps to tell whether one rank is slower than the others."]
    return [f"{summary}.", f"No rank {'was' if times.ended else 'is'} significantly slower than the others."]


def _make_rows(times: StepTimes) -> list[tuple[str, ...]]:
    rows = [("rank", "host", "steps", "ms per step", *map(_format_title, PARTS))]
    for rank in times.ranks():
        parts = (getattr(rank, part) for part in PARTS)
        shares = (f"{_format_milliseconds(part)} ({100 * part / (rank.seconds or 1):.0f} %)" for part in parts)
        rows.append((str(rank.rank), rank.host, count(rank.steps), _format_milliseconds(rank.seconds), *shares))
    return rows


# profiles ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobProfile:
    """A profile of some steps of a job, with the operators by descending self time.

    ``seconds`` is the mean step time, ``sentences`` explain missing ranks, ``traces`` are the ranks with a trace.
    """

    number: int
    t: float
    steps: int
    seconds: float
    sentences: tuple[str, ...]
    ranks: tuple[ProfiledRank, ...]
    operators: tuple[Operator, ...]
    traces: tuple[int, ...]


class ProfileDisplay(humanize.Display, Profile):
    """A profile for notebooks and terminals: ``print``, display, ``to_pandas()``, ``traces`` and ``save(folder)``."""

    def _parts(self) -> list[str | humanize.Rows]:
        return [*_describe_profile(self), *([_make_operator_rows(self)] if self.operators else [])]

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each operator and rank: self ``seconds`` per step, and the means ``calls`` and ``share``."""
        import pandas as pd

        names = ["operator", "kind", "rank", "calls", "seconds", "share"]
        rows = [(operator.name, operator.kind, rank, operator.calls, seconds, operator.share)
                for operator in self.operators for rank, seconds in sorted(operator.by_rank.items())]  # fmt: skip
        return pd.DataFrame(rows, columns=names)

    def save(self, folder: str | Path) -> list[Path]:
        """Copy the trace of each rank into a folder, which is created if needed, and return the copies.

        Raises JobNotFound if there are no traces, DiskRefused.
        """
        if not self.traces:
            raise JobNotFound("The traces of this profile no longer exist.", code="trace-gone")
        target = Path(folder).expanduser()
        try:
            target.mkdir(parents=True, exist_ok=True)
            return [Path(shutil.copyfile(trace, target / f"profile-{self.number}-{trace.name}"))
                    for trace in self.traces.values()]  # fmt: skip
        except OSError as error:
            message = f"Cannot save the traces in {target}: {error.strerror}."
            raise DiskRefused(message, code="trace-not-saved") from error


def _describe_profile(profile: Profile) -> list[str]:
    rank_list = ranks([rank.rank for rank in profile.ranks])
    summary = (f"{plural(profile.steps, 'step')} of {rank_list}, recorded at {clock(profile.t)}: "
            f"{_format_milliseconds(profile.seconds)} ms per step.")  # fmt: skip
    return [summary, *_describe_missing(profile)]


def _describe_missing(profile: Profile) -> list[str]:
    return [f"{names.capitalize()} recorded no profile: {reason}" for names, reason in group_by_reason(profile.missing)]


def select_operators(profile: Profile) -> list[Operator]:
    """Return the operators to display."""
    return [operator for operator in profile.operators if operator.share >= _MIN_SHARE][:_MAX_OPERATORS]


def _make_operator_rows(profile: Profile) -> list[tuple[str, ...]]:
    columns = [rank.rank for rank in profile.ranks][:_MAX_COLUMNS] if len(profile.ranks) > 1 else []
    names = (f"rank {rank}" for rank in columns)
    rows = [
        (
            printable(operator.name, 60),
            operator.kind,
            f"{round(operator.calls, 1):g}",
            _format_milliseconds(operator.self_seconds),
            f"{100 * operator.share:.1f} %",
            *(_format_milliseconds(operator.by_rank.get(rank, 0.0)) for rank in columns),
        )
        for operator in select_operators(profile)
    ]
    return [("operator", "kind", "calls per step", "own ms per step", "of the step", *names), *rows]


def _format_milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"


def make_job_profile(profile: Profile) -> JobProfile:
    """Return a profile as data for a page."""
    operators = tuple(select_operators(profile))
    return from_fields(JobProfile, profile, sentences=tuple(_describe_missing(profile)), operators=operators,
                       traces=tuple(profile.traces))  # fmt: skip
