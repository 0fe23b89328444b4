"""Persistent ranks on SSH hosts and in a Slurm allocation."""

import subprocess
import sys
import threading
import time

import pytest

from distdl_jupyter import capture
from distdl_jupyter.core.errors import JobFailed, JobNotRunning
from distdl_jupyter.magic.ranks_magic import RanksTable
from tests.clusters.ssh.lab import Lab
from tests.conftest import wait_for
from tests.faults.jobs import found_supervisor_of
from tests.hosts import hosts_of, needs_hosts  # noqa: F401 - fixtures
from tests.ranks.test_training import SETUP, SUM
from tests.slurm import needs_slurm, slurm, slurm_of, two_nodes  # noqa: F401 - fixtures

pytestmark = [needs_hosts, pytest.mark.timeout(300)]

#: What another kernel does with ranks that this one has started.
KERNEL = """
from distdl_jupyter import ranks
print("read", dict(ranks.find_session().run("x").values))
"""
HOST = "import os; os.uname().nodename"


@pytest.fixture
def lab(hosts_of, distdl_home, tmp_path, monkeypatch):  # noqa: F811
    """Two hosts, of which ``node-b`` does not see the jobs' folders."""
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "configuration"))
    return Lab(hosts_of(2, private={"node-b": [str(distdl_home)]}, own_processes=True))


def on_hosts(started, lab, count=1, backend="torch", **options):
    session = started(count, backend, compute_target="lab", node_count=2, **options)
    lab.job = session.job
    return session


def another_kernel():
    ran = subprocess.run([sys.executable, "-c", KERNEL], capture_output=True, text=True, timeout=60, check=False)
    return ran.stdout + ran.stderr


def test_ranks_on_hosts_behave_as_ranks_on_this_machine(started, lab, told, tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    session = on_hosts(started, lab)
    assert dict(session.run(HOST).values) == {0: "node-a", 1: "node-b"}
    session.run("x = rank\nprint('I am', rank)", on_event=told)
    assert [told.text(rank) for rank in (0, 1)] == ["I am 0\n", "I am 1\n"]
    session.push(large=b"y" * 5_000_000)
    assert {rank: len(value) for rank, value in session.pull("large").items()} == {0: 5_000_000, 1: 5_000_000}
    failed = session.run("if rank == 1: {}['label']", label="In [7]")
    assert failed.errors[1]["type"] == "KeyError"
    assert "read {0: 0, 1: 1}" in another_kernel()
    # A job's cell with a value and a module of the notebook, on a host that sees no folder of this machine.
    import beside

    draft = capture.capture_cell("beside.double(scale)", {"beside": beside, "scale": 21})
    assert dict(session.run_distributed(draft).values) == {0: 42, 1: 42}
    text = repr(RanksTable(session))
    assert "2 ranks are running, for" in text
    assert "torch on lab, job" in text
    assert "They stop after 2 h without a cell." in text
    assert [line.split()[1] for line in text.splitlines()[1:]] == ["Host", "node-a", "node-b"]
    notes = session.job.folder.path / "serving"
    assert {path.name for path in notes.glob("rank-*")} == {"rank-0.json", "rank-1.json"}
    session.stop()
    assert session.job.state.value == "completed"
    assert not list(notes.glob("rank-*"))
    lab.until_nothing_is_left()


@pytest.mark.full
@pytest.mark.fault("rank", "a host with persistent ranks stops responding: it is named, with a fix")
def test_a_host_that_is_lost_ends_the_ranks_with_its_name_and_the_remedy(started, lab):
    session = on_hosts(started, lab)
    threading.Timer(1, lambda: lab.hosts.cut("node-b")).start()
    begin = time.monotonic()
    with pytest.raises(JobFailed) as caught:
        session.run("import time; time.sleep(600)")
    assert time.monotonic() - begin < 60
    assert "Rank 1 of 2 failed first: lost with node-b. No response from node-b for" in str(caught.value)
    assert "Start new ones with %dist_ranks start, or ranks.start()." in str(caught.value)
    assert session.job.wait(60).state.value == "failed"
    assert "lost with node-b" in session.state().reason


@pytest.mark.full
def test_idle_ranks_end_after_the_timeout(started, lab):
    session = on_hosts(started, lab, idle_timeout=3)
    session.run("import time; time.sleep(5)")
    assert session.state() == "idle", "a cell that runs is no idleness"
    wait_for(lambda: session.state() == "ended", 30)
    assert session.job.wait(30).state.value == "canceled"
    with pytest.raises(JobNotRunning) as caught:
        session.run("1")
    assert str(caught.value) == ("The ranks were stopped after 3 s without a cell (idle_timeout_seconds). Start new "
        "ones with %dist_ranks "
        "start, or ranks.start().")  # fmt: skip
    lab.until_nothing_is_left()


@pytest.mark.full
@pytest.mark.parametrize("backend", ["torch", "horovod-gloo", "horovod-mpi"])
def test_ranks_meet_on_hosts_and_add_up_in_the_next_cells(started, lab, backend):
    session = on_hosts(started, lab, 2, backend)
    assert session.run(SETUP[backend]).errors == {}
    for _ in range(2):
        assert dict(session.run(SUM[backend]).values) == {rank: [10.0, 10.0] for rank in range(4)}


# in an allocation of Slurm ----------------------------------------------------------------------------


def in_slurm(started, count=2, **options):
    return started(1, "torch" if count > 1 else "plain", compute_target="slurm", node_count=count, **options)


@pytest.mark.full
@needs_slurm
@pytest.mark.fault(
    "supervisor", "persistent ranks in Slurm continue with all their variables, and the next cell finds them"
)
def test_one_allocation_of_slurm_runs_cell_after_cell_whatever_becomes_of_supervisors(started, slurm, told):  # noqa: F811
    session = in_slurm(started)
    assert dict(session.run(HOST).values) == {0: "node-a", 1: "node-b"}
    session.run("x = rank\nprint('I am', rank)", on_event=told)
    assert [told.text(rank) for rank in (0, 1)] == ["I am 0\n", "I am 1\n"]
    session.push(large=b"y" * 5_000_000)
    assert {rank: len(value) for rank, value in session.pull("large").items()} == {0: 5_000_000, 1: 5_000_000}
    assert len(slurm.run("squeue", "-h", "-o", "%i").stdout.split()) == 1
    # In the middle of a cell: the kernel hears of it, the cell goes on.
    threading.Timer(1, lambda: found_supervisor_of(session.job).kill()).start()
    with pytest.raises(JobNotRunning, match="The supervisor of the ranks was replaced, so"):
        session.run("import time; time.sleep(20); x = 'went on'")
    assert session.state() == "busy"
    wait_for(lambda: session.state() == "idle")
    assert dict(session.run("x").values) == {0: "went on", 1: "went on"}
    # While nothing runs: another kernel finds them.
    found_supervisor_of(session.job).kill()
    assert "read {0: 'went on', 1: 'went on'}" in another_kernel()
    assert dict(session.run("x").values) == {0: "went on", 1: "went on"}
    session.stop()
    assert session.job.state.value == "completed"
    wait_for(lambda: not slurm.run("squeue", "-h").stdout.split(), what="the end of the allocation")


@pytest.mark.full
@needs_slurm
@pytest.mark.fault("rank", "persistent ranks in Slurm reach its time limit: the limit is named, with a fix")
def test_the_end_of_an_allocation_s_time_is_told_with_the_remedy(started, slurm):  # noqa: F811
    session = in_slurm(started, 1, partition="short")
    with pytest.raises(JobFailed) as caught:
        session.run("import time; time.sleep(600)")
    assert "hit its time limit (TIMEOUT). Raise time_limit" in str(caught.value)
    assert "Start new ones with %dist_ranks start, or ranks.start()." in str(caught.value)


@pytest.mark.full
@needs_slurm
@pytest.mark.fault("rank", "a Slurm node with persistent ranks is lost: it is reported")
def test_a_node_of_an_allocation_that_is_lost_is_named(started, slurm_of):  # noqa: F811
    farm = slurm_of(2)
    session = in_slurm(started)
    threading.Timer(1, lambda: farm.kill_node("node-b")).start()
    with pytest.raises(JobFailed, match=r"node-b|Slurm lost a node of job"):
        session.run("import time; time.sleep(600)")
