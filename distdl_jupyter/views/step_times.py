"""Where the time of training steps went, as text, as HTML that a saved notebook keeps, as a figure and as a table."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import table, theme
from distdl_jupyter.core.humanize import count, number, plural
from distdl_jupyter.core.step_times import PARTS, RankTime, StepTime, StepTimes, Straggler

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

#: The part in which a cause lies, where it is not called the same.
_PART_OF = {"link": "communication"}
_TITLES = {"data": "data", "compute": "compute", "waiting": "waiting for others", "communication": "communication",
           "rest": "rest"}  # fmt: skip
#: Ranks of which text and HTML show a line; of more, the slowest ones are told by the sentence.
_MOST_RANKS = 64


@dataclass(frozen=True, slots=True)
class JobTime:
    """Where the time of a job's training steps went, in seconds: the mean step of each rank, and the newest steps.

    ``says`` is what a person reads above the table; without ``ranks`` it says why there are none. ``own_share`` is the
    part of the ranks' time (0 to 1) that is neither communication nor waiting.
    """

    says: tuple[str, ...]
    samples_per_second: float | None
    own_share: float | None
    straggler: Straggler | None
    ranks: tuple[RankTime, ...]
    steps: tuple[StepTime, ...]


class StepTimesShown(table.Display, StepTimes):
    """The steps of a job as a notebook shows them: ``print``, display, ``to_pandas()`` and ``figure()``."""

    def _parts(self) -> list[str | table.Rows]:
        return [*_sentences(self), *([_rows(self)] if self.rows else [])]

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each rank and step (of long trainings: for ``steps`` steps), its parts in seconds."""
        import pandas as pd

        names = [field.name for field in dataclasses.fields(StepTime)]
        return pd.DataFrame([dataclasses.astuple(row) for row in self.rows], columns=names)

    def figure(self) -> Any:
        """Return a plotly Figure: a bar for each rank with the parts of its mean step; what makes it slow is orange."""
        import plotly.graph_objects as go

        ranks, straggler = self.ranks(), self.straggler
        slow = {(straggler.rank, _PART_OF.get(straggler.cause, straggler.cause))} if straggler else set()
        names = [f"rank {rank_time.rank}" for rank_time in ranks]
        bars = [
            go.Bar(
                name=_TITLES[part],
                y=names,
                x=[1000 * getattr(rank_time, part) for rank_time in ranks],
                orientation="h",
                marker=_look(part, [(rank_time.rank, part) in slow for rank_time in ranks]),
                hovertemplate="%{x:.2f} ms",
            )
            for part in PARTS
        ]
        figure = go.Figure(bars)
        figure.update_layout(barmode="stack", xaxis_title="ms per step", yaxis_autorange="reversed",
                             legend={"orientation": "h", "traceorder": "normal", "y": 1.02, "yanchor": "bottom"},
                             template="simple_white", margin={"t": 40, "r": 20, "b": 50, "l": 20},
                             height=110 + 28 * max(2, len(ranks)))  # fmt: skip
        return figure


def _look(part: str, slow: list[bool]) -> dict[str, Any]:
    """Return plotly's marker of a part: solid, waiting hatched, the rest hollow; orange for those that are slow."""
    colours = [theme.SLOW if is_slow else theme.PARTS[part] for is_slow in slow]
    if part == "waiting":
        return {"color": colours, "pattern": {"shape": "/", "fgcolor": theme.HATCH, "size": 5, "solidity": 0.25}}
    if part == "rest":
        inside = [theme.SLOW if is_slow else theme.SURFACE for is_slow in slow]
        return {"color": inside, "line": {"color": theme.PARTS[part], "width": 1}}
    return {"color": colours}


def displayable(times: StepTimes) -> StepTimesShown:
    """Return the same as a notebook shows it."""
    return StepTimesShown(times.rows, times.hosts, times.sending, times.why, times.ended)


def job_time(times: StepTimes, last: int) -> JobTime:
    """Return the means of the ranks and their ``last`` newest records for a page."""
    newest = sorted({(row.attempt, row.step) for row in times.rows})[-last:] if last else []
    steps = tuple(row for row in times.rows if newest and (row.attempt, row.step) >= newest[0])
    return JobTime(tuple(_sentences(times)), times.samples_per_second, times.own_share,
                   times.straggler, tuple(times.ranks()), steps)  # fmt: skip


def _sentences(times: StepTimes) -> list[str]:
    if not times.rows:
        return [times.why]
    steps = max(rank_time.steps for rank_time in times.ranks())
    rate = times.samples_per_second
    summary = f"{plural(steps, 'step')} measured" + ("" if rate is None else f", {number(rate)} samples per second")
    # Where a rank is slower than the others, the sentence about it says what that costs.
    if len(times.ranks()) > 1 and times.own_share is not None and times.straggler is None:
        summary += f", {100 * (1 - times.own_share):.0f} % of the time is communication and waiting"
    return [f"{summary}.", _comparison(times)]


def _comparison(times: StepTimes) -> str:
    """Return a sentence on which rank is slower than the others."""
    if times.straggler is not None:
        return str(times.straggler)
    if len(times.ranks()) > 1 and not times.has_enough_steps:
        return "Too few steps to tell whether one rank is slower than the others."
    return f"No rank {'was' if times.ended else 'is'} significantly slower than the others."


def _rows(times: StepTimes) -> list[tuple[str, ...]]:
    def parts(row: RankTime) -> Iterator[str]:
        for seconds in (getattr(row, part) for part in PARTS):
            yield f"{1000 * seconds:.2f} ({100 * seconds / (row.seconds or 1):.0f} %)"

    head = ("rank", "host", "steps", "ms per step", *(_TITLES[part] for part in PARTS))
    rows = [
        (str(row.rank), row.host, count(row.steps), f"{1000 * row.seconds:.2f}", *parts(row))
        for row in times.ranks()[:_MOST_RANKS]
    ]
    return [head, *rows]
