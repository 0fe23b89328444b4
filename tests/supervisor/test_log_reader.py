"""Streams that never pause are read without delaying others and without being kept in memory."""

import contextlib
import os
import subprocess
import sys
import threading

import pytest

from distdl_jupyter.clusters.base import Stream
from distdl_jupyter.node import channels
from distdl_jupyter.supervisor import log_reader as under_test
from distdl_jupyter.supervisor.log_reader import LogReader, LogText, RankReport
from distdl_jupyter.worker import channel
from tests.conftest import wait_for

NONCE = "5ec2e7"
METRIC = channel.encode(NONCE, {"type": "metric", "step": 1, "values": {"loss": 0.5}})


class Sink:
    """Counts bytes and lines of each rank and keeps reports in their order."""

    def __init__(self):
        self.bytes, self.reports, self.lines = {}, [], {}

    def batch_events(self):
        return contextlib.nullcontext()

    def take(self, stream, items):
        for item in items:
            if isinstance(item, RankReport):
                self.reports.append((stream.rank, dict(self.bytes)))
            elif isinstance(item, LogText):
                self.bytes[stream.rank] = self.bytes.get(stream.rank, 0) + len(item.text) + 1
                if not item.redraws or item.closed:
                    self.lines[stream.rank] = self.lines.get(stream.rank, 0) + item.text.count("\n") + 1


@pytest.fixture
def streams():
    """Make a stream for a rank: (Stream, descriptor to write to)."""
    opened, started = [], []

    def make(rank, command=None):
        read, write = os.pipe()
        os.set_blocking(read, False)
        opened.append(read)
        if command is not None:
            started.append(subprocess.Popen(command, stdout=write, stdin=subprocess.DEVNULL))
            os.close(write)
            return Stream(read, rank, "out")
        opened.append(write)
        return Stream(read, rank, "out"), write

    yield make
    for process in started:
        process.kill()
        process.wait()
    for fd in opened:
        with contextlib.suppress(OSError):
            os.close(fd)


def flood(streams, rank):
    """Start a process that prints the same line as fast as it can."""
    return streams(rank, ["yes", "epoch 1 loss 0.123456 of a step like any other"])


def test_a_metric_is_not_kept_waiting_by_the_floods_of_others(streams):
    sink, (quiet, write) = Sink(), streams(9)
    reader = LogReader([*(flood(streams, rank) for rank in range(3)), quiet], NONCE, sink)
    wait_for(lambda: reader.run(1.0) and len(sink.bytes) == 3, what="a flood of each rank")
    for _ in range(20):
        reader.run(1.0)
    before = dict(sink.bytes)
    os.write(write, METRIC)
    wait_for(lambda: reader.run(1.0) and sink.reports, what="the metric")
    ((rank, at),) = sink.reports
    assert rank == 9
    assert all(at[other] - before[other] <= 3 * under_test._READ_BYTES for other in range(3))
    reader.finish()


def test_what_was_written_by_now_is_read_and_a_flood_that_goes_on_ends_nothing(streams):
    sink, (quiet, write) = Sink(), streams(9)
    reader = LogReader([flood(streams, 0), quiet], NONCE, sink)
    wait_for(lambda: reader.run(1.0), what="the flood")
    for n in range(100):
        os.write(write, b"x" * 40_000 + b"\n")
        reader.drain()
        assert sink.lines[9] == n + 1
    before = sink.bytes[0]
    reader.drain()
    assert sink.bytes[0] - before <= channels._MAX_PIPE_BYTES, "no more than its pipe held"
    reader.finish()


def test_the_end_of_a_flood_is_read_whole_also_after_a_wake_up(streams):
    count = 300_000
    code = f"import sys\nfor n in range({count}): sys.stdout.write('line %d\\n' % n)"
    sink, (read, write) = Sink(), os.pipe()
    os.set_blocking(read, False)
    reader = LogReader([streams(rank, [sys.executable, "-c", code]) for rank in range(2)], NONCE, sink)
    reader.watch(read)
    os.write(write, b"\0")
    wait_for(lambda: not reader.run(0.5) and sink.lines.get(0) == sink.lines.get(1) == count, what="all lines")
    reader.finish()
    assert sink.lines == {0: count, 1: count}
    os.close(read)
    os.close(write)


def test_a_wake_up_ends_a_pause_between_rounds(streams, monkeypatch):
    sink, (read, write) = Sink(), os.pipe()
    os.set_blocking(read, False)
    stream, out = streams(0)
    reader = LogReader([stream], NONCE, sink)
    reader.watch(read)
    monkeypatch.setattr(reader._pace, "compute_pause", lambda: 60.0)
    os.write(out, b"one\n")
    os.write(write, b"\0")
    assert reader.run(60.0), "what was written before the wake-up"
    assert sink.lines == {0: 1}
    monkeypatch.undo()
    assert not reader.run(0.01), "the wake-up counts once"
    reader.finish()
    os.close(read)
    os.close(write)


def test_bytes_that_this_process_has_received_are_read_as_those_of_a_pipe():
    sink, inbox = Sink(), channels.Inbox(skip=4)
    inbox.feed(b"readone\n")
    reader = LogReader([Stream(inbox, 3, "out")], NONCE, sink)
    wait_for(lambda: reader.run(0.2) and sink.bytes, what="what came before the reader")
    threading.Timer(0.2, lambda: (inbox.feed(METRIC + b"two\n" * 1_000_000), inbox.feed(b""))).start()
    wait_for(lambda: reader.run(5.0) and sink.lines == {3: 1_000_001}, what="the rest")
    assert [rank for rank, _ in sink.reports] == [3]
    assert not reader.run(0.01)
    reader.finish()
    inbox.feed(b"late\n")
    assert sink.lines == {3: 1_000_001}
