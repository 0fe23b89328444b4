"""A job that waits for its turn: it says why, and can be ended at once."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest

from distdl_jupyter.testing.listener import Listener
from distdl_jupyter.testing.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator


class WaitingContract(Subject):
    """For platforms that start a job by themselves when it is its turn: set ``options`` with which a job waits."""

    code = "import time\ntime.sleep(600)"

    @contextlib.contextmanager
    def waiting(self) -> Iterator[tuple[str, Listener]]:
        """Start a job and yield it when it says why it waits."""
        assert self.cluster.queues, "a cluster whose jobs are queued must set 'queues'"
        with self.running(self.code) as (sample, listener):
            listener.until(listener.run.waiting, self.timeout, "the reason why the job waits")
            try:
                yield sample.id, listener
            finally:
                listener.run.signal("KILL")

    def test_a_waiting_job_says_why_and_has_neither_ranks_nor_ends(self) -> None:
        """The reason stands beside the word Queued."""
        with self.waiting() as (_, listener):
            assert "\n" not in listener.run.waiting()
            assert listener.run.started() == []
            assert listener.exits == {}
            assert json.loads(json.dumps(listener.run.handle())) == listener.run.handle()

    @pytest.mark.parametrize("name", ["INT", "TERM", "KILL"])
    def test_any_signal_ends_a_waiting_job_at_once(self, name: str) -> None:
        """There is nobody who could clean up, so nothing is waited for."""
        with self.waiting() as (_, listener):
            listener.run.signal(name)
            listener.until_ended(self.ranks, self.timeout)
            assert all(exit_.signal for exit_ in listener.exits.values()), listener.exits
            listener.until_gone(self.timeout)

    def test_a_waiting_job_without_a_supervisor_is_swept(self) -> None:
        """Otherwise it would begin when nobody hears it."""
        with self.waiting() as (job_id, listener):
            self.cluster.sweep(job_id, json.loads(json.dumps(listener.run.handle())))
            listener.until_ended(self.ranks, self.timeout)
            assert list(self.cluster.sweep(job_id, listener.run.handle())) == []
