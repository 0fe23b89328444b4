"""Payloads that cannot be pickled, sent or opened: answered with the name and the remedy."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from distdl_jupyter.api.submit_process import submit_source
from distdl_jupyter.core.errors import InvalidSpec, JobFailed
from distdl_jupyter.core.events import State
from distdl_jupyter.core.store import JobStore
from tests.faults import disks

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("alone")]


def as_a_notebook(code, **more):
    """Run code as the main module of a real process, as a kernel does, and return it."""
    script = textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False, **more
    )


REFUSED = {
    "generator": ("thing = (n for n in range(3))", "Convert it to a list, or create it inside the"),
    "TextIOWrapper": ("thing = open('/dev/null', 'w')", "Open the file inside"),
    "socket": ("import socket; thing = socket.socket()", "Open the connection inside"),
    "lock": ("import threading; thing = {'a': [threading.Lock()]}", "Create it inside"),
    "frame": ("import sys; thing = sys._getframe()", "Create it inside"),
    "method": ("class C:\n    def __reduce__(self): raise RuntimeError('no')\nthing = C()", "Create it inside"),
    "deep": ("thing = []\nfor _ in range(100_000): thing = [thing]", "Create it inside"),
}


@pytest.mark.fault("payload", "rejected before the start, with the name of the value and a fix; no job is created")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ("lock", "deep") else pytest.mark.full) for kind in REFUSED]
)
def test_what_cannot_be_pickled(kind):
    make, remedy = REFUSED[kind]
    done = as_a_notebook(f"{make}\ndef train():\n    return thing\nfrom distdl_jupyter import submit\nsubmit(train)\n")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "InvalidSpec" in last, done.stderr[-2000:]
    assert "thing" in last
    assert remedy in last
    assert JobStore().list_ids() == []


@pytest.mark.fault(
    "payload", "a module that is gone, a class defined twice, a changed module: the code at submit time runs"
)
def test_classes_twice_and_modules_deleted(tmp_path):
    (tmp_path / "work" / "gone_module.py").write_text("def double(n):\n    return 2 * n\n")
    done = as_a_notebook(
        """
        import os, gone_module
        from distdl_jupyter import submit
        class Thing:
            def number(self): return 1
        first = Thing()
        class Thing:
            def number(self): return 2
        def both(): return first.number(), Thing().number()
        print(submit(both).result(120))
        print(submit(gone_module.double, (21,)).result(120))
        os.unlink("gone_module.py")
        try:
            print(submit(gone_module.double, (21,)).result(120))
        except Exception as error:
            print(type(error).__name__, "gone_module" in str(error))
        """
    )
    assert done.returncode == 0, done.stderr
    twice, there, gone = done.stdout.splitlines()
    assert (twice, there) == ("(1, 2)", "42")
    assert gone == "InvalidSpec True"


LARGE = """
import re
weights = bytearray(SIZE)
for at in range(0, SIZE, 4096):
    weights[at] = 1
def train():
    return len(weights)
from distdl_jupyter import submit
def held(): return int(open("/proc/self/statm").read().split()[1]) * 4096
def most(): return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
before = held()
try:
    print(submit(train).result(250))
except Exception as error:
    print(type(error).__name__, error)
print(max(0, most() - before))
"""


@pytest.mark.fault("payload", "values of 2 GB are sent without a second copy in the notebook's memory")
@pytest.mark.parametrize("size", [200_000_000, pytest.param(2_000_000_000, marks=pytest.mark.full)])
def test_large_values(size):
    done = as_a_notebook(LARGE.replace("SIZE", str(size)))
    assert done.returncode == 0, done.stderr
    answer, more = done.stdout.splitlines()
    assert answer == str(size)
    assert int(more) < size // 2 + 100_000_000


@pytest.mark.fault("payload", "values that do not fit on the disk are rejected with its name and a fix")
def test_values_larger_than_the_disk(distdl_home):
    disks.mount(distdl_home, "size=4m")
    try:
        done = as_a_notebook(LARGE.replace("SIZE", "20_000_000"))
        assert done.stdout.startswith("DiskRefused"), done.stdout + done.stderr
        assert "Free space on that disk, or" in done.stdout
        assert JobStore().list_ids() == []
    finally:
        disks.unmount(distdl_home)


def again(job, spoil):
    """Run the job again with its files spoiled, as a broken disk or a stranger would, and return the failure."""
    spoil(job.folder)
    with pytest.raises((JobFailed, InvalidSpec)) as failed:
        job.rerun().result(120)
    return str(failed.value)


SPOILED = {
    "truncated": lambda folder: os.truncate(folder.payload, folder.payload.stat().st_size // 2),
    "empty": lambda folder: os.truncate(folder.payload, 0),
    "random": lambda folder: folder.payload.write_bytes(b"\x80\x05" + os.urandom(2000)),
    "text": lambda folder: folder.payload.write_bytes(b"cos\nnosuchname\n."),
    "gone": lambda folder: folder.payload.unlink(),
    "no json": lambda folder: (folder.path / "payload.json").write_text("{"),
    "list": lambda folder: (folder.path / "payload.json").write_text("[1]"),
    "newer": lambda folder: (folder.path / "payload.json").write_text(json.dumps({"format": 99})),
}


@pytest.mark.fault(
    "payload", "a payload that is damaged or of another version ends the job with the reason, not a crash"
)
@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=() if how in ("truncated", "newer") else pytest.mark.full) for how in SPOILED]
)
def test_a_payload_that_lies(how):
    done = as_a_notebook(
        "table = list(range(1000))\ndef train(): return sum(table)\nfrom distdl_jupyter import submit\n"
        "job = submit(train)\nprint(job.id, job.result(120))"
    )
    assert done.returncode == 0, done.stderr
    id_, answer = done.stdout.split()
    assert answer == "499500"
    from distdl_jupyter import attach

    said = again(attach(id_), SPOILED[how])
    assert "payload" in said or "cannot be loaded" in said or "captured" in said, said
    assert "signal" not in said


@pytest.mark.fault("payload", "a job of another Python is rejected or runs; it never ends without a message")
def test_another_python():
    other = "/usr/bin/python3"
    if not os.access(other, os.X_OK):
        pytest.skip("there is no second Python here")
    job = submit_source("1 + 1")
    assert job.result(120) == 2
    spec = json.loads(job.folder.spec_file.read_text())
    job.folder.spec_file.write_text(json.dumps({**spec, "python": other}))
    second = job.rerun()
    second.wait(60)
    assert second.state in (State.FAILED, State.LOST, State.COMPLETED)
    assert second.state is State.COMPLETED or "distdl_jupyter" in second.view().reason, second.view().reason
