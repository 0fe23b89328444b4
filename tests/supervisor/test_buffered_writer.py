"""What a supervisor tells of a disk that was full: what was left out is counted."""

import errno
from types import SimpleNamespace

import pytest

from distdl_jupyter.supervisor.buffered_writer import FULL, ROOM, DiskFullMonitor


class Writer:
    """Takes nothing of what is left out while its disk is full."""

    def __init__(self):
        self.refused = OSError(errno.ENOSPC, "No space left on device")
        self.since, self.fits_reserve, self.written = 0.0, True, []

    def takes(self, _type):
        return self.refused is None

    def retry(self):
        return self.refused is None

    def put(self, batch):
        self.written += batch

    def write_first(self, lines):
        self.written.append(lines)

    def release_reserve(self):
        pass

    def wait(self, _seconds):
        self.refused = None
        return True


@pytest.fixture
def told(tmp_path):
    notes, writer = [], Writer()
    return SimpleNamespace(writer=writer, notes=notes, monitor=DiskFullMonitor(writer, tmp_path, notes.append))


def test_a_full_disk_is_told_once_and_nothing_more_when_nothing_was_left_out(told):
    told.monitor.check()
    told.monitor.check()
    assert [note["code"] for note in told.notes] == [FULL]
    assert told.monitor.finish()
    assert [note["code"] for note in told.notes] == [FULL]
    assert len(told.writer.written) == 1


@pytest.mark.parametrize(
    ("left_out", "says"),
    [
        ([("log", "a\nb")], "2 lines of the log were lost"),
        ([("metric", ""), ("progress", "")], "0 lines of the log and 1 report of metrics were lost"),
        ([("log", "a"), ("metric", ""), ("metric", "")], "1 line of the log and 2 reports of metrics were lost"),
    ],
)
def test_what_was_left_out_is_told_at_the_end(told, left_out, says):
    told.monitor.check()
    for kind, text in left_out:
        assert told.monitor.drops(kind, {"text": text})
    assert told.monitor.finish()
    assert [note["code"] for note in told.notes] == [FULL, ROOM]
    assert told.notes[-1]["text"].startswith(says)


def test_a_disk_with_room_leaves_out_nothing(told):
    told.writer.refused = None
    assert not told.monitor.drops("log", {"text": "a"})
    told.monitor.check()
    assert told.monitor.finish()
    assert told.notes == []
