"""A job that waits for its turn while it is placed: it says why, can be ended at once, and is found by its handle."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.testing.subject import Subject

if TYPE_CHECKING:
    from distdl_jupyter.testing.sample import Sample


class _Ended(Exception):
    """The wait was ended from here."""


class _Wait:
    """The placing of a job, in a thread, until ``end`` is called or it fails."""

    def __init__(self, sample: Sample) -> None:
        self.handles: list[dict[str, Any]] = []
        self.reasons: list[str] = []
        self.error: BaseException | None = None
        self._ending = False
        self._says_why = threading.Event()
        sample.context.report = self._report
        sample.context.record_handle = self.handles.append
        self._sample = sample
        self._thread = threading.Thread(target=self._place, daemon=True)
        self._thread.start()

    def _place(self) -> None:
        try:
            self._sample.place()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        self._says_why.set()

    def _report(self, phase: str, detail: str) -> None:
        if self._ending:
            raise _Ended
        if phase == "queue" and self.handles:
            self.reasons.append(detail)
            self._says_why.set()

    def until_it_waits(self, timeout: float) -> None:
        assert self._says_why.wait(timeout), "the job does not report why it waits"
        assert self.error is None, self.error

    def end(self) -> None:
        self._ending = True

    def until_over(self, timeout: float) -> BaseException | None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the wait did not end"
        return self.error


class QueueContract(Subject):
    """For clusters that wait for their machines in ``place``: set ``options`` with which a job waits."""

    code = "import time\ntime.sleep(600)"

    def waiting(self) -> tuple[Sample, _Wait]:
        """Place a job and return it when it says why it waits."""
        assert self.cluster.queues, "a cluster whose jobs are queued must set 'queues'"
        sample = self.sample(self.code)
        wait = _Wait(sample)
        wait.until_it_waits(self.timeout)
        return sample, wait

    def test_a_wait_says_why_and_ends_at_once_when_the_job_is_canceled(self) -> None:
        """The reason stands beside the word Queued; there is nobody who could clean up."""
        sample, wait = self.waiting()
        assert wait.reasons[0]
        assert "\n" not in wait.reasons[0]
        assert json.loads(json.dumps(wait.handles)) == wait.handles, (
            "a handle must be plain data that another process can read"
        )
        wait.end()
        assert isinstance(wait.until_over(self.timeout), _Ended)
        assert list(self.cluster.sweep(sample.id, wait.handles[-1])) == []
        self.leaves_nothing(sample.id)

    @pytest.mark.parametrize("known", [True, False])
    def test_a_waiting_job_without_a_supervisor_is_swept(self, known: bool) -> None:  # noqa: FBT001
        """Otherwise it would begin when nobody listens."""
        sample, wait = self.waiting()
        handle = wait.handles[-1] if known else {}
        assert list(self.cluster.sweep(sample.id, handle))
        assert isinstance(wait.until_over(self.timeout), LaunchFailed)
        assert list(self.cluster.sweep(sample.id, handle)) == []
