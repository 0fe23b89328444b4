"""No more processes, no more files: what was asked for is refused or ends with one sentence, and nothing stays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(600)

PROGRAM = """
import json, os, resource, sys, time
from distdl_jupyter.jobs import client
from distdl_jupyter.core.errors import DistDLError

kind, more = getattr(resource, sys.argv[1]), int(sys.argv[2])

def train(number):
    for step in range(3):
        print(f"line {step}")
    return number

client.submit(train, (0,)).result(timeout=100)
soft, hard = resource.getrlimit(kind)
def at_rest():
    counts = []
    for _ in range(10):  # what the first job has left is closed
        counts.append(len(os.listdir("/proc/self/fd")))
        time.sleep(0.1)
    return min(counts)
resource.setrlimit(kind, (more + (at_rest() if kind == resource.RLIMIT_NOFILE else 0), hard))
refused, jobs = [], []
for number in range(8):
    try:
        jobs.append(client.submit(train, (number,)))
    except DistDLError as error:
        refused.append([type(error).__name__, str(error)])
resource.setrlimit(kind, (soft, hard))
ended = []
for job in jobs:
    view = job.wait(100).view()
    ended.append([view.state.value, view.reason, sum(line.rank == 0 for line in job.logs())])
known = sorted(job.id for job in client.jobs())
after = client.submit(train, (7,)).result(timeout=100)
print(json.dumps({"refused": refused, "ended": ended, "after": after, "known": len(known)}))
"""

_FILES = "The process has reached its limit of open files. Raise it with 'ulimit -n'."
_PROCESSES = "Wait for other processes to exit, or raise the limit with 'ulimit -u'."
_CAN = "+dac_override,+dac_read_search"


def run(tmp_path, kind, more):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), kind, str(more)]
    environment = {**os.environ, "HOME": str(tmp_path)}
    if kind == "RLIMIT_NPROC" and os.getuid() == 0:
        # The kernel counts no process of root's; files of the Python that runs this may be readable by root alone.
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not here, and the limit of processes does not hold for root")
        environment["DISTDL_HOME"] = str(tmp_path / "own")
        for folder in (tmp_path, tmp_path / "own"):
            folder.mkdir(exist_ok=True)
            os.chown(folder, 54321, 54321)
        command = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", f"--inh-caps={_CAN}",
                   f"--ambient-caps={_CAN}", *command]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
@pytest.mark.fault("many", "rejected, or ended as failed, with one sentence that names the limit; the next job runs")
@pytest.mark.parametrize(
    ("kind", "more", "sentence"),
    [
        pytest.param("RLIMIT_NOFILE", 1, _FILES, marks=pytest.mark.full),
        ("RLIMIT_NOFILE", 2, _FILES),  # a warm submit needs 3, a cold one more
        pytest.param("RLIMIT_NPROC", 1, _PROCESSES, marks=pytest.mark.full),
        ("RLIMIT_NPROC", 6, _PROCESSES),
        *(pytest.param("RLIMIT_NOFILE", more, _FILES, marks=pytest.mark.full) for more in (4, 6, 8, 9, 10, 12)),
        pytest.param("RLIMIT_NPROC", 10, _PROCESSES, marks=pytest.mark.full),
        pytest.param("RLIMIT_NPROC", 15, _PROCESSES, marks=pytest.mark.full),
    ],
)
def test_submits_when_a_limit_is_reached(tmp_path, injected, kind, more, sentence):
    if kind == "RLIMIT_NPROC" and os.getuid() != 0:
        pytest.skip("only root can become a user of whom no other process counts")
    told = run(tmp_path, kind, more)
    assert told["refused"] or any(state == "failed" for state, *_ in told["ended"])
    for name, message in told["refused"]:
        assert name in ("LaunchFailed", "DiskRefused")
        assert message.endswith(sentence)
        assert message.count("\n") == 0
        injected()
    for state, reason, lines in told["ended"]:
        assert state in ("completed", "failed")
        if state == "completed":
            assert lines == 3
        elif not reason.startswith("The process failed"):
            assert reason.endswith(sentence)
        injected()
    assert told["known"] == 1 + len(told["ended"]), "a refused job leaves no folder"
    assert told["after"] == 7
