"""Many jobs at once, and a kernel that opens and closes them again and again: all of it ends, and nothing leaks."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from distdl_jupyter.jobs import client
from tests.conftest import wait_for
from tests.faults import census
from tests.magic.conftest import Kernel, environment
from tests.selection import few_or_all

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

SETUP = """
import distdl_jupyter as dd
from distdl_jupyter.jobs import client

def plain(number):
    import time
    for step in range(20):
        print(f"job {number} line {step}")
        time.sleep(0.05)
    return number

def meets(number):
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    for step in range(20):
        dist.all_reduce(torch.ones(3))
        print(f"job {number} line {step}")
    return number

def start(number, backend):
    count = 2 if backend == "torch" else 1
    function = meets if backend == "torch" else plain
    options = {"distributed_backend": backend, "process_count_per_node": count, "name": f"job {number}"}
    return client.submit(function, (number,), **options)
"""


@pytest.fixture
def short(monkeypatch):
    """A temporary folder of the test's own, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="many-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setenv("DISTDL_WARM", "off")  # it would end the template of the other tests
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield folder


@pytest.fixture
def kernel(tmp_path, short):
    one = Kernel(tmp_path, environment(tmp_path, tmp_path / "ipython"))
    one.ok("%load_ext distdl_jupyter")
    one.ok(SETUP)
    yield one
    one.stop()


def pid(kernel):
    return int(kernel.ok("import os; print(os.getpid())").text)


def told(kernel, code):
    """Return what an expression is in the kernel."""
    return json.loads(kernel.ok(f"import json; print(json.dumps({code}))").text)


def ended(ids, timeout):
    handles = [client.attach(one) for one in ids]
    wait_for(lambda: all(job.state.ended for job in handles), timeout, "the end of all jobs")
    return handles


@pytest.mark.fault(
    "many",
    "all run to their end, none waits for another, every line is kept; the kernel uses no more memory than before",
)
@pytest.mark.parametrize(
    ("backend", "few", "everything"),
    [pytest.param("plain", 12, 50), pytest.param("torch", 0, 12, marks=pytest.mark.full)],
)
def test_many_jobs_at_once_from_one_kernel(kernel, short, injected, backend, few, everything):
    count, shared = few_or_all(few, everything), census.shared_memory()
    first = told(kernel, f"start(0, {backend!r}).wait(100).id")
    told(kernel, f"client.attach({first!r}).results()")
    before = census.of(pid(kernel))
    kernel.ok(f"jobs = [start(number, {backend!r}) for number in range({count})]")
    ids = told(kernel, "[job.id for job in jobs]")
    assert sorted(ids) == ids
    assert len(set(ids)) == count
    for number, job in enumerate(ended(ids, 1200)):
        assert job.state.value == "completed", (job.view().reason, [str(line) for line in job.logs()][-20:])
        for rank in range(job.view().process_count):
            lines = [str(line) for line in job.logs(rank)]
            assert lines == [f"job {number} line {step}" for step in range(20)]
        injected()
    assert told(kernel, "[job.result() for job in jobs]") == list(range(count))
    kernel.ok("del jobs; import gc; gc.collect()")
    census.settled(pid(kernel), before, memory=40)
    census.nothing_left(Path(short), shared)


@pytest.mark.fault("many", "a kernel that attaches to jobs a thousand times uses no more memory than before")
def test_attaching_again_and_again(kernel, injected):
    cycles = few_or_all(100, 1000)
    job = told(kernel, "start(0, 'plain').wait(100).id")
    kernel.ok(f"""
def cycle(many):
    for _ in range(many):
        job = dd.attach({job!r})
        assert job.state == "completed"
        assert job.result() == 0
        assert sum(1 for _ in job.logs()) >= 20
        repr(job), repr(dd.jobs())
""")
    kernel.ok("cycle(100)")
    before = census.of(pid(kernel))
    for _ in range(cycles // 100):
        kernel.ok("cycle(100)")
    kernel.ok("import gc; gc.collect()")
    census.settled(pid(kernel), before, memory=5)
    injected(cycles)


@pytest.mark.fault(
    "many",
    "a panel that was closed leaves no thread, no descriptor and no widget in the kernel, also while its job runs",
)
def test_panels_opened_and_closed_again_and_again(kernel, injected):
    cycles = few_or_all(20, 100)
    kernel.ok("""
def forever():
    import time
    for step in range(100_000):
        print("line", step)
        time.sleep(0.1)

job = client.submit(forever, distributed_backend="plain")
from IPython.display import display
from ipywidgets.widgets.widget import _instances
import time

def cycle(many):
    for _ in range(many):
        panel = dd.panel(job)
        display(panel)
        time.sleep(0.05)
        panel.close()

dd.panel(job).close()
""")
    kernel.ok("cycle(10)")
    before, widgets = census.of(pid(kernel)), told(kernel, "len(_instances)")
    for _ in range(cycles // 10):
        kernel.ok("cycle(10)")
        injected(10)
    kernel.ok("import gc; gc.collect()")
    now = census.settled(pid(kernel), before, memory=10)
    assert told(kernel, "len(_instances)") <= widgets
    assert now.threads <= before.threads
    kernel.ok("job.cancel(now=True); job.wait(60)")
