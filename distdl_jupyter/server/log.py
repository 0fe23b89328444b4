"""What of a job streams, asked for by itself: rows of its log, the whole log as a file, its metrics, a curve.

The job is read by the same reader as for the stream, so pages that come later find it read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import parts
from distdl_jupyter.core.humanize import clock
from distdl_jupyter.core.logline import lines_of
from distdl_jupyter.core.printable import printable
from distdl_jupyter.jobs.follow import Follower
from distdl_jupyter.server.base import Handler, answers, checked_id
from distdl_jupyter.server.jobs import attached
from distdl_jupyter.server.messages import CurveQuery, LogQuery, MetricSeries, MetricsList, MetricsQuery, RankSeries
from distdl_jupyter.views import curve
from distdl_jupyter.views.job_page import log_changes
from distdl_jupyter.views.job_table import default_metric
from distdl_jupyter.views.schema import Curve, LogChanges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distdl_jupyter.jobs.readers import Reading


class JobLog(Handler):
    """The log of one job."""

    @answers(LogChanges, query=LogQuery, media="text/plain", refuses=(404,))
    async def get(self, id_: str, query: LogQuery) -> LogChanges | None:
        """Return rows of the log, or all of it as a file (``format=text``)."""
        if query.format == "text":
            await self._download(checked_id(id_), query.rank)
            return None
        async with self.app.sources.opened(checked_id(id_)) as live:
            found: LogChanges = await self.run_in_thread(live.use, lambda reading: _rows(reading, query))
        return found

    async def _download(self, id_: str, rank: int | None) -> None:
        pieces = await self.run_in_thread(lambda: _text(Follower(attached(id_).folder), rank))
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("Cache-Control", "no-store")
        self.set_attachment_header(f"{id_}{'' if rank is None else f'-rank-{rank}'}.log")
        while (piece := await self.run_in_thread(next, pieces, None)) is not None:
            self.write(piece)
            await self.flush()
        self.finish(set_content_type="text/plain; charset=utf-8")


def _rows(reading: Reading, query: LogQuery) -> LogChanges:
    """Return the newest ``limit`` rows of those that are asked for."""
    book = reading.log
    before = book.next if query.before is None else query.before
    if query.rank is None:
        found = [row for row in reading.window.before(before, query.limit) if row.n >= query.first]
    else:
        found = [row for row in book.between(query.first, before) if query.rank in row.lines][-query.limit :]
    return log_changes(book, found)


def _text(follower: Follower, rank: int | None) -> Iterator[bytes]:
    """Yield the lines as far as they are there now, some megabytes at a time; each with its time and rank."""
    several = follower.view.process_count > 1
    end = parts.size(follower.folder.log)
    while follower.log_cursor < end and (batch := follower.read()):
        lines = [line for line in lines_of(batch) if rank is None or line.rank == rank]
        yield "".join(
            f"{clock(line.time)} {_who(line.rank) if several and rank is None else ''}{printable(line.text, 1 << 20)}\n"
            for line in lines
        ).encode("utf-8", "replace")


def _who(rank: int | None) -> str:
    return "     " if rank is None else f"[{rank}] ".rjust(5)


class JobMetrics(Handler):
    """All that a job has reported, as numbers."""

    @answers(MetricsList, query=MetricsQuery, refuses=(404,))
    async def get(self, id_: str, query: MetricsQuery) -> MetricsList:
        """Return the series of each rank, reduced to a number of points; short series are exact."""
        async with self.app.sources.opened(checked_id(id_)) as live:
            found: MetricsList = await self.run_in_thread(live.use, lambda reading: _metrics(reading, query))
        return found


def _metrics(reading: Reading, query: MetricsQuery) -> MetricsList:
    names = [name for name in reading.book.names if not query.name or name == query.name]
    return MetricsList(tuple(MetricSeries(name, _ranks(reading, name, query.points)) for name in names))


def _ranks(reading: Reading, name: str, points: int) -> tuple[RankSeries, ...]:
    lines = reading.book.lines(name, points)
    return tuple(
        RankSeries(one.rank, tuple(one.steps), tuple(one.values), tuple(one.lows), tuple(one.highs), tuple(one.times))
        for one in lines
    )


class JobCurve(Handler):
    """A drawn metric."""

    @answers(Curve, query=CurveQuery, refuses=(404,))
    async def get(self, id_: str, query: CurveQuery) -> Curve:
        """Return a metric as a plotly figure and as text; an unknown one gives an empty plot."""
        async with self.app.sources.opened(checked_id(id_)) as live:
            found: Curve = await self.run_in_thread(live.use, lambda reading: _curve(reading, query))
        return found


def _curve(reading: Reading, query: CurveQuery) -> Curve:
    options: dict[str, Any] = {"width": query.width, "height": query.height}
    metric = query.metric or default_metric(reading.book.names)
    return curve.curve(reading.book, metric, mode=query.mode, log=query.log, dark=query.dark,
                       earlier=reading.earlier, **options)  # fmt: skip
