"""One page's place in what it watches: what it was told, and what is due to be told now.

A page that is slow to read is told less often and never twice: messages are made when they can be sent, of the state
at that moment.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from distdl_jupyter.core.store import is_id
from distdl_jupyter.server.live import encode
from distdl_jupyter.server.messages import ClustersMessage, Gone
from distdl_jupyter.views.to_json import to_json

if TYPE_CHECKING:
    from distdl_jupyter.server.live import LiveJob
    from distdl_jupyter.server.messages import CurveWish, JobWish, LogWish, Subscription
    from distdl_jupyter.server.watching import Watched, WatchedJob, Watching

#: Least seconds between two messages about a job, its log, its curve; seconds after which the clock goes along.
_JOB, _LOG, _CURVE, _CLOCK = 0.25, 0.08, 0.5, 3.0
#: Bytes for which a message may come so often; a larger one comes as much less often.
_SIZE = 64 * 1024


class Pace:
    """At most one turn every ``seconds``; a heavy one has to rest longer."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = self._next = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time."""
        return time.monotonic() >= self._next

    @property
    def since(self) -> float:
        """Seconds since the last turn."""
        return time.monotonic() - self._last

    def took(self, size: int) -> None:
        """Count a turn of so many bytes."""
        self._last = time.monotonic()
        self._next = self._last + self._seconds * max(1.0, size / _SIZE)


class _JobPlace:
    """What a page knows of one job."""

    def __init__(self, id_: str, wish: JobWish, watched: WatchedJob | None) -> None:
        self._id = id_
        self._wish = wish
        self.watched = watched
        self._key = wish.key
        self._curves = [_CurvePlace(one) for one in wish.curves]
        self._mark = wish.log.mark if wish.log else 0
        self._log_begun = False
        self.gone = wish.key == "gone"
        self._state_pace, self._log_pace = Pace(_JOB), Pace(_LOG)
        self._version = -1
        #: Whether something waits for its turn.
        self.held = True

    @property
    def busy(self) -> bool:
        """Whether ``due`` may find something; else it need not be asked."""
        live = self.watched.live if self.watched else None
        if self.watched is None or self.watched.gone or live is None:
            return not self.gone
        clock = not live.ended and self._state_pace.since > _CLOCK
        return self.held or self._version != live.version or clock

    def due(self) -> list[bytes]:
        """Return the messages of now. It may take a while: not in the event loop."""
        if self.watched is None or self.watched.gone:
            told = [] if self.gone else [encode(to_json(Gone(self._id, "gone", "gone")))]
            self.gone, self.held = True, False
            return told
        live = self.watched.live
        if live is None or not live.seen:
            return []
        self._version, self.held = live.version, not live.complete
        curves = [line for one in self._curves for line in self._curve(live, one)]
        return [*self._state(live), *self._log(live, self._wish.log), *curves]

    def _state(self, live: LiveJob) -> list[bytes]:
        pace = self._state_pace
        if not pace.due:
            self.held = True
            return []
        told = live.state()
        if told.key == self._key and (live.ended or pace.since < _CLOCK):
            return []
        self._key = told.key
        pace.took(len(told.line))
        return [told.line]

    def _log(self, live: LiveJob, wish: LogWish | None) -> list[bytes]:
        if wish is None:
            return []
        if not live.complete and not self._log_begun:
            return []
        if live.mark == self._mark and (self._log_begun or self._mark):
            return []
        pace = self._log_pace
        if not pace.due:
            self.held = True
            return []
        told = live.log(self._mark)
        self._mark, self._log_begun = told.mark, True
        self.held = self.held or told.more
        pace.took(len(told.line))
        return [told.line]

    def _curve(self, live: LiveJob, place: _CurvePlace) -> list[bytes]:
        key = live.curve_key(place.wish)
        if not key or key == place.key:
            return []
        if not place.pace.due:
            self.held = True
            return []
        told = live.curve(place.wish)
        if told is None:
            return []
        place.key = told.key
        place.pace.took(len(told.line))
        return [told.line]


class _CurvePlace:
    """What a page knows of one curve."""

    def __init__(self, wish: CurveWish) -> None:
        self.wish = wish
        self.key = wish.key
        self.pace = Pace(_CURVE)


class Viewer:
    """A page's subscription, served. Join with ``open``, ask ``due`` when ``wait`` returns, ``close`` at the end."""

    def __init__(self, watching: Watching, boot: str, wanted: Subscription) -> None:
        self._boot = boot
        self.poke = asyncio.Event()
        self._list = watching.jobs() if wanted.jobs else None
        self._clusters = watching.clusters() if wanted.clusters else None
        self._list_mark, self._clusters_mark = self._marked(wanted.jobs_key), self._marked(wanted.clusters_key)
        self._jobs = [
            _JobPlace(id_, wish, watching.job(id_) if is_id(id_) else None) for id_, wish in wanted.job.items()
        ]
        for watched in self._watched():
            watched.join(self.poke)

    def _watched(self) -> list[Watched]:
        found = [self._list, self._clusters, *(place.watched for place in self._jobs)]
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
        return all(
            one.gone or bool(one.watched and one.watched.live and one.watched.live.settled) for one in self._jobs
        )

    @property
    def opening(self) -> bool:
        """Whether something is not known yet that will be in a moment."""
        lists = (self._list is not None and not self._list.mark) or (self._clusters and not self._clusters.mark)
        return bool(lists) or any(one.watched is not None and not one.watched.complete for one in self._jobs)

    async def due(self) -> list[bytes]:
        """Return the messages of now."""
        self.poke.clear()
        lines = [*self._list_due(), *self._clusters_due()]
        for place in self._jobs:
            if not place.busy:
                continue
            lines += place.due() if place.watched is None else await place.watched.apart(place.due)
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
        held = any(place.held for place in self._jobs)
        try:
            await asyncio.wait_for(self.poke.wait(), min(seconds, 0.03 if held else 1.0))
        except TimeoutError:
            return
