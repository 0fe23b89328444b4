"""Code that does not want to end: gone with its whole tree after a cancel, after an ordinary end, after a kill."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from distdl_jupyter.core.events import State
from tests.conftest import until_gone, wait_for
from tests.faults import jobs
from tests.processes import is_alive
from tests.written import all_written

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(sys.platform != "linux", reason="Linux")]

GRACE = 0.3
#: Seconds from the cancel to the end of everything: INT, TERM and KILL with their graces, and a busy machine's share.
PROMISED = 3 * GRACE + 5.0

#: What a process of a job does to stay. ``PIDS`` is a folder in which it leaves its pid.
LEAVE = "import os; open('PIDS/' + str(os.getpid()), 'w').close();"
IGNORES = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; time.sleep(600)"
#: No parent waits for it, its session and folder are its own, nothing is open, nothing is in its environment.
DAEMON = (
    "import os, sys\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "os.chdir('/'); os.closerange(0, 4096)\n"
    "os.execve(sys.executable, [sys.executable, '-c', PROGRAM], {})\n"
)
#: Two that watch over each other: whoever sees the other one gone starts it anew.
PAIR = """
import os, signal, subprocess, sys, time
for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)
open('PIDS/' + str(os.getpid()), 'w').close()
source, other = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
while True:
    if not other or not os.path.exists(f'/proc/{other}') or ' Z ' in open(f'/proc/{other}/stat').read():
        words = [sys.executable, '-c', source, source, str(os.getpid())]
        child = subprocess.Popen(words, env={}, start_new_session=True)
        other = child.pid
    time.sleep(0.01)
"""


def daemon(program):
    return DAEMON.replace("PROGRAM", repr(program))


def run_then(programs, then):
    """Start programs beside the training, then do what is asked; all ranks print a line when they are there."""
    import subprocess
    import sys

    for program in programs:
        process = subprocess.Popen([sys.executable, "-c", program, program])
        if "fork()" in program:
            process.wait()
    print("here", flush=True)
    exec(then, {})


WAIT = "import time; time.sleep(600)"
STORIES = {
    "ignored signals": ((), IGNORES),
    "signals blocked in C": (  # behind Python's back, in every thread to come
        (), "import ctypes\nfull = (ctypes.c_ulong * 16)(*[2**64 - 1] * 16)\n"
        "ctypes.CDLL(None).pthread_sigmask(0, full, None)\nctypes.PyDLL(None).sleep(600)"
    ),
    "a daemon without a mark": ((daemon(LEAVE + IGNORES),), WAIT),
    "a stopped process": ((daemon(LEAVE + "import signal; os.kill(os.getpid(), signal.SIGSTOP)"),), WAIT),
    "two that start each other": ((PAIR,), WAIT),
    "a thread that never ends": ((), "import threading as t, time\nt.Thread(target=time.sleep, args=(600,)).start()"),
    "an atexit that hangs": ((), "import atexit, time\natexit.register(time.sleep, 600)"),
    "a closed output": ((), "import os, time\nos.close(1); os.close(2)\ntime.sleep(600)"),
    "500 children": (
        (), "import os, time\nfor n in range(500):\n  if not os.fork(): break\ntime.sleep(600)"
    ),
    "a swallowed interrupt": (
        (), "import time\nwhile True:\n  try: time.sleep(600)\n  except BaseException: print('no')"
    ),
}  # fmt: skip
QUICK = (("torch", "signals blocked in C"), ("horovod-mpi", "ignored signals"), ("plain", "a daemon without a mark"),
         ("plain", "two that start each other"), ("plain", "an atexit that hangs"),
         ("plain", "500 children"))  # fmt: skip


@pytest.fixture
def freeze():
    """Return ``freeze(pid)``: no signal reaches the process until the test is over. It takes root."""
    group = Path("/sys/fs/cgroup/freezer") / f"distdl-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "freezer.state").write_text("THAWED")
    except OSError:
        pytest.skip("it takes root and the freezer of control groups, version 1")

    def begin(pid):
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")

    yield begin
    (group / "freezer.state").write_text("THAWED")
    wait_for(lambda: not (group / "cgroup.procs").read_text(), what="the end of who was frozen")
    group.rmdir()


@pytest.fixture
def pids(tmp_path):
    """A folder of the pids of those who want to stay; whoever is left is ended after the test."""
    folder = tmp_path / "pids"
    folder.mkdir()
    yield folder
    for pid in living(folder):
        os.kill(pid, signal.SIGKILL)


def living(folder):
    """Return those of the folder that live."""
    return [int(name) for name in os.listdir(folder) if is_alive(int(name))]


def filled(program, pids):
    return program.replace("PIDS", str(pids))


def started(story, backend, pids, **options):
    programs, then = STORIES[story] if isinstance(story, str) else story
    programs = [filled(program, pids) for program in programs]
    job = jobs.start(backend, run_then, (programs, then), stop_grace_seconds=GRACE, **options)
    wait_for(
        lambda: all("here" in [x.text for x in job.logs(r)] for r in range(job.spec.process_count)), what="the ranks"
    )
    if programs:
        wait_for(lambda: len(living(pids)) >= len(programs) * job.spec.process_count, what="those who want to stay")
    return job


@pytest.mark.fault("stubborn", "the job ends and says which rank cannot be ended, and why")
@pytest.mark.parametrize("backend", ["torch", "horovod-mpi"])
@pytest.mark.full
def test_a_rank_that_no_signal_reaches(backend, pids, freeze):
    job = started(((), WAIT), backend, pids)
    freeze(job.view().ranks[1].pid)
    job.cancel(now=True)
    asked = time.time()
    assert job.wait(60).state is State.CANCELED
    assert job.view().ended - asked < 25
    assert [note["text"].split(":")[0] for note in job.view().notes if note["code"] == "unkillable"] == [
        "Rank 1 cannot be ended (state D)"
    ]
    assert job.view().reason == ("Rank 1 cannot be ended (state D)." if backend == "torch" else "")


@pytest.mark.fault("stubborn", "the whole process tree is gone within the grace period after a cancel")
@pytest.mark.parametrize(
    ("backend", "story"),
    [pytest.param(backend, story, marks=() if (backend, story) in QUICK else pytest.mark.full)
     for backend in ("plain", "torch", "horovod-mpi") for story in STORIES],
)  # fmt: skip
def test_code_that_does_not_want_to_end(backend, story, pids):
    job = started(story, backend, pids)
    if "thread" in story or "atexit" in story:
        wait_for(lambda: all(rank.ok for rank in job.view().ranks), what="the results")
    job.cancel()
    asked = time.time()
    assert job.wait(60).state is State.CANCELED
    assert job.view().ended - asked < PROMISED
    assert not until_gone(job.id, 1.0)
    assert not living(pids)


@pytest.mark.fault("stubborn", "processes that ranks leave running are ended with the job, and a note says so")
@pytest.mark.parametrize(
    "story", [pytest.param("a daemon without a mark", marks=pytest.mark.full), "two that start each other"]
)
def test_processes_that_stay_behind_an_ordinary_end(story, pids):
    job = started((STORIES[story][0], "import time; time.sleep(1)"), "plain", pids)
    assert job.wait(60).state is State.COMPLETED
    assert not living(pids)
    assert any(note.get("code") == "left-behind" for note in job.view().notes)


@pytest.mark.fault("stubborn", "a child that keeps the rank's output open does not delay the end of the job")
def test_a_child_that_keeps_the_output_open(pids):
    program = filled(LEAVE, pids) + IGNORES
    then = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {program!r}], start_new_session=True)"
    job = jobs.start("plain", run_then, ((), then))
    assert job.wait(60).state is State.COMPLETED
    found = all_written(job.folder)
    ended = next(event["t"] for event in found if event["type"] == "rank" and event.get("status") == "ended")
    assert job.view().ended - ended < PROMISED
    assert not living(pids)


@pytest.mark.fault("stubborn", "an unmarked daemon is ended too when the supervisor is killed")
@pytest.mark.parametrize("backend", ["plain", pytest.param("horovod-mpi", marks=pytest.mark.full)])
def test_a_daemon_without_a_mark_whose_supervisor_is_killed(backend, pids):
    job = started("a daemon without a mark", backend, pids)
    jobs.found_supervisor_of(job).kill()
    assert job.wait(60).state is State.LOST
    wait_for(lambda: not living(pids), 10.0, "the end of the daemon")
