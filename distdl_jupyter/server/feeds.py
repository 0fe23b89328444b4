"""Feeds that pages subscribe to: jobs, the list of jobs, the clusters. Each is read once for all pages.

Everything here runs in the event loop and reads in threads. Feeds without subscribers are not read, and are removed
some time after their last page was closed.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tornado.websocket import WebSocketHandler

from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.jobs import study_rows
from distdl_jupyter.jobs.job_list import TURN
from distdl_jupyter.jobs.reader import PageReader
from distdl_jupyter.live.clusters import present
from distdl_jupyter.live.job import LiveJob
from distdl_jupyter.live.messages import ClustersMessage, JobsMessage
from distdl_jupyter.views.job_table import JobRow

if TYPE_CHECKING:
    from distdl_jupyter.server.app import DistDLApp

F = TypeVar("F", bound="Feed")
#: Close code: the server is shutting down (RFC 6455, section 7.4.1).
GOING_AWAY = 1001
#: Seconds between two polls of a file that grew a moment ago, of a quiet one, and of an ended job (it may be deleted).
_POLL, _QUIET_POLL, _ENDED_POLL = 0.03, 0.1, 1.0
#: Seconds before a retry after a failed read.
_RETRY = 2.0


class Feed(ABC):
    """Data that is polled while pages are subscribed; each change sets their events. Used in the event loop only."""

    def __init__(self, app: DistDLApp) -> None:
        self._app = app
        self._subscribers: set[asyncio.Event] = set()
        self._has_subscribers = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        #: The error of the last poll, None after a success.
        self.problem: Exception | None = None
        self.task = asyncio.get_running_loop().create_task(self._run())

    def join(self, notify: asyncio.Event) -> None:
        """Subscribe: set ``notify`` at every change."""
        self._subscribers.add(notify)
        self._has_subscribers.set()
        if self._expiry is not None:
            self._expiry.cancel()

    def leave(self, notify: asyncio.Event) -> None:
        """Unsubscribe."""
        if self._subscribers == {notify}:
            self._has_subscribers.clear()
            self._expiry = asyncio.get_running_loop().call_later(self._app.linger_seconds, self.task.cancel)
        self._subscribers.discard(notify)

    def changed(self) -> None:
        """Notify all subscribers."""
        for notify in self._subscribers:
            notify.set()

    @abstractmethod
    async def poll(self) -> float | None:
        """Read once and return the seconds until the next time, None for the last."""

    async def _run(self) -> None:
        pause: float | None = 0.0
        while pause is not None:
            await asyncio.sleep(pause)
            await self._has_subscribers.wait()
            try:
                pause = await self.poll()
                self.problem = None
            except Exception as error:
                if self.problem is None:
                    self._app.log.exception("Reading data for the pages failed. Retrying.")
                self.problem, pause = error, _RETRY
                self.changed()


class JobFeed(Feed):
    """One job."""

    def __init__(self, app: DistDLApp, id_: str) -> None:
        super().__init__(app)
        self.live = LiveJob(id_)
        self._moved = 0.0

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


class SnapshotFeed(Feed):
    """A value that is read as a whole, None before the first read; each value has a ``key``, also of other servers."""

    value: Any = None
    key = ""

    def update(self, value: Any) -> None:
        """Set the value that was read."""
        if value != self.value:
            self.value, self.key = value, secrets.token_hex(8)
            self.changed()

    @abstractmethod
    def message(self, known: Any) -> JobsMessage | ClustersMessage:
        """Return what a page must receive that has an earlier value, None for nothing."""


class ListFeed(SnapshotFeed):
    """The list of jobs and studies: rows by id. A row that has not changed stays the same object."""

    async def poll(self) -> float:
        """Read what has changed."""
        old = self.value or {}
        rows = await self._app.run(self._rows)
        self.update({row.id: old[row.id] if _is_same(old.get(row.id), row) else row for row in rows})
        return self._app.list_seconds

    def _rows(self) -> list[JobRow]:
        jobs = [job.row for job in self._app.context.listing.all(TURN)]
        return [*jobs, *study_rows.rows(jobs)]

    def message(self, known: dict[str, JobRow] | None) -> JobsMessage:
        """Return the changes, or the whole list."""
        old = known or {}
        rows = tuple(row for id_, row in self.value.items() if old.get(id_) is not row)
        removed = tuple(id_ for id_ in old if id_ not in self.value)
        return JobsMessage(rows, removed, whole=known is None, key=self.key, type="jobs")


def _is_same(old: JobRow | None, new: JobRow) -> bool:
    """Return whether rows are equal apart from the remaining time, which changes with every poll."""
    return old is new or (old is not None and replace(old, left=None) == replace(new, left=None))


class ClustersFeed(SnapshotFeed):
    """The clusters."""

    async def poll(self) -> float:
        """Poll the clusters."""
        context = self._app.context
        self.update(await present(context.run, context.listing, context.clusters))
        return self._app.clusters_seconds

    def message(self, _known: object) -> ClustersMessage:
        """Return all clusters."""
        return ClustersMessage(self.value, self.key, "clusters")


class Feeds:
    """All feeds of this server, and the open pages. Used in the event loop only."""

    def __init__(self, app: DistDLApp) -> None:
        #: Different for each process of the server.
        self.server_id = secrets.token_hex(8)
        self.pages: set[WebSocketHandler] = set()
        self.app = app
        self._all: dict[object, Any] = {}

    def get(self, kind: type[F], *args: str) -> F:
        """Return a feed, such as that of a job with an id, which may not exist."""
        key = kind, *args
        feed: F | None = self._all.get(key)
        if feed is None or feed.task.done() or feed.task.cancelling():
            feed = new = self._all[key] = kind(self.app, *args)
            feed.task.add_done_callback(lambda _: self._all.get(key) is new and self._all.pop(key))
        return feed

    async def read_job(self, id_: str, function: Callable[[PageReader], Any]) -> Any:
        """Run a function in a thread with the reader of a job, which has read all there is. Raises JobNotFound."""
        feed, notify = self.get(JobFeed, id_), asyncio.Event()
        live = feed.live
        feed.join(notify)
        try:
            while not (live.complete or live.gone) and feed.problem is None:
                await notify.wait()
                notify.clear()
            if feed.problem is not None:
                raise feed.problem
            await self.app.run(live.poll)  # the job may have been deleted since the last time
            if live.gone:
                raise JobNotFound(f"Unknown job {id_!r}.", code="job-deleted")
            return await self.app.run(live.use, function)
        finally:
            feed.leave(notify)

    def stop(self) -> None:
        """Close all connections and stop all feeds."""
        for page in list(self.pages):
            page.close(GOING_AWAY, "The server is shutting down.")
        for feed in list(self._all.values()):
            feed.task.cancel()
