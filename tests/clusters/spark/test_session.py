"""Jobs in the Spark session of the notebook that submits them, with ``compute_target="spark"`` and nothing else."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

from distdl_jupyter import attach, submit
from distdl_jupyter.clusters import spark
from distdl_jupyter.clusters.spark import SparkOptions, Stage, StageSpec
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.events import State
from tests.clusters.functions import waits
from tests.clusters.spark.conftest import CONF, PORT
from tests.clusters.spark.test_jobs import begun
from tests.conftest import wait_for
from tests.hosts import needs_hosts

pytestmark = [needs_hosts, pytest.mark.timeout(300)]


def own_address(master):
    """Return this machine's address that leads to the master."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((master.removeprefix("spark://").partition(":")[0], PORT))
        return asking.getsockname()[0]


@contextlib.contextmanager
def kernel(name, settings):
    """Run ``kernel`` with a session of these settings; yield its process and the job that it has submitted."""
    words = [sys.executable, "-m", "tests.clusters.spark.kernel", name, json.dumps(settings)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, attach(answer(process)["job"])
        finally:
            process.kill()


def answer(process):
    return json.loads(next(line for line in process.stdout if line.startswith("{")))


@pytest.fixture
def settings(on_spark):
    address = own_address(on_spark.address)
    return {**CONF, "spark.master": on_spark.address, "spark.driver.host": address, "spark.ui.enabled": "false",
            "spark.driver.bindAddress": address, "spark.pyspark.python": sys.executable, "spark.cores.max": "4",
            "spark.executor.cores": "2", "spark.log.level": "ERROR"}  # fmt: skip


@pytest.mark.full
def test_job_runs_on_the_executors_of_its_notebook_which_go_on(on_spark, settings):
    with kernel("sums", settings) as (process, job):
        ended = answer(process)
        assert (ended["state"], ended["reason"]) == ("completed", "")
        assert ended["hosts"] == on_spark.names
        assert ended["rows"] == 100
        assert "kernel-session" in ended["notes"]
        assert [value for value, _ in job.results()] == [3.0, 3.0]
        assert not on_spark.agents()


@pytest.mark.full
@pytest.mark.fault("supervisor", "a job in a notebook's Spark session ends by name when its kernel is killed")
def test_kernel_that_is_killed_ends_the_job_and_is_named(on_spark, settings):
    with kernel("waits", settings) as (process, job):
        begun(job)
        process.send_signal(signal.SIGKILL)
        view = job.wait(60).view()
        assert view.state is State.FAILED
        assert "The kernel with the Spark session of the job has ended." in view.reason
        wait_for(lambda: not on_spark.agents(), 15, "no agent on any host")


@pytest.mark.full
def test_job_in_a_session_of_spark_connect_outlives_its_notebook(on_spark, connect_server):
    with kernel("waits", {"remote": connect_server}) as (process, job):
        assert job.spec.cluster_options == {"remote": connect_server}
        begun(job)
        process.kill()
        process.wait()
        time.sleep(3)
        assert len(on_spark.agents()) >= 2
        assert not job.view().state.ended
        job.cancel()
        assert job.wait(60).state is State.CANCELED


def test_without_a_session_there_is_one_sentence(distdl_home):
    with pytest.raises(InvalidSpec) as caught:
        submit(waits, compute_target="spark")
    assert caught.value.code == "spark-no-master"
    assert "Start a session (spark = SparkSession.builder.getOrCreate())" in caught.value.hint


@pytest.mark.full
@pytest.mark.timeout(700)
def test_old_calls_run_in_the_session_and_give_what_pysparks_own_gives(distdl_home):
    """On one machine: PySpark's ranks meet by names of hosts, which the hosts of these tests do not have.

    PySpark's own starts torchrun on each executor, of which one may wait 300 s for another that has left.
    """
    settings = {"spark.master": "local-cluster[2,2,1024]", "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    words = [sys.executable, "-m", "tests.clusters.spark.old_calls", json.dumps(settings)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}  # PySpark's own needs NumPy on the executors
    done = subprocess.run(words, capture_output=True, text=True, timeout=650, env=environment)
    assert done.returncode == 0, done.stderr[-9000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert found == {"ours": 3.0, "theirs": 3.0, "runner": 3.0, "horovod.spark": [3.0, 3.0], "rows": 100}


def test_session_that_was_stopped_is_told_with_the_remedy(monkeypatch):
    """The kernel continues, and its socket with it; no other session is started in its place."""
    monkeypatch.setattr(spark, "_get_active_context", lambda: None)
    stage = Stage(SparkOptions(session=spark._listen(), host="127.0.0.1"), StageSpec("job"))
    with contextlib.closing(stage), pytest.raises(LaunchFailed) as caught:
        stage.await_tasks(lambda _reason: None, 10)
    assert caught.value.code == "spark-session-stopped"
    assert "spark = SparkSession.builder.getOrCreate()" in caught.value.hint


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_somebody_else_at_the_place_of_a_kernel_that_has_ended_is_told_nothing():
    """What is said there holds the secret with which the job's code and variables could be had."""
    words = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("listens", flush=True)
print(server.accept()[0].recv(1000))
"""
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 65534, 65534)
        path = f"{folder}/session"
        with subprocess.Popen([sys.executable, "-c", words, path], stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout.readline() == "listens\n"
            with pytest.raises(LaunchFailed, match=r"The kernel with the Spark session of the job has ended\."):
                Stage(SparkOptions(session=path, host="127.0.0.1"), StageSpec(name="job"))
            assert other.stdout.read() == "b''\n"
