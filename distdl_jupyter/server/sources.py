"""What pages look at now: jobs, the list of jobs, the clusters; each is read once, however many pages look.

Everything here runs in the event loop and hands the reading to threads. Nothing is read while nobody looks, and a
source is forgotten some time after the last one looked away.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from distdl_jupyter.api.clusters import shown
from distdl_jupyter.api.messages import JobsMessage
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.jobs import study_rows
from distdl_jupyter.live.job import LiveJob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from distdl_jupyter.api.clusters import Cluster
    from distdl_jupyter.server.app import DistDLApp
    from distdl_jupyter.views.job_table import JobRow

T = TypeVar("T")
S = TypeVar("S", bound="Source")

#: Why a connection ends: the server goes away (RFC 6455, section 7.4.1).
GOING_AWAY = 1001
#: Seconds between two looks at a file that grew a moment ago, at a quiet one, and whether an ended job is still there.
_POLL, _QUIET_POLL, _ENDED_POLL = 0.03, 0.1, 1.0


class Source(ABC):
    """Something that is read while pages look at it; ``changed`` tells them. Used in the event loop only."""

    #: Seconds before the next try when reading failed.
    _RETRY: ClassVar[float] = 2.0

    def __init__(self, app: DistDLApp, forget: Callable[[], None]) -> None:
        self._app = app
        self._forget = forget
        self._waiting: set[asyncio.Event] = set()
        self._left = time.monotonic()
        self._wake = asyncio.Event()
        #: What went wrong the last time, None when all went well.
        self.problem: Exception | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    def join(self, notify: asyncio.Event) -> None:
        """Let ``notify`` be set at every change."""
        self._waiting.add(notify)
        self._wake.set()

    def leave(self, notify: asyncio.Event) -> None:
        """Undo ``join``."""
        self._waiting.discard(notify)
        self._left = time.monotonic()

    def stop(self) -> None:
        """Read no more."""
        self._task.cancel()

    def changed(self) -> None:
        """Tell all who look."""
        for notify in self._waiting:
            notify.set()

    @abstractmethod
    async def look(self) -> float | None:
        """Read once and return the seconds until the next look, None when there is nothing more to look at."""

    async def run_in_thread(self, function: Callable[[], T]) -> T:
        """Run something in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._app.pool, function)

    async def _run(self) -> None:
        try:
            while self._waiting or time.monotonic() - self._left < self._app.linger_seconds:
                pause = await self._looked() if self._waiting else self._app.linger_seconds / 10
                if pause is None:
                    return
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)
        finally:
            self._forget()

    async def _looked(self) -> float | None:
        try:
            pause = await self.look()
        except Exception as error:
            if self.problem is None:
                self._app.log.exception("Reading data for the pages failed. Retrying.")
            self.problem = error
            self.changed()
            return self._RETRY
        self.problem = None
        return pause


class JobSource(Source):
    """One job; ``live`` is None until it was opened, ``gone`` says that there is no such job (any more)."""

    def __init__(self, app: DistDLApp, forget: Callable[[], None], id_: str) -> None:
        self.live: LiveJob | None = None
        self.gone = False
        self._id = id_
        self._moved = 0.0
        super().__init__(app, forget)

    async def look(self) -> float | None:
        """Read the job's files."""
        if self.live is None:
            return await self._open()
        live, complete = self.live, self.live.complete
        moved = await self.run_in_thread(live.look)
        if moved is None:
            self._is_gone()
            return None
        if live.settled and not moved:
            return _ENDED_POLL
        if moved or live.complete != complete:
            self._moved = time.monotonic()
            self.changed()
            return _POLL if live.complete else 0.0
        return _POLL if time.monotonic() - self._moved < 5 else _QUIET_POLL

    async def _open(self) -> float | None:
        try:
            self.live = await self.run_in_thread(lambda: LiveJob(JobStore().find(self._id)))
        except JobNotFound:
            self._is_gone()
            return None
        return 0.0

    def _is_gone(self) -> None:
        self.gone = True
        self._forget()
        self.changed()

    @property
    def complete(self) -> bool:
        """Whether there is an answer to everything that can be asked of the job."""
        return self.gone or (self.live is not None and self.live.complete)


class ListSource(Source):
    """The list of jobs and studies with, for each row, the number of the change that brought it; they count from 1."""

    def __init__(self, app: DistDLApp, forget: Callable[[], None]) -> None:
        self.mark = 0
        self._rows: dict[str, tuple[int, JobRow]] = {}
        self._removed: dict[str, int] = {}
        super().__init__(app, forget)

    async def look(self) -> float:
        """Read what has changed."""
        if self._take(await self.run_in_thread(self._rows_of_now)):
            self.changed()
        return float(self._app.list_seconds)

    def _rows_of_now(self) -> dict[str, JobRow]:
        jobs = [one.row for one in self._app.listing.known()]
        return {row.id: row for row in (*jobs, *study_rows.rows(jobs))}

    def _take(self, rows: dict[str, JobRow]) -> bool:
        mark = self.mark + 1
        new = {id_: row for id_, row in rows.items() if id_ not in self._rows or _differ(self._rows[id_][1], row)}
        lost = [id_ for id_ in self._rows if id_ not in rows]
        if not new and not lost and self.mark:
            return False
        self.mark = mark
        self._removed.update(dict.fromkeys(lost, mark))
        self._rows = {id_: (mark, row) if id_ in new else self._rows[id_] for id_, row in rows.items()}
        return True

    def message(self, since: int, key: str) -> JobsMessage:
        """Return what changed since a mark; 0 is the whole list."""
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
    """Say whether a row says something new; the time left alone changes with every look."""
    return old is not new and dataclasses.replace(old, left=None) != dataclasses.replace(new, left=None)


class ClustersSource(Source):
    """The clusters, and the number of the change that brought them."""

    def __init__(self, app: DistDLApp, forget: Callable[[], None]) -> None:
        self.clusters: tuple[Cluster, ...] = ()
        self.mark = 0
        super().__init__(app, forget)

    async def look(self) -> float:
        """Ask the clusters."""
        found = await shown(self._app.context())
        if found != self.clusters or not self.mark:
            self.clusters, self.mark = found, self.mark + 1
            self.changed()
        return float(self._app.clusters_seconds)


class Page(Protocol):
    """Somebody who is told of sources, and who is let go when the server stops."""

    def close(self, code: int, reason: str) -> None:
        """End the connection with a code of RFC 6455, section 7.4."""


class Sources:
    """All sources of this server, and the pages that are open. Used in the event loop only."""

    def __init__(self, app: DistDLApp) -> None:
        #: Another one for each process of the server.
        self.server_id = secrets.token_hex(8)
        self.pages: set[Page] = set()
        self._app = app
        self._all: dict[object, Source] = {}

    def job(self, id_: str) -> JobSource:
        """Return the job of an id; it may turn out to be gone."""
        return self._kept(id_, lambda forget: JobSource(self._app, forget, id_))

    def jobs(self) -> ListSource:
        """Return the list of jobs."""
        return self._kept(ListSource, lambda forget: ListSource(self._app, forget))

    def clusters(self) -> ClustersSource:
        """Return the clusters."""
        return self._kept(ClustersSource, lambda forget: ClustersSource(self._app, forget))

    def _kept(self, key: object, make: Callable[[Callable[[], None]], S]) -> S:
        known: Any = self._all.get(key)
        if known is None:
            made: list[S] = []
            known = make(lambda: self._drop(key, made))
            made.append(known)
            self._all[key] = known
        return known  # type: ignore[no-any-return]

    def _drop(self, key: object, made: list[Any]) -> None:
        if made and self._all.get(key) is made[0]:
            del self._all[key]

    @contextlib.asynccontextmanager
    async def opened(self, id_: str) -> AsyncIterator[LiveJob]:
        """Give a job as it is now. Raises JobNotFound."""
        source, notify = self.job(id_), asyncio.Event()
        source.join(notify)
        try:
            while not source.complete and source.problem is None:
                await notify.wait()
                notify.clear()
            if source.problem is not None:
                raise source.problem
            # The job may have been deleted since the source was read last.
            if source.gone or source.live is None or await source.run_in_thread(source.live.look) is None:
                raise JobNotFound(f"Unknown job {id_!r}.", code="job-deleted")
            yield source.live
        finally:
            source.leave(notify)

    def stop(self) -> None:
        """Let all pages go and forget everything."""
        for page in list(self.pages):
            page.close(GOING_AWAY, "The server is shutting down.")
        for source in list(self._all.values()):
            source.stop()
