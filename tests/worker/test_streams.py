"""Named pipes as a rank's streams, and the lifeline."""

import os
import select
import signal

import pytest

from distdl_jupyter.worker import streams
from tests.worker import ranks


@pytest.fixture
def pipes(tmp_path):
    """A folder of named pipes with readers, as a supervisor makes it; yields (folder, descriptors by name)."""
    folder = tmp_path / "pipes"
    folder.mkdir()
    opened = {}
    for name in ("rank-0.out", "rank-0.err", "rank-1.out", "rank-1.err", "alive"):
        os.mkfifo(folder / name)
        opened[name] = os.open(folder / name, os.O_RDWR | os.O_NONBLOCK)
    yield folder, opened
    for fd in opened.values():
        os.close(fd)


def drain(fd):
    data = b""
    while select.select([fd], [], [], 0)[0]:
        data += os.read(fd, 65536)
    return data


def test_each_rank_writes_into_its_own_pipes(folder, pipes):
    path, opened = pipes
    folder.cell("import os, sys\nprint('to out')\nprint('to err', file=sys.stderr)\nos.system('echo from a child');")
    for rank, ended in enumerate(ranks.run_all(folder, 2, DISTDL_PIPES=str(path))):
        assert (ended.code, ended.out, ended.err) == (0, "", ""), "nothing goes to the launcher's streams"
        through = ranks.Ended(0, drain(opened[f"rank-{rank}.out"]), drain(opened[f"rank-{rank}.err"]))
        assert through.out == "to out\nfrom a child\n"
        assert through.err == "to err\n"
        assert through.result["rank"] == rank


def test_a_failing_launch_is_told_in_the_rank_s_own_pipe(folder, pipes):
    path, opened = pipes
    ended = ranks.run(folder, DISTDL_PIPES=str(path))  # a folder without a payload
    assert ended.code == 1
    assert b"payload.json cannot be read" in drain(opened["rank-0.err"])


def test_a_pipe_that_nobody_reads_leaves_the_inherited_stream(tmp_path, folder, monkeypatch):
    os.mkfifo(tmp_path / "rank-0.out")
    read, write = os.pipe()
    saved = os.dup(2)
    monkeypatch.setattr(streams, "PATIENCE", 0.1)
    os.dup2(write, 2)
    try:
        streams._replace(1, tmp_path / "rank-0.out")
    finally:
        os.dup2(saved, 2)
    said = os.read(read, 65536).decode()
    assert said.startswith("The rank keeps its inherited stream 1, because ")
    for fd in (read, write, saved):
        os.close(fd)


def test_the_rank_ends_when_the_lifeline_breaks(folder, pipes):
    path, opened = pipes
    process = ranks.start(folder.cell("import time\nprint('up')\ntime.sleep(600)"), DISTDL_PIPES=str(path))
    until_said(opened["rank-0.out"], b"up")
    assert process.poll() is None
    os.close(opened.pop("alive"))
    assert process.wait(timeout=60) == -signal.SIGTERM
    ranks.end(process)


def test_a_rank_that_ignores_the_request_is_ended(folder, pipes):
    path, opened = pipes
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\ntime.sleep(600)"
    process = ranks.start(folder.cell(code), DISTDL_PIPES=str(path))
    until_said(opened["rank-0.out"], b"up")
    os.close(opened.pop("alive"))
    assert process.wait(timeout=60) == streams.ORPHANED
    ranks.end(process)


def test_a_lifeline_that_broke_before_the_start_ends_the_rank(folder, pipes):
    path, opened = pipes
    os.close(opened.pop("alive"))
    process = ranks.start(folder.cell("import time\ntime.sleep(600)"), DISTDL_PIPES=str(path))
    assert process.wait(timeout=60) == -signal.SIGTERM
    ranks.end(process)


def test_processes_of_the_rank_do_not_hold_the_lifeline(folder, pipes):
    """Its reading end is no inheritable descriptor: only writers count, and a rank holds none."""
    path, opened = pipes
    code = "import subprocess, time\nsubprocess.Popen(['sleep', '5'])\nprint('up')\ntime.sleep(600)"
    process = ranks.start(folder.cell(code), DISTDL_PIPES=str(path))
    until_said(opened["rank-0.out"], b"up")
    os.close(opened.pop("alive"))
    assert process.wait(timeout=60) == -signal.SIGTERM
    ranks.end(process)


def until_said(fd, words):
    said = b""
    while words not in said:
        assert select.select([fd], [], [], 60)[0], f"the rank said only {said!r}"
        said += os.read(fd, 65536)
