"""Jobs on a real Slurm of two nodes, each with a name and an address of its own."""

import textwrap
import time

import pytest

import distdl_jupyter
from distdl_jupyter import JobFailed, attach
from distdl_jupyter.api.submit_process import submit_source
from distdl_jupyter.core import registry
from distdl_jupyter.core.events import State
from distdl_jupyter.core.store import JobStore
from tests.clusters.slurm.conftest import slurm_jobs
from tests.conftest import wait_for
from tests.faults.jobs import found_supervisor_of
from tests.multihost.training import with_horovod
from tests.slurm import needs_slurm
from tests.written import all_written

pytestmark = [needs_slurm, pytest.mark.timeout(600), pytest.mark.usefixtures("nothing_stays")]

COUNT = """
    import os, time
    for number in range({lines}):
        print("line", number, flush=True)
        time.sleep({pause})
    os.environ["RANK"]
"""
COUNT_UNTIL = """
    import os, time
    number = 0
    while not os.path.exists("{go}"):
        print("line", number, flush=True)
        number += 1
        time.sleep(0.1)
    number
"""


def submit(code, nodes=1, per_node=1, backend="torch", **options):
    wanted = {"node_count": nodes, "process_count_per_node": per_node, "distributed_backend": backend,
              "compute_target": "slurm", **options}  # fmt: skip
    return submit_source(textwrap.dedent(code).strip(), options=wanted)


def lines(job, rank=0):
    """Return what a rank printed, line by line."""
    found = []
    for event in events(job):
        if event["type"] == "log" and event["rank"] == rank and event["stream"] == "out":
            found += event["text"].splitlines()
    return found


def events(job):
    return all_written(JobStore().find(job.id))


def notes(job, code):
    return [event["text"] for event in events(job) if event["type"] == "note" and event["code"] == code]


def detail(job):
    phases = job.view().phases
    return phases[-1].detail if phases else ""


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 1), pytest.param(2, 2, marks=pytest.mark.full)])
def test_horovod_trains(slurm, nodes, per_node):
    options = {"node_count": nodes, "process_count_per_node": per_node, "distributed_backend": "horovod-gloo"}
    values = distdl_jupyter.submit(with_horovod, compute_target="slurm", **options).results(timeout=240)
    assert [value["rank"] for value in values] == list(range(nodes * per_node))
    assert {value["size"] for value in values} == {nodes * per_node}
    for rank, value in enumerate(values):
        assert value["local_rank"] == rank % per_node
        assert value["cross_rank"] == rank // per_node
        assert value["machine"] == slurm.names[rank // per_node]
        assert value["weights"] == values[0]["weights"]


# queue ----------------------------------------------------------------------------------------


def test_what_can_never_begin_is_said_with_its_remedy_and_can_be_canceled(slurm):
    job = submit("1", partition="short", time_limit="5")
    wait_for(lambda: notes(job, "PartitionTimeLimit"), what="the notice")
    assert "Lower time_limit" in notes(job, "PartitionTimeLimit")[0]
    assert job.state is State.QUEUED
    job.cancel()
    assert job.wait(60).state is State.CANCELED
    assert slurm_jobs(slurm) == {}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"partition": "nowhere"}, "slurm-partition-invalid"),
        ({"gpus_per_node": "2"}, "slurm-gpus-invalid"),
    ],
)
def test_what_cannot_work_is_seen_before_a_job_is_submitted(slurm, options, code):
    cluster = registry.get("clusters", "slurm")
    rows = cluster.run_checks(registry.check_options("clusters", "slurm", options))
    (red,) = [row for row in rows if row.level == "error"]
    assert red.code == code
    assert red.remedy


# ends -----------------------------------------------------------------------------------------

SAVES = """
    import time
    try:
        print("here", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        print("saved", flush=True)
        raise
"""


def test_a_running_job_is_canceled_and_ranks_may_save(slurm):
    job = submit(SAVES, nodes=2)
    wait_for(lambda: lines(job, 0) and lines(job, 1))
    job.cancel()
    assert job.wait(60).state is State.CANCELED
    assert [lines(job, rank)[-1] for rank in (0, 1)] == ["saved", "saved"]
    assert slurm_jobs(slurm) == {}


def test_the_rank_that_failed_is_named_and_the_others_end(slurm):
    code = "import os, time\nif os.environ['RANK'] == '1':\n    {}['label']\ntime.sleep(600)"
    job = submit(code, nodes=2)
    with pytest.raises(JobFailed) as failed:
        job.result(timeout=120)
    assert failed.value.rank == 1
    assert "KeyError: 'label'" in str(failed.value)
    assert slurm_jobs(slurm) == {}


@pytest.mark.full
def test_a_node_that_is_lost_is_named(slurm_of):
    slurm = slurm_of(2)
    job = submit(SAVES, nodes=2)
    wait_for(lambda: lines(job, 0) and lines(job, 1))
    slurm.kill_node("node-b")
    assert job.wait(120).state is State.FAILED
    failure = job.view().failure
    assert (failure.rank, failure.kind) == (1, "lost"), failure
    assert "node-b" in failure.evidence


def test_a_setup_that_fails_is_told_with_what_it_printed(slurm):
    job = submit("1", nodes=2, setup="echo 'no module cuda' >&2; exit 4").wait(60)
    assert job.state is State.FAILED
    assert "exited with code 4" in job.view().reason
    assert any("no module cuda" in event["text"] for event in events(job) if event["type"] == "log")


# what else may die ----------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.fault("supervisor", "on Slurm it is found again and continues; no line is lost")
def test_a_job_whose_supervisor_was_killed_goes_on_and_nothing_of_it_is_lost(slurm):
    job = submit(COUNT.format(lines=60, pause=0.1), nodes=2)
    wait_for(lambda: len(lines(job, 0)) > 10 and len(lines(job, 1)) > 10)
    found_supervisor_of(job).kill()
    time.sleep(1.0)  # lines that nobody reads meanwhile
    assert list(slurm_jobs(slurm).values()) == ["RUNNING"]
    again = attach(job.id)
    assert again.results(timeout=120) == ["0", "1"]
    for rank in (0, 1):
        assert lines(job, rank) == [f"line {number}" for number in range(60)]
    assert notes(job, "reattached")


def test_a_job_that_ended_while_nobody_looked_is_found_whole(slurm):
    job = submit(COUNT.format(lines=20, pause=0.1), nodes=2)
    wait_for(lambda: len(lines(job, 0)) > 3)
    found_supervisor_of(job).kill()
    wait_for(lambda: not slurm_jobs(slurm), what="the end of the Slurm job")
    assert attach(job.id).results(timeout=120) == ["0", "1"]
    assert lines(job, 1) == [f"line {number}" for number in range(20)]


@pytest.mark.full
def test_a_job_goes_on_while_slurm_s_controller_is_down(slurm, tmp_path):
    go = tmp_path / "go"
    job = submit(COUNT_UNTIL.format(go=go), nodes=2)
    wait_for(lambda: len(lines(job, 0)) > 5)
    slurm.stop_controller()
    try:
        wait_for(lambda: notes(job, "slurm-silent"), what="the notice that Slurm is silent")
    finally:
        slurm.start_controller()
    go.touch()
    last = job.results(timeout=120)
    for rank in (0, 1):
        assert lines(job, rank) == [f"line {number}" for number in range(last[rank])]
    assert len(notes(job, "slurm-silent")) == 1


# files and secrets ----------------------------------------------------------------------------

KEEPS = """
    import os, pathlib
    kept = pathlib.Path(os.environ["DISTDL_JOB_DIR"], "outputs", os.environ["RANK"])
    kept.write_text("kept")
    [os.environ["API_TOKEN"], os.environ["PLAIN"], os.environ["FROM_SETUP"], os.getcwd()]
"""


@pytest.mark.full
def test_nodes_that_do_not_see_the_job_s_folder_are_told(slurm_of, distdl_home):
    slurm_of(1, private={"node-a": [str(distdl_home.parent)]})
    job = submit("1").wait(120)
    assert job.state is State.FAILED
    assert "directory" in job.view().reason


@pytest.mark.full
def test_a_shared_directory_carries_the_job_and_its_results_come_home(slurm_of, distdl_home, tmp_path_factory):
    shared = tmp_path_factory.mktemp("shared")
    slurm_of(2, private={name: [str(distdl_home.parent)] for name in ("node-a", "node-b")})
    variables = {"API_TOKEN": "s3cret-word", "PLAIN": "a 'b' $c"}
    job = submit(KEEPS, nodes=2, directory=str(shared), environment_variables=variables,
                 setup="export FROM_SETUP='a b'")  # fmt: skip
    for value in job.results(timeout=120):
        assert value[:3] == ["s3cret-word", "a 'b' $c", "a b"]
    folder = JobStore().find(job.id)
    assert sorted(path.name for path in folder.outputs.iterdir()) == ["0", "1"]
    assert list(shared.iterdir()) == []
