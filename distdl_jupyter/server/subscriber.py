"""One page's subscription, served: the jobs, the list of jobs and the clusters that it wants to be told of."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from distdl_jupyter.core.store import is_id
from distdl_jupyter.live.job import encode
from distdl_jupyter.live.subscriber import JobSubscriber
from distdl_jupyter.server.messages import ClustersMessage
from distdl_jupyter.views.to_json import to_json

if TYPE_CHECKING:
    from distdl_jupyter.server.messages import Subscription
    from distdl_jupyter.server.watching import Watched, WatchedJob, Watching


class Subscriber:
    """A page's subscription, served. Join with ``open``, ask ``due`` when ``wait`` returns, ``close`` at the end."""

    def __init__(self, watching: Watching, boot: str, wanted: Subscription) -> None:
        self._boot = boot
        self.poke = asyncio.Event()
        self._list = watching.jobs() if wanted.jobs else None
        self._clusters = watching.clusters() if wanted.clusters else None
        self._list_mark, self._clusters_mark = self._marked(wanted.jobs_key), self._marked(wanted.clusters_key)
        self._jobs: list[tuple[JobSubscriber, WatchedJob | None]] = []
        for id_, request in wanted.job.items():
            source = watching.job(id_) if is_id(id_) else None
            self._jobs.append((JobSubscriber(id_, request, source), source))
        for watched in self._watched():
            watched.join(self.poke)

    def _watched(self) -> list[Watched]:
        found = [self._list, self._clusters, *(source for _, source in self._jobs)]
        return [one for one in found if one is not None]

    def close(self) -> None:
        """Look away."""
        for watched in self._watched():
            watched.leave(self.poke)

    def _key(self, mark: int) -> str:
        """Return the key of a list: its changes are counted by this process only."""
        return f"{self._boot} {mark}"

    def _marked(self, key: str) -> int:
        boot, _, mark = key.partition(" ")
        return int(mark) if boot == self._boot and mark.isdecimal() and len(mark) < 16 else 0

    @property
    def settled(self) -> bool:
        """Whether there is nothing that could change any more."""
        if self._list or self._clusters:
            return False
        return all(job.gone or bool(source and source.live and source.live.settled) for job, source in self._jobs)

    @property
    def opening(self) -> bool:
        """Whether something is not known yet that will be in a moment."""
        lists = (self._list is not None and not self._list.mark) or (self._clusters and not self._clusters.mark)
        return bool(lists) or any(source is not None and not source.complete for _, source in self._jobs)

    async def due(self) -> list[bytes]:
        """Return the messages of now."""
        self.poke.clear()
        lines = [*self._list_due(), *self._clusters_due()]
        for job, source in self._jobs:
            if job.busy:
                lines += job.due() if source is None else await source.apart(job.due)
        return lines

    def _list_due(self) -> list[bytes]:
        if self._list is None or not self._list.mark or self._list.mark == self._list_mark:
            return []
        since = self._list_mark if self._list_mark < self._list.mark else 0
        self._list_mark = self._list.mark
        return [encode(to_json(self._list.message(since, self._key(self._list.mark))))]

    def _clusters_due(self) -> list[bytes]:
        if self._clusters is None or self._clusters.mark == self._clusters_mark:
            return []
        self._clusters_mark = self._clusters.mark
        return [encode(to_json(ClustersMessage(self._clusters.clusters, self._key(self._clusters.mark), "clusters")))]

    async def wait(self, seconds: float) -> None:
        """Wait until there may be something to tell, at most so many seconds."""
        held = any(job.held for job, _ in self._jobs)
        try:
            await asyncio.wait_for(self.poke.wait(), min(seconds, 0.03 if held else 1.0))
        except TimeoutError:
            return
