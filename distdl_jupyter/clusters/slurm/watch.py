"""One Slurm job watched from a thread: its state every few seconds, and signals sent to it.

Slurm's commands can take many seconds when its controller is busy or down, and nothing else must wait for them.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from distdl_jupyter.clusters.base import Notice
from distdl_jupyter.clusters.silence import Silence
from distdl_jupyter.clusters.slurm import accounting, commands, squeue, words
from distdl_jupyter.clusters.slurm.commands import JobState, SlurmFailed, SlurmSilent, UnknownJob

if TYPE_CHECKING:
    from distdl_jupyter.core.queue import QueueView

#: Seconds between two looks: when something is about to change, at first, and later.
_SOON, _FIRST, _LATER = 0.5, 2.0, 5.0
_HURRY, _YOUNG = 30.0, 120.0
#: Seconds between two looks at the whole queue, which may be long.
_QUEUE = 15.0
#: Seconds without an answer after which it is said.
_SILENCE = 5.0
_FORGOTTEN = "FORGOTTEN"
_AGAIN = words.QUEUED_AGAIN


class Watch(threading.Thread):
    """Asks after one job until it has ended or ``stop`` is called."""

    def __init__(self, job: str) -> None:
        super().__init__(name="distdl-slurm", daemon=True)
        self.job = job
        self.state: JobState | None = None
        #: When ``state`` was asked for (monotonic), 0.0 before the first answer.
        self.asked_at = 0.0
        #: Whether the job has begun: one that waits after that was put into the queue again by Slurm itself.
        self.has_run = False
        #: Its place in the queue, None while it is not known.
        self.place: QueueView | None = None
        self._queue_at = 0.0
        self._began = time.monotonic()
        self._hurry_until = 0.0
        self._silence = Silence(_SILENCE)
        self._reported: set[str] = set()
        self._actions: queue.SimpleQueue[tuple[Callable[[], None], ...]] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._stop_wanted = False

    def run(self) -> None:
        """Look, run actions, rest."""
        while not self._stop_wanted:
            self._wake.clear()
            with contextlib.suppress(queue.Empty):
                for action in self._actions.get_nowait():
                    self._do(action)
            self._look()
            if self.ended and self._actions.empty():
                return
            self._wake.wait(self._pause())

    @property
    def ended(self) -> bool:
        """Whether Slurm says that the job is over, has forgotten it, or has put it into its queue again."""
        return self.state is not None and (self.state.ended or self.state.state in (_FORGOTTEN, _AGAIN))

    @property
    def forgotten(self) -> bool:
        """Whether Slurm knows nothing of the job any more."""
        return self.state is not None and self.state.state == _FORGOTTEN

    def hurry(self) -> None:
        """Look at once and often for a while."""
        self._hurry_until = time.monotonic() + _HURRY
        self._wake.set()

    def send(self, *actions: Callable[[], None]) -> None:
        """Let Slurm's commands run in order, then look; those that wait to be run are dropped for them."""
        with contextlib.suppress(queue.Empty):
            self._actions.get_nowait()
        self._actions.put(actions)
        self.hurry()

    def notices(self) -> list[Notice]:
        """Return what is new to tell."""
        return self._silence.notices()

    def stop(self) -> None:
        """End the thread; a command that runs is waited for a moment."""
        self._stop_wanted = True
        self._wake.set()
        if self.is_alive():
            self.join(2.0)

    def _pause(self) -> float:
        now = time.monotonic()
        if now < self._hurry_until:
            return _SOON
        return _FIRST if now - self._began < _YOUNG else _LATER

    def _do(self, action: Callable[[], None]) -> None:
        now = time.monotonic()
        try:
            action()
        except SlurmSilent as error:
            self._miss(error, now)
        except SlurmFailed:
            return  # it has ended meanwhile, which the next look tells

    def _look(self) -> None:
        now = time.monotonic()
        try:
            state = commands.state(self.job)
        except UnknownJob:
            state = accounting.state(self.job) or JobState(_FORGOTTEN)
        except SlurmFailed as error:
            self._miss(error, now)
            return
        if state.pending and self.has_run:
            # Each attempt is a Slurm job of its own: nothing of this one may begin once more.
            self._do(partial(commands.cancel, self.job))
            state = JobState(_AGAIN)
        self.has_run = self.has_run or state.state == "RUNNING"
        self.asked_at, self.state = now, state
        self._look_at_queue(state)
        self._silence.answered(Notice("info", "Slurm's controller responds again.", "slurm-answers"))
        if state.pending and (notice := words.never(state, commands.number(self.job))) is not None:
            self._report_once(notice)

    def _look_at_queue(self, state: JobState) -> None:
        """See which place a waiting job has among those of all users."""
        if not state.pending:
            self.place = None
        elif (now := time.monotonic()) >= self._queue_at:
            self._queue_at = now + _QUEUE
            with contextlib.suppress(SlurmFailed):
                self.place = squeue.view(squeue.jobs(), commands.number(self.job))

    def _miss(self, error: SlurmFailed, asked_at: float) -> None:
        text = f"Slurm's controller does not respond. A running job continues. ({error.message})"
        self._silence.missed(asked_at, Notice("warning", text, "slurm-silent"))

    def _report_once(self, notice: Notice) -> None:
        if notice.code not in self._reported:
            self._reported.add(notice.code)
            self._silence.put(notice)
