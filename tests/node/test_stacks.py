"""Requests for stacks of real processes: those that can respond do, and no process is harmed."""

import json
import subprocess
import sys
import textwrap
import time

import pytest

from distdl_jupyter.node import processes
from tests.conftest import wait_for

OFFERS = """
    import os, pathlib, sys, time
    from distdl_jupyter.worker import identity
    from distdl_jupyter.worker import streams
    folder = pathlib.Path(sys.argv[1])
    os.environ.update(DISTDL_JOB_DIR=str(folder), DISTDL_RANK="3", DISTDL_PIPES=str(folder))
    streams.install_stacks_handler(identity.identify(os.environ))
    {then}
"""


def gather(folder, rank):
    """Request the stacks of a rank and return its response."""
    return wait_for(processes.StackRequest(folder, rank).poll, 30)


@pytest.fixture
def rank(tmp_path):
    begun = []

    def start(then="time.sleep(600)"):
        code = textwrap.dedent(OFFERS).format(then=then)
        begun.append(subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]))
        wait_for(lambda: processes._read_header(tmp_path / "rank-3.stacks"), 30)
        return begun[-1]

    yield start
    for one in begun:
        one.kill()
        one.wait()


def test_a_process_answers_as_often_as_it_is_asked(rank, tmp_path):
    process = rank()
    for _ in range(3):
        answer = gather(tmp_path, 3)
        assert answer.text.count("Current thread") == 1
        assert answer.about["main"] in answer.text
        assert answer.about["pid"] == process.pid
        assert answer.state == "sleeping"
    assert (tmp_path / "rank-3.stacks").stat().st_mode & 0o777 == 0o600
    assert process.poll() is None


def test_a_rank_that_has_not_begun(tmp_path):
    assert "still starting" in gather(tmp_path, 0).missing
    (tmp_path / "rank-0.stacks").write_text('{"pid": 1, "sig')
    assert "still starting" in gather(tmp_path, 0).missing


def test_a_process_that_has_ended_and_whose_number_another_one_has(rank, tmp_path):
    process = rank()
    process.kill()
    process.wait()
    assert "has ended" in gather(tmp_path, 3).missing
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            about = processes._read_header(tmp_path / "rank-3.stacks") | {"pid": other.pid}
            (tmp_path / "rank-3.stacks").write_text(json.dumps(about) + "\n")
            assert "has ended" in gather(tmp_path, 3).missing
            time.sleep(0.2)
            assert other.poll() is None, "a signal that it does not catch would have ended it"
        finally:
            other.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the signal is ignored by who does not catch it")
@pytest.mark.parametrize(
    ("does", "missing"),
    [
        ("import signal; signal.signal(57, signal.SIG_DFL)", "another program"),
        ("os.closerange(3, 1000)", "closed the file"),
        ("import signal; signal.signal(57, lambda *_: None)", "No response within 5 s"),
    ],
)
def test_a_process_that_cannot_answer_any_more(rank, tmp_path, does, missing):
    process = rank(f"{does}; (folder / 'ready').touch(); time.sleep(600)")
    wait_for((tmp_path / "ready").exists, 30)
    assert missing in gather(tmp_path, 3).missing
    assert process.poll() is None
