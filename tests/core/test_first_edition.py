"""Folders of the first edition, whose one file held events and log lines: written by its own code from a real job.

``<name>.json`` beside each folder is what the first edition's own readers gave: the events without the log's, the lines
of the log, and the counts of lines.
"""

import json
import shutil
from pathlib import Path

import pytest

from distdl_jupyter.core import events, logfile
from distdl_jupyter.core.events import EventWriter
from distdl_jupyter.core.logline import last_lines, lines_of
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.follow import Follower, SummaryReader

FOLDERS = Path(__file__).parent / "first_edition"


@pytest.fixture(params=["plain", "parts"])
def old(request):
    return JobFolder(FOLDERS / request.param), json.loads((FOLDERS / f"{request.param}.json").read_text())


def counts(view):
    return [view.lines, [[rank.lines, rank.error_lines] for rank in view.ranks]]


def in_steps(read, limit):
    found, cursor = [], 0
    while True:
        more, after = read(cursor, limit)
        if after == cursor:
            return found
        found, cursor = found + more, after


@pytest.mark.parametrize("limit", [300, 5000, 10**6])
def test_the_events_are_read_without_the_log(old, limit):
    folder, expected = old
    found = in_steps(lambda after, limit: events.read(folder.events, after, limit), limit)
    assert found == expected["events"]


@pytest.mark.parametrize("limit", [300, 5000, 10**6])
def test_the_lines_of_the_log_are_read(old, limit):
    folder, expected = old
    found = in_steps(lambda after, limit: logfile.read(folder.log, after, limit), limit)
    assert [[one.rank, one.stream, one.time, one.text] for one in lines_of(found)] == expected["lines"]


@pytest.mark.parametrize("reader", [Follower, SummaryReader])
def test_readers_count_the_lines(old, reader):
    folder, expected = old
    assert counts(reader(folder).catch_up()) == expected["counts"]


def test_the_last_lines_are_read_from_the_end(old):
    folder, expected = old
    for many in (1, 5, 30):
        found, _ = last_lines(folder.log, many)
        assert [[one.rank, one.stream, one.time, one.text] for one in found] == expected["lines"][-many:]


def test_a_supervisor_that_takes_the_job_over_goes_on_in_its_file(old, tmp_path):
    folder, expected = old
    folder = JobFolder(Path(shutil.copytree(folder.path, tmp_path / "job")))
    files = {file.name for file in folder.path.rglob("*")}
    writer = EventWriter(folder.events)
    with writer.together():
        writer.write("log", rank=0, stream="out", text="more")
        writer.write("note", level="info", text="more", code="")
    assert not writer.begin_part(lines=1, first=1, counts={})
    writer.write("restart", reason="", rank=0)
    writer.close()
    assert {file.name for file in folder.path.rglob("*")} == files
    found = in_steps(lambda after, limit: events.read(folder.events, after, limit), 5000)
    assert found[:-2] == expected["events"]
    assert [event["type"] for event in found[-2:]] == ["note", "restart"]
    printed = in_steps(lambda after, limit: logfile.read(folder.log, after, limit), 5000)
    assert [line["type"] for line in printed[-2:]] == ["log", "attempt"]
    assert SummaryReader(folder).catch_up().lines == expected["counts"][0] + 1
