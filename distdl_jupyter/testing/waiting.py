"""A job that waits for its turn: it says why, and can be ended at once."""

from __future__ import annotations

import json

import pytest

from distdl_jupyter.testing.listener import Listener
from distdl_jupyter.testing.subject import Subject


class WaitingContract(Subject):
    """For clusters that queue: set ``options`` with which a job waits."""

    code = "import time\ntime.sleep(600)"

    def wait(self) -> tuple[str, Listener]:
        """Start a job and return when it says why it waits."""
        assert self.cluster.queues, "a cluster on which jobs wait says so in 'queues'"
        sample = self.sample(self.code)
        listener = Listener(sample.start(), sample.nonce)
        listener.until(listener.run.waiting, self.patience, "a reason why the job waits")
        return sample.id, listener

    def test_a_waiting_job_says_why_and_has_neither_ranks_nor_ends(self) -> None:
        """The reason stands beside the word Queued."""
        job_id, listener = self.wait()
        try:
            assert "\n" not in listener.run.waiting()
            assert listener.run.started() == []
            assert listener.exits == {}
            assert json.loads(json.dumps(listener.run.handle())) == listener.run.handle()
        finally:
            listener.run.signal("KILL")
            listener.until_ended(self.ranks, self.patience)
            listener.close()
        self.leaves_nothing(job_id)

    @pytest.mark.parametrize("name", ["INT", "TERM", "KILL"])
    def test_any_signal_ends_a_waiting_job_at_once(self, name: str) -> None:
        """There is nobody who could clean up, so nothing is waited for."""
        job_id, listener = self.wait()
        listener.run.signal(name)
        listener.until_ended(self.ranks, self.patience)
        assert all(exit_.signal for exit_ in listener.exits.values()), listener.exits
        listener.until_gone(self.patience)
        listener.close()
        self.leaves_nothing(job_id)

    def test_a_waiting_job_without_a_supervisor_is_swept(self) -> None:
        """Otherwise it would begin when nobody hears it."""
        job_id, listener = self.wait()
        self.cluster.sweep(job_id, json.loads(json.dumps(listener.run.handle())))
        listener.until_ended(self.ranks, self.patience)
        assert list(self.cluster.sweep(job_id, listener.run.handle())) == []
        listener.close()
        self.leaves_nothing(job_id)
