"""How jobs end on a cluster: by a signal, by a sweep, and when whoever held them is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.testing.listener import Listener
from distdl_jupyter.testing.sample import SAVES, Sample
from distdl_jupyter.testing.subject import Subject

_FAMILY = """
import os, sys, time
if os.fork() != 0:
    print("here")
time.sleep(600)
"""
_DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2):
            os.close(fd)
        time.sleep(600)
    os._exit(0)
os.wait()
print("here")
sys.stdout.flush()
os._exit(0)
"""
_COUNTS = """
import os, sys, time
for number in range(80):
    print("line", number)
    print("error", number, file=sys.stderr)
    time.sleep(0.05)
sys.exit(4)
"""


class EndingContract(Subject):
    """A cluster leaves nothing behind, however a job ends."""

    def test_a_signal_ends_every_process_and_is_named(self) -> None:
        """Training code starts processes of its own: they end with it."""
        with self.running(_FAMILY) as (sample, listener):
            self.until_said(listener, "here")
            assert listener.run.alive()
            listener.run.signal("KILL")
            listener.until_ended(self.ranks, self.timeout)
            assert {exit_.signal for exit_ in listener.exits.values()} == {"KILL"}, listener.exits
            listener.until_gone(self.timeout)
            self.leaves_nothing(sample.id)

    def test_an_interrupt_reaches_training_code_which_may_save_and_choose_its_code(self) -> None:
        """It is KeyboardInterrupt there, as at a terminal."""
        with self.running(SAVES) as (_, listener):
            self.until_said(listener, "here")
            listener.run.signal("INT")
            listener.until_ended(self.ranks, self.timeout)
            for rank in range(self.ranks):
                assert "saved" in listener.lines_at_end[rank, "out"]
                assert listener.exits[rank].code == 5

    def test_one_end_is_told_while_the_others_go_on(self) -> None:
        """A supervisor stops a job within seconds of the first failure, so it must hear of it alone."""
        first_fails = "import os, time\nprint('here')\nos.environ['RANK'] == '0' and os._exit(9)\ntime.sleep(600)"
        with self.running(first_fails) as (_, listener):
            listener.until(lambda: listener.exits, self.timeout, "the end of rank 0")
            assert (listener.exits[0].code, list(listener.exits)) == (9, [0])
            listener.run.signal("TERM")
            listener.until_ended(self.ranks, self.timeout)

    def test_what_a_rank_leaves_running_is_seen_and_ended(self) -> None:
        """A process that cut all ties still carries the job's mark."""
        with self.running(_DAEMON) as (sample, listener):
            listener.until_ended(self.ranks, self.timeout)
            listener.run.signal("KILL")
            listener.until_gone(self.timeout)
            self.leaves_nothing(sample.id)

    def test_a_job_is_swept_by_its_handle(self) -> None:
        """The last resort, by a process that never spoke to the job: it finds all, and then nothing more."""
        with self.running(_FAMILY) as (sample, listener):
            self.until_said(listener, "here")
            handle = json.loads(json.dumps(listener.run.handle()))
            assert handle == listener.run.handle(), "a handle must be plain data that another process can read"
            assert len(self.cluster.sweep(sample.id, handle)) > 0
            listener.until_ended(self.ranks, self.timeout)
            listener.until_gone(self.timeout)
            assert list(self.cluster.sweep(sample.id, handle)) == []

    def test_a_job_that_never_started_is_swept_without_a_handle(self) -> None:
        """A supervisor can die before it has written one."""
        with contextlib.suppress(DistDLError):
            assert list(self.cluster.sweep("20010101-000000-never", {})) == []

    def test_when_its_supervisor_is_killed_a_job_ends_or_is_found_again(self) -> None:
        """Nothing is left on any machine, or nothing of the job is lost: no line is missing and none is twice."""
        with self._orphan() as orphan:
            sample = Sample(self.name, self.options, _COUNTS, self.node_count, self.process_count_per_node,
                            id=orphan["id"], nonce=orphan["nonce"])  # fmt: skip
            read = {(rank, name): at for rank, name, at in orphan["positions"]}
            if self.cluster.can_attach:
                run = self.cluster.attach(sample.spec, orphan["handle"], sample.context, read)
                self._goes_on(Listener(run, sample.nonce), orphan["lines"])
            else:
                with pytest.raises(LaunchFailed):
                    self.cluster.attach(sample.spec, orphan["handle"], sample.context, read)
                self.cluster.sweep(sample.id, orphan["handle"])
        self.leaves_nothing(sample.id)

    def _goes_on(self, listener: Listener, before: list[Any]) -> None:
        try:
            listener.until_ended(self.ranks, self.timeout)
            listener.drain()
            assert {exit_.code for exit_ in listener.exits.values()} == {4}, listener.exits
            for rank, name, lines in before:
                word = "line" if name == "out" else "error"
                said = [line for line in lines + listener.said(rank, name) if line.startswith(word)]
                assert said == [f"{word} {number}" for number in range(80)], f"rank {rank}, {name}"
        finally:
            listener.close()

    @contextlib.contextmanager
    def _orphan(self) -> Iterator[dict[str, Any]]:
        """Start a job in another process, kill that, and yield what it had written down."""
        asked = {"name": self.name, "options": dict(self.options), "code": _COUNTS, "lines": 20,
                 "timeout": self.timeout, "nodes": self.node_count,
                 "per_node": self.process_count_per_node}  # fmt: skip
        with subprocess.Popen(
            [sys.executable, "-m", "distdl_jupyter.testing.orphan"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            try:
                print(json.dumps(asked), file=holder.stdin, flush=True)
                line = holder.stdout.readline()
                assert line, "the process that runs the job failed; its output is above"
            finally:
                os.kill(holder.pid, signal.SIGKILL)
                holder.wait()
            yield json.loads(line)
