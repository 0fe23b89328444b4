"""A rank that fails in any way, at any moment, under any backend: it is named, the others go."""

import itertools
import os
import re
from pathlib import Path

import pytest

from distdl_jupyter import JobFailed
from distdl_jupyter.clusters import emulated_node
from distdl_jupyter.core.events import State
from tests.conftest import crowded, until_gone, wait_for
from tests.faults import jobs
from tests.selection import everything

pytestmark = pytest.mark.timeout(300)

#: Seconds from the first failure to the end of the last rank.
PROMISED = 5.0
#: Ways to die: what the rank does, what is said of it, and its exit code and signal.
DEATHS = {
    "exception": ("raise KeyError('label')", "KeyError", 1, None),
    "exit": ("import sys; sys.exit(3)", "SystemExit: 3", 3, None),
    "at-once": ("import os; os._exit(7)", "exit code 7", 7, None),
    "segmentation-fault": (
        "import ctypes; ctypes.string_at(0)",
        "ended by SIGSEGV: Segmentation fault in tests/faults/test_ranks.py, line ", None, "SEGV"
    ),
    "abort": ("import os; os.abort()", "ended by SIGABRT: Aborted in tests/faults/test_ranks.py, line ", None, "ABRT"),
    "killed": ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL", None, "KILL"),
    "memory": (
        "import resource as r; r.setrlimit(r.RLIMIT_AS, (2**33, 2**33)); x = bytearray(2**34)", "MemoryError", 1, None
    ),
}  # fmt: skip
MOMENTS = ("before the backend", "before the others are met", "in a step", "after the result")
#: What runs in every `make test`: each backend, each death and each moment at least once.
QUICK = {
    ("plain", "killed", "in a step"), ("torch", "at-once", "in a step"), ("torch", "exception", "before the backend"),
    ("horovod-gloo", "segmentation-fault", "in a step"), ("horovod-gloo", "memory", "before the others are met"),
    ("horovod-mpi", "abort", "before the backend"),
    ("torch", "killed", "after the result"),
}  # fmt: skip


def dies(backend, victim, how, moment):
    """Train; the victim dies at the moment."""
    import os

    def at(now):
        if now == moment and os.environ["DISTDL_RANK"] == str(victim):
            print("the last words", flush=True)
            exec(how)

    at("before the backend")
    if backend != "plain":
        import torch  # noqa: F401 - what takes longest before ranks meet
    at("before the others are met")
    meet = jobs.connect(backend)
    for step in range(2000 if moment == "in a step" else 10):
        meet()
        if step == 5:
            at("in a step")
    if moment == "after the result":
        import atexit

        atexit.register(at, moment)


def combinations():
    for backend, death, moment in itertools.product(jobs.BACKENDS, DEATHS, MOMENTS):
        if moment == "after the result" and death in ("exception", "exit", "memory"):
            continue  # Python prints what goes wrong in atexit; the process ends with 0
        marks = () if (backend, death, moment) in QUICK else pytest.mark.full
        yield pytest.param(backend, death, moment, marks=marks, id=f"{backend}-{death}-{moment.replace(' ', '_')}")


@pytest.mark.fault("rank", "the rank is named with exit code or signal and last output; the others ended within 5 s")
@pytest.mark.parametrize(("backend", "death", "moment"), tuple(combinations()))
def test_a_rank_that_dies(backend, death, moment):
    how, words, code, signal = DEATHS[death]
    victim = jobs.BACKENDS[backend] - 1
    job = jobs.start(backend, dies, (backend, victim, how, moment))
    if moment == "after the result" and signal in ("SEGV", "ABRT"):
        job.results(timeout=120)  # what was done is done
        assert any("during shutdown" in note["text"] for note in job.view().notes)
        return
    with pytest.raises(JobFailed) as caught:
        job.result(timeout=120)
    failed_first(job, caught.value, victim, words)
    assert (caught.value.exit_code, caught.value.signal) == (code, signal)
    assert "the last words" in [line.text for line in job.logs(victim)]
    if death in ("at-once", "killed"):  # the others have a traceback of their own
        assert "the last words" in str(caught.value)


def failed_first(job, error, victim, words):
    """The promise: this rank, for this reason, and within 5 s nothing is left."""
    assert f"Rank {victim} of {job.spec.process_count} failed first: {words}" in str(error)
    view = job.view()
    assert view.state is State.FAILED
    last = max(rank.ended for rank in view.ranks)
    assert last - view.failure.when < PROMISED
    assert not until_gone(job.id, 1.0)


needs_host_names = pytest.mark.skipif(
    not emulated_node.get_shell(), reason="horovod-mpi refuses several nodes: a process gets no host name of its own"
)


def leaves_early(backend, victim):
    import os

    rank = os.environ["DISTDL_RANK"]
    jobs.connect(backend)
    if rank == str(victim):
        print("the last words", flush=True)
        os._exit(0)
    return int(rank)


@pytest.mark.fault(
    "rank", "a rank that exits with code 0 and without its result is reported as failed, and may restart"
)
@pytest.mark.parametrize(
    "backend",
    ["plain", *(pytest.param(name, marks=pytest.mark.full) for name in ("torch", "horovod-gloo", "horovod-mpi"))],
)
def test_a_rank_that_leaves_with_code_0_before_its_end(backend):
    victim = jobs.BACKENDS[backend] - 1
    job = jobs.start(backend, leaves_early, (backend, victim), max_restarts=1 if backend == "plain" else 0)
    with pytest.raises(JobFailed) as caught:
        job.result(timeout=120)
    failed_first(job, caught.value, victim, "exited with code 0 before the training code finished")
    assert "os._exit()" in str(caught.value)
    assert "the last words" in str(caught.value)
    assert caught.value.exit_code == 0
    assert len(job.view().restarts) == (1 if backend == "plain" else 0)


def uneven(backend):
    """Train on data of which rank 0 has one batch more."""
    import os

    import torch

    from distdl_jupyter import log

    jobs.connect(backend)
    if backend == "torch":
        from torch.distributed import all_reduce as meet
    else:
        from horovod.torch import allreduce as meet
    for step in range(5 if os.environ["DISTDL_RANK"] == "0" else 4):
        meet(torch.ones(3))
        log(step=step, loss=1.0)


@pytest.mark.fault("rank", "uneven data: the rank that had finished is reported with its step and a fix")
@pytest.mark.parametrize(
    "backend", ["torch", *(pytest.param(name, marks=pytest.mark.full) for name in ("horovod-gloo", "horovod-mpi"))]
)
def test_ranks_that_make_different_numbers_of_steps(backend):
    job = jobs.start(backend, uneven)
    with pytest.raises(JobFailed) as caught:
        job.result(timeout=120)
    said = re.match(r"Rank 1 had finished \(step 3\) while rank 0 was at step 4: "
                    r"the ranks ran different numbers of steps\. ", str(caught.value))  # fmt: skip
    assert said, str(caught.value)
    assert all(word in str(caught.value) for word in ("drop_last", "DistributedSampler", "hvd.join()", "model.join()"))
    assert "because of" not in str(caught.value)
    assert caught.value.others == ()
    assert job.view().ended - job.view().ranks[1].result_time < PROMISED
    assert not until_gone(job.id)


@pytest.mark.fault("rank", "the rank is named, on any node; the others ended within 5 s")
@pytest.mark.parametrize(
    "backend",
    ["torch", pytest.param("horovod-gloo", marks=pytest.mark.full),
     pytest.param("horovod-mpi", marks=[pytest.mark.full, needs_host_names])],
)  # fmt: skip
@pytest.mark.parametrize("death", ["at-once", pytest.param("segmentation-fault", marks=pytest.mark.full)])
def test_a_rank_on_another_node_that_dies(backend, death):
    how, words, *_ = DEATHS[death]
    job = jobs.start(backend, dies, (backend, 3, how, "in a step"), node_count=2, process_count_per_node=2)
    with pytest.raises(JobFailed) as caught:
        job.result(timeout=200)
    failed_first(job, caught.value, 3, words)


def fail_at(go, delays, how):
    """Each rank dies at its own moment on the common clock, which is told in a file when all are ready."""
    import os
    import time

    mine = delays.get(int(os.environ["DISTDL_RANK"]))
    print("ready", flush=True)
    if mine is None:
        time.sleep(600)
    while not os.path.exists(go):
        time.sleep(0.01)
    at = os.stat(go).st_mtime + mine
    while time.time() < at:
        pass
    exec(how)


@pytest.mark.fault("rank", "if two ranks fail within 20 ms, the earlier one is named")
@pytest.mark.parametrize("death", ["exception", pytest.param("at-once", marks=pytest.mark.full), "killed"])
def test_two_ranks_that_die_at_almost_the_same_time(death, tmp_path, injected):
    how, words, *_ = DEATHS[death]
    for first, second in ((2, 1), (1, 2)) if everything() else ((2, 1),):
        go = tmp_path / f"go-{first}"
        delays = {first: 0.5, second: 0.5 + 0.02 * crowded()}
        job = jobs.start("torch", fail_at, (str(go), delays, how), process_count_per_node=3)
        wait_for(lambda job=job: [line.text for line in job.logs()].count("ready") == 3, what="all ranks")
        go.touch()
        with pytest.raises(JobFailed) as caught:
            job.result(timeout=120)
        failed_first(job, caught.value, first, words)
        assert all("ready" in [line.text for line in job.logs(rank)] for rank in range(3))
        injected()


def hungry(group):
    """Take memory until the kernel ends this process, in a control group of its own."""
    import os
    from pathlib import Path

    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
        taken = []
        while True:
            taken.append(bytearray(os.urandom(2**20)) * 8)
    dist.barrier()


@pytest.fixture
def small_group():
    """A control group for 200 MB below the one that the tests run in."""
    lines = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    version_1 = "memory" in lines
    parent = Path(f"/sys/fs/cgroup/memory{lines['memory']}" if version_1 else f"/sys/fs/cgroup{lines.get('', '/')}")
    group = parent / f"distdl-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(200 * 2**20))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    group.rmdir()


@pytest.mark.fault("rank", "named with the kernel's evidence that memory ran out; the others ended within 5 s")
@pytest.mark.skipif(not Path("/proc/self/cgroup").exists(), reason="Linux")
def test_a_rank_that_the_kernel_kills_for_its_memory(small_group):
    job = jobs.start("torch", hungry, (str(small_group),))
    with pytest.raises(JobFailed) as caught:
        job.result(timeout=120)
    failed_first(job, caught.value, 1, "ended by SIGKILL")
    assert "It probably ran out of memory" in str(caught.value), str(caught.value)
