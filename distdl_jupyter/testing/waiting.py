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
        assert self.cluster.queues, "a cluster on which jobs wait says so in 'queues'"
        with self.running(self.code) as (sample, heard):
            heard.until(heard.run.waiting, self.timeout, "a reason why the job waits")
            try:
                yield sample.id, heard
            finally:
                heard.run.signal("KILL")

    def test_a_waiting_job_says_why_and_has_neither_ranks_nor_ends(self) -> None:
        """The reason stands beside the word Queued."""
        with self.waiting() as (_, heard):
            assert "\n" not in heard.run.waiting()
            assert heard.run.started() == []
            assert heard.exits == {}
            assert json.loads(json.dumps(heard.run.handle())) == heard.run.handle()

    @pytest.mark.parametrize("name", ["INT", "TERM", "KILL"])
    def test_any_signal_ends_a_waiting_job_at_once(self, name: str) -> None:
        """There is nobody who could clean up, so nothing is waited for."""
        with self.waiting() as (_, heard):
            heard.run.signal(name)
            heard.until_ended(self.ranks, self.timeout)
            assert all(exit_.signal for exit_ in heard.exits.values()), heard.exits
            heard.until_gone(self.timeout)

    def test_a_waiting_job_without_a_supervisor_is_swept(self) -> None:
        """Otherwise it would begin when nobody hears it."""
        with self.waiting() as (job_id, heard):
            self.cluster.sweep(job_id, json.loads(json.dumps(heard.run.handle())))
            heard.until_ended(self.ranks, self.timeout)
            assert list(self.cluster.sweep(job_id, heard.run.handle())) == []
