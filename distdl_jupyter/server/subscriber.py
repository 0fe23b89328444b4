"""One page's subscription, served: the jobs, the list of jobs and the clusters that it wants to be told of."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from distdl_jupyter.api.messages import ClustersMessage
from distdl_jupyter.core.store import is_id
from distdl_jupyter.live.subscriber import JobSubscriber, welcome
from distdl_jupyter.views.wire import encode

if TYPE_CHECKING:
    from distdl_jupyter.api.messages import Subscription
    from distdl_jupyter.server.sources import JobSource, Source, Sources


class Subscriber:
    """A page's subscription, served: ask ``due`` when ``wait`` returns, ``close`` at the end.

    ``notify`` is set whenever there may be something to tell.
    """

    def __init__(self, sources: Sources, wanted: Subscription, notify: asyncio.Event) -> None:
        self._server_id = sources.server_id
        self._notify = notify
        #: The number of the subscription, until the page was told that it counts.
        self._new: int | None = wanted.number
        self._list = sources.jobs() if wanted.jobs else None
        self._clusters = sources.clusters() if wanted.clusters else None
        self._list_mark, self._clusters_mark = self._marked(wanted.jobs_key), self._marked(wanted.clusters_key)
        self._jobs: list[tuple[JobSubscriber, JobSource | None]] = []
        for id_, request in wanted.job.items():
            source = sources.job(id_) if is_id(id_) else None
            self._jobs.append((JobSubscriber(id_, request, source), source))
        for one in self._sources():
            one.join(notify)

    def _sources(self) -> list[Source]:
        found = [self._list, self._clusters, *(source for _, source in self._jobs)]
        return [one for one in found if one is not None]

    def close(self) -> None:
        """Look away."""
        for one in self._sources():
            one.leave(self._notify)

    def _key(self, mark: int) -> str:
        """Return the key of a list: its changes are counted by this process only."""
        return f"{self._server_id} {mark}"

    def _marked(self, key: str) -> int:
        server_id, _, mark = key.partition(" ")
        return int(mark) if server_id == self._server_id and mark.isdecimal() and len(mark) < 16 else 0

    async def due(self) -> list[bytes]:
        """Return the messages of now."""
        self._notify.clear()
        lines = [*self._welcome_due(), *self._list_due(), *self._clusters_due()]
        for job, source in self._jobs:
            if job.busy:
                lines += job.due() if source is None else await source.run_in_thread(job.due)
        return lines

    def _welcome_due(self) -> list[bytes]:
        number, self._new = self._new, None
        return [] if number is None else [welcome(number, self._server_id)]

    def _list_due(self) -> list[bytes]:
        if self._list is None or not self._list.mark or self._list.mark == self._list_mark:
            return []
        since = self._list_mark if self._list_mark < self._list.mark else 0
        self._list_mark = self._list.mark
        return [encode(self._list.message(since, self._key(self._list.mark)))]

    def _clusters_due(self) -> list[bytes]:
        if self._clusters is None or self._clusters.mark == self._clusters_mark:
            return []
        self._clusters_mark = self._clusters.mark
        return [encode(ClustersMessage(self._clusters.clusters, self._key(self._clusters.mark), "clusters"))]

    async def wait(self, seconds: float) -> None:
        """Wait until there may be something to tell, at most so many seconds."""
        held = any(job.held for job, _ in self._jobs)
        try:
            await asyncio.wait_for(self._notify.wait(), min(seconds, 0.03 if held else 1.0))
        except TimeoutError:
            return
