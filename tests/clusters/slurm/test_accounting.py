"""What a Slurm with its accounting says: how jobs have ended, under which accounts one may run, who waits for what."""

import json
import time

import pytest

from distdl_jupyter import add_cluster, queue
from distdl_jupyter.cli import main
from distdl_jupyter.clusters.slurm import commands
from distdl_jupyter.core import registry
from distdl_jupyter.core.events import State
from tests.clusters.slurm.conftest import slurm_jobs
from tests.clusters.slurm.test_slurm import COUNT, detail, events, submit
from tests.conftest import wait_for
from tests.slurm import needs_slurm

pytestmark = [needs_slurm, pytest.mark.timeout(300), pytest.mark.full, pytest.mark.usefixtures("nothing_stays")]


@pytest.fixture
def slurm(site):
    return site


@pytest.fixture
def no_accounting(slurm):
    """Slurm whose slurmdbd is down for this test."""
    slurm.stop_accounting()
    yield slurm
    slurm.start_accounting()


def rows(**options):
    cluster = registry.get("clusters", "slurm")
    return {row.what: row for row in cluster.run_checks(registry.check_options("clusters", "slurm", options))}


# ends ------------------------------------------------------------------------------------------


@pytest.mark.fault("rank", "more memory than its Slurm job has: killed, with the reason and a fix")
def test_job_that_takes_too_much_memory_is_told_so(slurm):
    job = submit("held = bytearray(900_000_000)\nimport time\ntime.sleep(60)", extra="--mem=300M").wait(120)
    assert job.state is State.FAILED
    assert "OUT_OF_MEMORY" in job.view().reason
    assert "--mem=64G" in job.view().reason


def test_job_that_slurm_has_forgotten_is_known_by_its_accounting(slurm):
    number = slurm.run("sbatch", "--parsable", "--output=/dev/null", "--time=1", "--wrap=exit 4").stdout.strip()
    state = wait_for(lambda: commands.load_final_state(number), what="the accounting of the job")
    assert (state.state, state.exit_code) == ("FAILED", 4)
    assert commands.load_final_state("4000000") is None


@pytest.mark.fault("queue", "slurmdbd down: jobs start and end as before")
def test_jobs_run_while_the_accounting_is_down(no_accounting):
    began = time.monotonic()
    assert submit("7", account="physics").result(timeout=120) == 7
    assert time.monotonic() - began < 60


# accounts --------------------------------------------------------------------------------------


@pytest.mark.fault("queue", "an account or QOS of others: rejected before the start, with Slurm's reason and a fix")
@pytest.mark.parametrize(
    ("options", "what", "has"),
    [
        ({"account": "biology"}, "Invalid account", "Remove the option 'account'"),
        ({"account": "physics", "qos": "night"}, "Invalid qos", "Remove the option 'qos'"),
    ],
)
def test_account_of_others_is_refused_before_the_start(slurm, options, what, has):
    job = submit("1", **options).wait(60)
    assert job.state is State.FAILED
    assert what in job.view().reason
    assert has in job.view().reason
    assert not [event for event in events(job) if event["type"] == "handle"], "a Slurm job was submitted"
    found = rows(**options)["Submission"]
    assert (found.level, has in found.remedy) == ("error", True)


# the queue -------------------------------------------------------------------------------------


def test_queue_shows_the_user_s_jobs_and_no_others(slurm, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    add_cluster("farm", "slurm", partition="dd")
    other = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    slurm.run("sacctmgr", "--immediate", "add", "user", "nobody", "account=biology")
    slurm.run(*other, "sbatch", "--exclusive", "--nodes=2", "--time=5", "--output=/dev/null", "--job-name=fold",
              "--wrap=sleep 600", cwd="/tmp")  # fmt: skip
    wait_for(lambda: "RUNNING" in slurm_jobs(slurm).values())
    job = submit(COUNT.format(lines=1, pause=0), compute_target="farm", time_limit="2", extra="--exclusive")
    view = wait_for(lambda: job.view().queue, what="the reason why it waits")
    assert (view.position, view.host, view.is_fixed) == (0, "Slurm", True)
    assert "waiting for" in detail(job)
    (cluster,) = queue().clusters
    assert [(row.name.split("-")[0], row.runs) for row in cluster.jobs] == [("cell", False)]
    assert main(["queue"]) == 0
    assert "Slurm, your jobs:" in capsys.readouterr().out
    assert main(["queue", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["clusters"][0]["jobs"]
    assert row["partition"] == "dd"
    job.cancel()
    assert job.wait(60).state is State.CANCELED
    slurm.run("scancel", "--user=nobody")


# containers ------------------------------------------------------------------------------------


def test_container_is_refused_where_slurm_has_no_pyxis(slurm):
    job = submit("1", container_image="ubuntu:24.04").wait(60)
    assert job.state is State.FAILED
    assert "srun has no option --container-image" in job.view().reason
    assert "remove container_image" in job.view().reason
