"""Feeds that pages subscribe to: single jobs, the job list and the clusters. Each is read once for all pages.

Feeds run in the event loop and read in threads. A feed is removed some time after its last page has closed.
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
from distdl_jupyter.jobs.job_list import LIST_READ_SECONDS
from distdl_jupyter.jobs.reader import PageReader
from distdl_jupyter.live.clusters import read_clusters
from distdl_jupyter.live.job import LiveJob
from distdl_jupyter.live.messages import ClustersMessage, JobsMessage
from distdl_jupyter.views.job_table import JobRow

if TYPE_CHECKING:
    from distdl_jupyter.server.app import DistDLApp

F = TypeVar("F", bound="Feed")
#: Close code: the server is shutting down (RFC 6455, section 7.4.1).
GOING_AWAY = 1001
_POLL_SECONDS = 0.03  #: Seconds between two polls of a job with new data.
_QUIET_POLL_SECONDS = 0.1  #: Seconds between two polls of a job without new data.
_ENDED_POLL_SECONDS = 1.0  #: Seconds between two polls of an ended job, which may be deleted.
#: Seconds before a retry after a failed read.
_RETRY_SECONDS = 2.0


class Feed(ABC):
    """Data that is polled until no page has been subscribed for ``linger_seconds``. Used in the event loop only."""

    def __init__(self, app: DistDLApp) -> None:
        self._app = app
        #: The events of the subscribed pages, which are set at every change.
        self.subscribers: set[asyncio.Event] = set()
        #: The error of the last poll, or None if it succeeded.
        self.problem: Exception | None = None
        self.task = asyncio.get_running_loop().create_task(self._run())

    def notify_subscribers(self) -> None:
        """Notify all subscribers."""
        for notify in self.subscribers:
            notify.set()

    @abstractmethod
    async def poll(self) -> float | None:
        """Read once and return the seconds until the next poll, or None to stop."""

    async def _run(self) -> None:
        pause: float | None = 0.0
        last_used = time.monotonic()
        while pause is not None:
            await asyncio.sleep(pause)
            if self.subscribers:
                last_used = time.monotonic()
            elif time.monotonic() > last_used + self._app.linger_seconds:
                return
            try:
                pause = await self.poll()
                self.problem = None
            except Exception as error:
                if self.problem is None:
                    self._app.log.exception("Reading data for the pages failed. Retrying.")
                self.problem, pause = error, _RETRY_SECONDS
                self.notify_subscribers()


class JobFeed(Feed):
    """The state, log and curves of one job."""

    def __init__(self, app: DistDLApp, id_: str) -> None:
        super().__init__(app)
        self.live = LiveJob(id_)

    async def poll(self) -> float | None:
        """Read the job's files."""
        live, had_first_log = self.live, self.live.has_first_log
        has_new_data = await self._app.run(live.poll)
        if live.is_deleted:
            self.notify_subscribers()
            return None
        if has_new_data or live.has_first_log != had_first_log:
            self.notify_subscribers()
            return _POLL_SECONDS if live.has_first_log else 0.0
        return _ENDED_POLL_SECONDS if live.is_settled else _QUIET_POLL_SECONDS


class SnapshotFeed(Feed):
    """A value that is read as a whole, or None before the first read. ``key`` identifies the value across servers."""

    value: Any = None
    key = ""

    def update(self, value: Any) -> None:
        """Store a newly read value and notify subscribers if it has changed."""
        if value != self.value:
            self.value, self.key = value, secrets.token_hex(8)
            self.notify_subscribers()

    @abstractmethod
    def create_message(self, previous: Any) -> JobsMessage | ClustersMessage:
        """Return the message for a page that has the value ``previous``, or for a new page if it is None."""


class ListFeed(SnapshotFeed):
    """The job list, with studies: rows by id. An unchanged row stays the same object."""

    async def poll(self) -> float:
        """Read the rows that have changed."""
        old_rows = self.value or {}
        jobs = await self._app.run(lambda: [job.row for job in self._app.context.job_index.read_all(LIST_READ_SECONDS)])
        rows = {row.id: row for row in (*jobs, *await self._app.run(study_rows.list_studies, jobs))}
        for id_, row in rows.items():
            old_row = old_rows.get(id_, row)
            # The remaining time changes with every poll, so it does not count.
            if old_row is not row and replace(old_row, remaining=None) == replace(row, remaining=None):
                rows[id_] = old_row
        self.update(rows)
        return self._app.list_seconds

    def create_message(self, previous: dict[str, JobRow] | None) -> JobsMessage:
        """Return the changes since the ``previous`` value, or the whole list."""
        old_rows = previous or {}
        rows = tuple(row for id_, row in self.value.items() if old_rows.get(id_) is not row)
        removed = tuple(id_ for id_ in old_rows if id_ not in self.value)
        return JobsMessage(rows, removed, whole=previous is None, key=self.key, type="jobs")


class ClustersFeed(SnapshotFeed):
    """The current state of all clusters."""

    async def poll(self) -> float:
        """Poll the clusters."""
        context = self._app.context
        self.update(await read_clusters(context.run, context.job_index, context.cluster_status))
        return self._app.clusters_seconds

    def create_message(self, _previous: object) -> ClustersMessage:
        """Return all clusters."""
        return ClustersMessage(self.value, self.key, "clusters")


class Feeds:
    """All feeds of this server, and the open pages. Used in the event loop only."""

    def __init__(self, app: DistDLApp) -> None:
        #: A random id of this server process.
        self.server_id = secrets.token_hex(8)
        self.pages: set[WebSocketHandler] = set()
        self.app = app
        self._feeds: dict[object, Any] = {}

    def get(self, feed_type: type[F], *args: str) -> F:
        """Return the feed with this type and these arguments; create it if necessary. The job need not exist."""
        key = feed_type, *args
        feed: F | None = self._feeds.get(key)
        if feed is None or feed.task.done():
            feed = new_feed = self._feeds[key] = feed_type(self.app, *args)
            feed.task.add_done_callback(lambda _: self._feeds.get(key) is new_feed and self._feeds.pop(key))
        return feed

    async def read_job(self, id_: str, function: Callable[[PageReader], Any]) -> Any:
        """Run a function in a thread with the reader of a job, after it has read all data. Raises JobNotFound."""
        feed, notify = self.get(JobFeed, id_), asyncio.Event()
        live = feed.live
        feed.subscribers.add(notify)
        try:
            while not (live.has_first_log or live.is_deleted) and feed.problem is None:
                await notify.wait()
                notify.clear()
            if feed.problem is not None:
                raise feed.problem
            await self.app.run(live.poll)  # the job may have been deleted since the last poll
            if live.is_deleted:
                raise JobNotFound(f"Job {id_} does not exist or has been deleted.", code="job-deleted")
            return await self.app.run(live.call_with_reader, function)
        finally:
            feed.subscribers.discard(notify)

    def stop(self) -> None:
        """Close all connections and stop all feeds."""
        for page in list(self.pages):
            page.close(GOING_AWAY, "The server is shutting down.")
        for feed in list(self._feeds.values()):
            feed.task.cancel()
