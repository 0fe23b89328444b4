"""Jobs that have not started yet: which jobs they wait for, and their recorded queue position."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import events
from distdl_jupyter.core.errors import DistDLError, JobNotFound
from distdl_jupyter.core.humanize import short_id
from distdl_jupyter.core.queue import AFTER, QueueView, reason, was_moved
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.core.view import JobView
from distdl_jupyter.supervisor import resume

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.supervisor.recorder import EventRecorder

#: Seconds between two polls of a predecessor, and how long one without a supervisor may wait to be taken over.
_LOOK, _TAKEOVER = 0.5, 10.0
#: Seconds between two events of the position: for the first jobs in a queue, for others, and the minimum share of the
#: waiting time.
_NOTE, _NOTE_BEHIND, _NOTE_LATER, _NOTE_SHARE, _FRONT = 1.0, 10.0, 20.0, 0.1, 8
#: Characters of a reason, and of a name in it.
_LONGEST_REASON, _LONGEST_NAME = 500, 120


class Wait:
    """Records a queued job's position, and handles its user's requests meanwhile."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self.priority = recorder.spec.priority
        #: Its queue number from an earlier wait, so that it does not go to the end again.
        self.number: int | None = None
        if recorder.view.queue is not None:
            self.priority, self.number = recorder.view.queue.priority, recorder.view.queue.number
        self._shown: QueueView | None = None
        self._begun, self._noted_at = time.monotonic(), -math.inf

    def obey(self, requests: Sequence[Mapping[str, Any]]) -> None:
        """Apply a requested change of priority."""
        for request in requests:
            if request["type"] == "priority" and isinstance(request.get("priority"), int):
                self.priority = request["priority"]
                self._noted_at = -math.inf

    def note(self, view: QueueView | None, before: Sequence[str]) -> None:
        """Record the position if it has changed; ``before`` are the jobs that must complete first."""
        view = view or QueueView()
        if before:
            names = tuple(before)
            view = dataclasses.replace(view, lacks=(AFTER,), names=names, why=reason({}, (AFTER,), names))
        view = dataclasses.replace(
            view,
            priority=self.priority,
            why=view.why[:_LONGEST_REASON],
            names=tuple(name[:_LONGEST_NAME] for name in view.names),
        )
        self.number = view.number if view.number is not None else self.number
        if view != self._shown and self._may_write(_NOTE if view.place <= _FRONT else _NOTE_BEHIND):
            self._shown = view
            self._recorder.phase("stage", view.why)
            self._recorder.write("queue", **dataclasses.asdict(view))

    def _may_write(self, pause: float) -> bool:
        """Limit the number of events, because other users can change a job's position any number of times."""
        now = time.monotonic()
        if now - self._noted_at <= max(pause, min(_NOTE_LATER, (now - self._begun) * _NOTE_SHARE)):
            return False
        self._noted_at = now
        return True


class Predecessors:
    """The jobs that must complete before a job starts."""

    def __init__(self, folder: JobFolder, ids: Sequence[str]) -> None:
        store = JobStore(folder.path.parent.parent)
        self._left = {id_: _Predecessor(store.folder(id_)) for id_ in ids}
        self._looked_at = -math.inf
        #: Why the job can no longer start, one sentence; "" while it can.
        self.failure = ""

    def waiting(self) -> list[str]:
        """Return the names of those that have not completed yet."""
        if self._left and time.monotonic() - self._looked_at >= _LOOK:
            self._looked_at = time.monotonic()
            for id_, predecessor in list(self._left.items()):
                predecessor.look()
                if predecessor.state is State.COMPLETED:
                    del self._left[id_]
                elif predecessor.failure and not self.failure:
                    self.failure = predecessor.failure
        return [predecessor.name for predecessor in self._left.values()]


class _Predecessor:
    """Another job, followed until its end."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._cursor = 0
        self._silent: float | None = None
        self._view: JobView | None = None
        self.name = short_id(folder.id)
        self.failure = ""

    @property
    def state(self) -> State | None:
        """Its state, None if it cannot be read."""
        return self._view.state if self._view is not None else None

    def look(self) -> None:
        """Read its new events."""
        try:
            if self._view is None:
                self._view = JobView.of(self._folder.spec())
                self.name = f"{self._view.name} ({self.name})"
            new_events, self._cursor = events.read(self._folder.events, self._cursor)
        except (JobNotFound, FileNotFoundError):
            self.failure = f"This job starts after {self.name}, which was removed."
            return
        except OSError:
            return
        for event in new_events:
            self._view.apply(event)
        state = self._view.state
        if state is State.CANCELED and was_moved(self._view.reason) and self._follow():
            return
        if state.ended and state is not State.COMPLETED:
            self.failure = f"This job starts after {self.name}, which {_ENDS[state]}."
        elif not state.ended and self._is_abandoned(has_news=bool(new_events)):
            self.failure = f"This job starts after {self.name}, which was lost because its supervisor is gone."

    def _follow(self) -> bool:
        """Follow the job that replaced it; return whether there is one, or may be soon."""
        store = JobStore(self._folder.path.parent.parent)
        for folder in takewhile(lambda candidate: candidate.id > self._folder.id, store.folders()):
            with contextlib.suppress(DistDLError):
                if folder.spec().moved_from == self._folder.id:
                    self._folder, self._view, self._cursor, self._silent = folder, None, 0, None
                    self.name = short_id(folder.id)
                    return True
        self._silent = self._silent or time.monotonic()
        return time.monotonic() - self._silent < _TAKEOVER

    def _is_abandoned(self, *, has_news: bool) -> bool:
        """Return whether it has had no supervisor for a while and none can take over."""
        if has_news or not self._folder.supervisor().is_dead:
            self._silent = None
            return False
        now = time.monotonic()
        self._silent = self._silent or now
        return now - self._silent > _TAKEOVER and not resume.can_attach(self._folder)


_ENDS = {State.FAILED: "failed", State.CANCELED: "was canceled", State.LOST: "was lost"}
