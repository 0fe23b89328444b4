"""Sources that pages subscribe to: jobs, the list of jobs, the clusters. Each is read once for all pages.

Everything here runs in the event loop and reads in threads. Sources without subscribers are not read, and
are removed some time after their last page was closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.state import State
from distdl_jupyter.jobs import study_rows
from distdl_jupyter.jobs.job_list import TURN
from distdl_jupyter.live.clusters import present
from distdl_jupyter.live.job import LiveJob
from distdl_jupyter.live.messages import ClustersMessage, JobsMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from tornado.websocket import WebSocketHandler

    from distdl_jupyter.jobs.reader import PageReader
    from distdl_jupyter.live.clusters import Cluster
    from distdl_jupyter.server.app import DistDLApp
    from distdl_jupyter.views.job_table import JobRow

#: Close code: the server is shutting down (RFC 6455, section 7.4.1).
GOING_AWAY = 1001
#: Seconds between two polls of a file that grew a moment ago, of a quiet one, and of an ended job (it may be deleted).
_POLL, _QUIET_POLL, _ENDED_POLL = 0.03, 0.1, 1.0
#: Seconds before a retry after a failed read.
_RETRY = 2.0


class Source(ABC):
    """Data that is polled while pages are subscribed; each change sets their events. Used in the event loop only."""

    def __init__(self, app: DistDLApp) -> None:
        self._app = app
        self._waiting: set[asyncio.Event] = set()
        self._left = time.monotonic()
        self._wake = asyncio.Event()
        #: The error of the last poll, None after a success.
        self.problem: Exception | None = None
        self.task = asyncio.get_running_loop().create_task(self._run())

    def join(self, notify: asyncio.Event) -> None:
        """Subscribe: set ``notify`` at every change."""
        self._waiting.add(notify)
        self._wake.set()

    def leave(self, notify: asyncio.Event) -> None:
        """Unsubscribe."""
        self._waiting.discard(notify)
        self._left = time.monotonic()

    def changed(self) -> None:
        """Notify all subscribers."""
        for notify in self._waiting:
            notify.set()

    @abstractmethod
    async def poll(self) -> float | None:
        """Read once and return the seconds until the next time, None for the last."""

    async def _run(self) -> None:
        pause: float | None
        while self._waiting or time.monotonic() - self._left < self._app.linger_seconds:
            pause = self._app.linger_seconds / 10
            if self._waiting:
                try:
                    pause = await self.poll()
                    self.problem = None
                except Exception as error:
                    if self.problem is None:
                        self._app.log.exception("Reading data for the pages failed. Retrying.")
                    self.problem, pause = error, _RETRY
                    self.changed()
            if pause is None:
                return
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)


class JobSource(Source):
    """One job."""

    def __init__(self, app: DistDLApp, id_: str) -> None:
        self.live = LiveJob(id_)
        self._moved = 0.0
        super().__init__(app)

    async def poll(self) -> float | None:
        """Read the job's files."""
        live, complete = self.live, self.live.complete
        moved = await self._app.run(live.poll)
        if live.gone:
            self.changed()
            return None
        if live.settled and not moved:
            return _ENDED_POLL
        if moved or live.complete != complete:
            self._moved = time.monotonic()
            self.changed()
            return _POLL if live.complete else 0.0
        return _POLL if time.monotonic() - self._moved < 5 else _QUIET_POLL


class ListSource(Source):
    """The list of jobs and studies. ``mark`` counts its changes; each row has the number of its last change."""

    def __init__(self, app: DistDLApp) -> None:
        self.mark = 0
        self._rows: dict[str, tuple[int, JobRow]] = {}
        self._removed: dict[str, int] = {}
        super().__init__(app)

    async def poll(self) -> float:
        """Read what has changed."""
        if self._update(await self._app.run(self._newest)):
            self.changed()
        return float(self._app.list_seconds)

    def _newest(self) -> dict[str, JobRow]:
        jobs = [job.row for job in self._app.context.listing.all(TURN)]
        return {row.id: row for row in (*jobs, *study_rows.rows(jobs))}

    def _update(self, rows: dict[str, JobRow]) -> bool:
        old = self._rows
        new = {id_ for id_, row in rows.items() if id_ not in old or _differ(old[id_][1], row)}
        lost = [id_ for id_ in old if id_ not in rows]
        if not new and not lost and self.mark:
            return False
        self.mark += 1
        self._removed.update(dict.fromkeys(lost, self.mark))
        self._rows = {id_: (self.mark, row) if id_ in new else old[id_] for id_, row in rows.items()}
        return True

    def message(self, since: int, key: str) -> JobsMessage:
        """Return the changes since a mark; 0 returns the whole list."""
        rows = [row for _, row in self._rows.values() if not study_rows.is_study(row)]
        return JobsMessage(
            rows=tuple(row for mark, row in self._rows.values() if mark > since),
            removed=tuple(id_ for id_, mark in self._removed.items() if mark > since) if since else (),
            whole=since == 0,
            total=len(rows),
            active=sum(not State(row.state).ended for row in rows),
            failed=sum(row.state == State.FAILED.value for row in rows),
            key=key,
            type="jobs",
        )


def _differ(old: JobRow, new: JobRow) -> bool:
    """Return whether a row has changed, apart from the remaining time, which changes with every poll."""
    return old is not new and dataclasses.replace(old, left=None) != dataclasses.replace(new, left=None)


class ClustersSource(Source):
    """The clusters. ``mark`` counts their changes."""

    def __init__(self, app: DistDLApp) -> None:
        self.mark = 0
        self._clusters: tuple[Cluster, ...] = ()
        super().__init__(app)

    async def poll(self) -> float:
        """Poll the clusters."""
        context = self._app.context
        clusters = await present(context.run, context.listing, context.clusters)
        if clusters != self._clusters or not self.mark:
            self._clusters, self.mark = clusters, self.mark + 1
            self.changed()
        return float(self._app.clusters_seconds)

    def message(self, _since: int, key: str) -> ClustersMessage:
        """Return all clusters."""
        return ClustersMessage(self._clusters, key, "clusters")


class Sources:
    """All sources of this server, and the open pages. Used in the event loop only."""

    def __init__(self, app: DistDLApp) -> None:
        #: Different for each process of the server.
        self.server_id = secrets.token_hex(8)
        self.pages: set[WebSocketHandler] = set()
        self.app = app
        self._all: dict[object, Any] = {}

    def job(self, id_: str) -> JobSource:
        """Return the source of a job, which may not exist."""
        source: JobSource = self._get(id_, lambda: JobSource(self.app, id_))
        return source

    def of(self, kind: type[ListSource | ClustersSource]) -> ListSource | ClustersSource:
        """Return the list of jobs, or the clusters."""
        source: ListSource | ClustersSource = self._get(kind, lambda: kind(self.app))
        return source

    def _get(self, key: object, make: Callable[[], Source]) -> Any:
        source = self._all.get(key)
        if source is None or source.task.done():
            source = self._all[key] = make()
            source.task.add_done_callback(lambda _: self._all.get(key) is source and self._all.pop(key))
        return source

    async def read_job(self, id_: str, function: Callable[[PageReader], Any]) -> Any:
        """Run a function in a thread with the reader of a job, which has read all there is. Raises JobNotFound."""
        source, notify = self.job(id_), asyncio.Event()
        live = source.live
        source.join(notify)
        try:
            while not (live.complete or live.gone) and source.problem is None:
                await notify.wait()
                notify.clear()
            if source.problem is not None:
                raise source.problem
            await self.app.run(live.poll)  # the job may have been deleted since the last time
            if live.gone:
                raise JobNotFound(f"Unknown job {id_!r}.", code="job-deleted")
            return await self.app.run(live.use, function)
        finally:
            source.leave(notify)

    def stop(self) -> None:
        """Close all connections and stop all sources."""
        for page in list(self.pages):
            page.close(GOING_AWAY, "The server is shutting down.")
        for source in list(self._all.values()):
            source.task.cancel()
