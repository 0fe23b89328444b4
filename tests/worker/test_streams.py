"""Named pipes as a rank's streams, and the lifeline."""

import os
import select
import signal
import subprocess
import sys

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


def test_a_pipe_that_nobody_reads_leaves_the_inherited_stream(tmp_path, folder, monkeypatch):
    os.mkfifo(tmp_path / "rank-0.out")
    read, write = os.pipe()
    saved = os.dup(2)
    monkeypatch.setattr(streams, "PIPE_SECONDS", 0.1)
    os.dup2(write, 2)
    try:
        streams._replace_stream(1, tmp_path / "rank-0.out")
    finally:
        os.dup2(saved, 2)
    said = os.read(read, 65536).decode()
    assert said.startswith("The rank uses its inherited stream 1 because ")
    for fd in (read, write, saved):
        os.close(fd)


def test_a_rank_that_ignores_the_request_is_ended(folder, pipes):
    path, opened = pipes
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('now it sleeps')\ntime.sleep(600)"
    process = ranks.start(folder.cell(code), DISTDL_PIPES=str(path))
    until_said(opened["rank-0.out"], b"now it sleeps")
    os.close(opened.pop("alive"))
    assert process.wait(timeout=60) == streams.ORPHANED_EXIT_CODE
    ranks.end(process)


# what is printed ------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 11)", "os.abort()"])
@pytest.mark.fault("rank", "no line that was printed before is lost")
def test_no_line_that_was_printed_before_a_crash_is_lost(folder, end):
    code = f"import os, sys\nfor n in range(1000): print('line', n)\nprint('to err', file=sys.stderr)\n{end}"
    ended = ranks.run(folder.cell(code))
    assert ended.out.splitlines() == [f"line {n}" for n in range(1000)]
    assert ended.err.startswith("to err\n")


def test_text_without_a_line_s_end_is_written_too(folder, pipes):
    path, opened = pipes
    code = "import time\nfor n in range(3):\n    time.sleep(0.5)\n    print(f'part {n}', end='')\ntime.sleep(600)"
    process = ranks.start(folder.cell(code), DISTDL_PIPES=str(path))
    for number in range(3):
        until_said(opened["rank-0.out"], f"part {number}".encode())
    os.close(opened.pop("alive"))
    assert process.wait(timeout=60) == -signal.SIGTERM
    ranks.end(process)


def test_a_forked_child_does_not_repeat_what_was_not_flushed(folder):
    code = """
import os
print("begun", end=" ")
if os.fork() == 0:
    print("child")
    os._exit(0)
os.wait()
print("parent")
"""
    assert sorted(ranks.run(folder.cell(code)).out.split()) == ["begun", "child", "parent"]


FORKS = """
import io, os, signal, sys, threading

flushing, go = threading.Event(), threading.Event()

class Raw(io.FileIO):
    def write(self, data):
        if threading.current_thread().name == "distdl-lifeline":
            flushing.set()
            go.wait()
        return super().write(data)

def write_a_part():
    # Hooks run in the reverse order of their registration: nothing comes between this one and the fork.
    sys.stdout.buffer.write(b"part ")
    flushing.wait(0.5)

io.FileIO = Raw
os.register_at_fork(before=write_a_part, after_in_parent=go.set)

from distdl_jupyter.worker import streams
streams.FLUSH_SECONDS = 0.001
streams.adopt(None, 0)
child = os.fork()
if child == 0:
    signal.alarm(10)
    print("of the child")
    os._exit(0)
ended = os.waitpid(child, 0)[1]
print("and of the parent")
os._exit(os.waitstatus_to_exitcode(ended) % 256)
"""


@pytest.mark.fault("rank", "a child that is forked during a flush can print, and never waits for a lock")
def test_fork_while_text_is_flushed_leaves_the_child_able_to_print():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    assert "of the child\n" in done.stdout
    assert "and of the parent\n" in done.stdout


def test_a_write_that_a_signal_cuts_short_goes_on(folder, pipes):
    path, opened = pipes
    code = """
import signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
for n in range(20):
    print(f"{n:03}" + "x" * 300_000)
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    process = ranks.start(folder.cell(code), DISTDL_PIPES=str(path))
    said = b""
    while said.count(b"\n") < 20 + said.count(b"\x1e") or process.poll() is None:
        if select.select([opened["rank-0.out"]], [], [], 0.2)[0]:
            said += os.read(opened["rank-0.out"], 50_000)
    ranks.end(process)
    lines = [line for line in said.decode().split("\n") if line and not line.startswith("\x1e")]
    assert lines == [f"{n:03}" + "x" * 300_000 for n in range(20)]


def until_said(fd, words):
    said = b""
    while words not in said:
        assert select.select([fd], [], [], 60)[0], f"the rank said only {said!r}"
        said += os.read(fd, 65536)
