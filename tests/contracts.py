"""What clusters of this package hold beside ``distdl_jupyter.testing``: data on their nodes, and jobs that wait."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from distdl_jupyter.core.errors import DataUnavailable, LaunchFailed
from distdl_jupyter.testing.cluster import StartCanceled
from distdl_jupyter.testing.sample import ClusterTests

READS = """
import os, pathlib
print("content", pathlib.Path(os.environ["DISTDL_DATA_SAMPLE"], "hello").read_text())
"""
MARKS = """
import os, pathlib
pathlib.Path(os.environ["DISTDL_JOB_DIR"], "outputs", "ran-" + os.environ["RANK"]).touch()
"""


@dataclass
class PathStaging:
    """A real staging (see ``clusters.base.Context``) of one folder that every node sees.

    With ``endless`` it is a blob instead whose signature never comes, so that stagers wait until they are ended.
    """

    path: Path
    endless: bool = False
    content: str = "data"
    ordered: list[int] = field(default_factory=list)
    staged: list[int] = field(default_factory=list)
    asked: threading.Event = field(default_factory=threading.Event)

    def build_request(self, node, *, base=""):
        self.ordered.append(node)
        source = {"name": "sample", "variable": "DISTDL_DATA_SAMPLE"}
        if self.endless:
            source |= {"kind": "blob", "address": "https://127.0.0.1:9/nobody/data", "prefix": "x"}
            source |= {"items": [["x/hello", 5, "0x1", ""]]}
        else:
            source |= {"kind": "path", "path": str(self.path), "fingerprint": None}
        fields = {"job": self.path.parent.name, "node": node, "base": base, "limit_bytes": None, "workers": 2, "ca": ""}
        return {**fields, "sources": [source]}

    def handle_message(self, _node, host, message):
        if message["type"] == "failed":
            raise DataUnavailable(f"{host}: {message['text']}", hint=str(message.get("remedy") or ""))
        if message["type"] == "staged":
            self.staged.append(_node)
        if message["type"] == "renew":
            self.asked.set()


class DataContract(ClusterTests):
    """Data is on every node before any rank starts; without it no rank runs; a cancel takes effect at once."""

    def with_data(self, code, *, endless=False):
        sample = self.make_sample(code)
        sample.context.staging = PathStaging(sample.folder.path / "data", endless)
        return sample, sample.context.staging

    def test_every_rank_has_its_data_when_it_starts(self):
        sample, staging = self.with_data(READS)
        staging.path.mkdir()
        (staging.path / "hello").write_text("world")
        with self.run_job(sample) as (_, listener):
            listener.wait_until_ended(self.ranks, self.timeout)
            for rank in range(self.ranks):
                assert "content world" in listener.get_lines(rank), listener.lines
        assert sorted(staging.ordered) == sorted(staging.staged) == list(range(self.node_count))

    def test_without_its_data_no_rank_runs(self):
        sample, staging = self.with_data(MARKS)
        texts = []
        try:
            with self.run_job(sample) as (_, listener):
                listener.wait_until_ended(self.ranks, self.timeout)
                assert all(exit_.code != 0 for exit_ in listener.exits.values()), "ranks started without their data"
                texts += [exit_.evidence for exit_ in listener.exits.values()]
        except DataUnavailable as error:
            texts.append(str(error))
        assert any(str(staging.path) in text for text in texts), f"the messages do not name the missing data: {texts}"
        assert not list(sample.folder.outputs.glob("ran-*"))
        self.wait_until_gone(sample.id)

    def test_a_cancel_while_data_is_copied_takes_effect(self):
        sample, staging = self.with_data(MARKS, endless=True)

        def report(_phase, _detail):
            if staging.asked.is_set():
                raise StartCanceled

        sample.context.report = report
        with contextlib.suppress(StartCanceled), self.run_job(sample) as (_, listener):
            listener.wait_until(staging.asked.is_set, self.timeout, "a request from a stager")
            listener.run.signal("TERM")
            listener.wait_until_ended(self.ranks, self.timeout)
        assert staging.asked.is_set()
        assert not list(sample.folder.outputs.glob("ran-*"))
        self.wait_until_gone(sample.id)


class Placing(threading.Thread):
    """Places a job that waits, until ``is_canceled`` is set or it fails."""

    def __init__(self, sample):
        super().__init__(daemon=True)
        self.handles, self.reasons, self.error, self.is_canceled = [], [], None, False
        self._has_reason = threading.Event()
        sample.context.report = self._report
        sample.context.record_handle = self.handles.append
        self._sample = sample
        self.start()

    def run(self):
        try:
            self._sample.place()
        except BaseException as error:  # noqa: BLE001 - the test checks it
            self.error = error
        self._has_reason.set()

    def _report(self, phase, detail):
        if self.is_canceled:
            raise StartCanceled
        if phase == "queue" and self.handles:
            self.reasons.append(detail)
            self._has_reason.set()

    def until_waiting(self, timeout):
        assert self._has_reason.wait(timeout), "the job does not report why it waits"
        assert self.error is None, self.error

    def ended(self, timeout):
        self.join(timeout)
        assert not self.is_alive(), "the wait did not end"
        return self.error


class QueueContract(ClusterTests):
    """For clusters that wait for their machines in ``place``: set ``options`` with which a job waits."""

    def waiting(self):
        assert self.cluster.has_queue
        sample = self.make_sample("import time\ntime.sleep(600)")
        placing = Placing(sample)
        placing.until_waiting(self.timeout)
        return sample, placing

    def test_a_wait_has_a_reason_and_ends_at_once_when_the_job_is_canceled(self):
        sample, placing = self.waiting()
        assert placing.reasons[0]
        assert "\n" not in placing.reasons[0]
        assert json.loads(json.dumps(placing.handles)) == placing.handles
        placing.is_canceled = True
        assert isinstance(placing.ended(self.timeout), StartCanceled)
        assert list(self.cluster.sweep(sample.id, placing.handles[-1])) == []
        self.wait_until_gone(sample.id)

    @pytest.mark.parametrize("known", [True, False])
    def test_a_waiting_job_without_a_supervisor_is_swept(self, known):
        sample, placing = self.waiting()
        handle = placing.handles[-1] if known else {}
        assert list(self.cluster.sweep(sample.id, handle))
        assert isinstance(placing.ended(self.timeout), LaunchFailed)
        assert list(self.cluster.sweep(sample.id, handle)) == []
