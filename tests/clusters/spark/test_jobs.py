"""Jobs on a real standalone Spark of two hosts, as users see them."""

import os
import signal

import pytest

from distdl_jupyter import submit
from distdl_jupyter.clusters import cluster_configs, spark
from distdl_jupyter.clusters.spark import SparkCluster, SparkOptions
from distdl_jupyter.core.errors import InvalidSpec, JobFailed
from distdl_jupyter.core.events import State
from distdl_jupyter.node import processes
from tests.clusters.functions import breaks, shows_gpus, sums, trains, waits
from tests.clusters.spark.conftest import CORES
from tests.conftest import wait_for
from tests.faults.jobs import found_supervisor_of
from tests.hosts import needs_hosts

pytestmark = [needs_hosts, pytest.mark.timeout(300)]


TWO = {"compute_target": "lab", "node_count": 2, "process_count_per_node": 1, "distributed_backend": "torch"}


def begun(job, ranks=2):
    def all_have():
        assert not job.view().state.ended, job.view().reason
        return all(any(line.text == "begun" for line in job.logs(rank)) for rank in range(ranks))

    wait_for(all_have, 120, "the first lines")


def drivers(job):
    return processes.find_marked(processes.read_table(), {"DISTDL_SPARK_DRIVER": job.id})


@pytest.mark.full
@pytest.mark.parametrize("backend", ["horovod-gloo", "horovod-mpi"])
def test_horovod_trains_on_the_executors(on_spark, backend):
    job = submit(trains, **{**TWO, "distributed_backend": backend})
    assert job.results() == [3.0, 3.0]
    assert [rank.host for rank in job.view().ranks] == on_spark.names
    assert [line.text for line in job.logs(1) if line.text.startswith("rank")] == ["rank 1 of 2"]


def test_rank_that_raises_is_named_with_its_line(on_spark):
    job = submit(breaks, **TWO)
    with pytest.raises(JobFailed, match="a bad batch") as failed:
        job.result()
    assert 'raise ValueError("a bad batch")' in str(failed.value)
    assert "Rank 1" in job.view().reason
    wait_for(lambda: not drivers(job), 10, "the end of Spark's driver")


@pytest.mark.full
@pytest.mark.fault("supervisor", "nothing of a job on Spark is left when its supervisor was killed")
def test_supervisor_killed_leaves_nothing(on_spark):
    job = submit(waits, **TWO)
    begun(job)
    found_supervisor_of(job).kill()
    wait_for(lambda: not on_spark.agents(), 10, "no agent on any host")
    wait_for(lambda: not drivers(job), 15, "the end of Spark's driver")
    wait_for(lambda: not any(on_spark.executors(name) for name in on_spark.names), 10, "no executor on any host")
    assert list(SparkCluster().sweep(job.id, {})) == []
    assert job.wait(30).state is State.LOST


@pytest.mark.full
@pytest.mark.fault("rank", "an executor of Spark that is lost is named, and the others end")
@pytest.mark.parametrize("words", ["CoarseGrainedExecutorBackend", "org.apache.spark"])
def test_lost_executor_or_worker_is_named(on_spark, words):
    job = submit(waits, **TWO)
    begun(job)
    lost = on_spark.names[1]
    on_spark.kill(lost, words)
    try:
        assert job.wait(60).state is State.FAILED
        assert lost in job.view().reason
        wait_for(lambda: not on_spark.agents(), 30, "no agent on any host")
    finally:
        if words == "org.apache.spark":
            on_spark.join(lost)


@pytest.mark.full
def test_ranks_get_the_gpus_that_spark_has_given_to_the_job(on_spark):
    cluster_configs.add("gpus", "spark", {**on_spark.options, "gpus_per_node": 1})
    options = {**TWO, "compute_target": "gpus"}
    first = submit(shows_gpus, (600,), **options)
    begun(first)
    second = submit(shows_gpus, (0,), **options).results()
    given = [str(rank.gpu) for rank in first.view().ranks]
    first.cancel(now=True)
    first.wait(60)
    for (own, marked), other in zip(second, given, strict=True):
        assert own == marked
        assert {own, other} == {"0", "1"}, "two jobs on one host have one GPU each"


@pytest.mark.full
def test_without_free_executors_a_job_waits_and_says_so_and_so_does_a_check(on_spark, monkeypatch):
    cluster_configs.add("whole", "spark", {**on_spark.options, "cpus_per_process": CORES})
    holder = submit(waits, **{**TWO, "compute_target": "whole"})
    begun(holder)
    waiting = submit(sums, **TWO)
    reason = "waiting for 2 Spark executors with 1 core each"
    wait_for(lambda: waiting.view().phases and waiting.view().phases[-1].detail == reason, 120, "the reason")
    assert waiting.view().state is State.QUEUED
    monkeypatch.setattr(spark, "_CHECK_SECONDS", 20.0)
    (row,) = SparkCluster().run_checks(SparkOptions(**on_spark.options))
    assert (row.level, row.code) == ("error", "spark-no-executor")
    assert row.message == "No Spark executor was free within 20 s: waiting for 1 Spark executor with 1 core."
    assert "when Spark's other jobs have ended" in row.remedy
    holder.cancel(now=True)
    assert [value for value, _ in waiting.results()] == [3.0, 3.0]


@pytest.mark.parametrize("options", [{"master": "spark://127.0.0.1:1"}, {"remote": "sc://127.0.0.1:1"}])
def test_cluster_that_does_not_respond_is_refused_with_the_remedy(options):
    (row,) = SparkCluster().run_checks(SparkOptions(**options))
    assert (row.level, row.code) == ("error", "spark-unreachable")
    assert "127.0.0.1:1 does not respond: Connection refused" in row.message
    assert "correct the option 'master'" in row.remedy


@pytest.mark.full
def test_executors_without_the_python_are_refused_with_the_remedy(on_spark):
    cluster_configs.add("other", "spark", {**on_spark.options, "python": "/nowhere/python3"})
    job = submit(sums, **{**TWO, "compute_target": "other"})
    assert job.wait(120).state is State.FAILED
    assert job.view().reason_code == "spark-stage-failed"
    assert "There is no Python at /nowhere/python3 on the executors" in job.view().reason


@pytest.mark.full
@pytest.mark.fault("rank", "a driver of Spark that is lost is named, and the ranks end")
def test_driver_killed_is_named(on_spark):
    job = submit(waits, **TWO)
    begun(job)
    for pid in drivers(job):
        os.kill(pid, signal.SIGKILL)
    assert job.wait(60).state is State.FAILED
    assert "The Spark driver exited with code -9" in job.view().reason
    wait_for(lambda: not on_spark.agents(), 10, "no agent on any host")


@pytest.mark.full
def test_mpirun_refuses_several_executors_of_one_host(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "configuration"))
    cluster_configs.add("here", "spark", {"master": "local-cluster[2,1,1024]"})
    job = submit(trains, **{**TWO, "compute_target": "here", "distributed_backend": "horovod-mpi"})
    assert job.wait(120).state is State.FAILED
    assert "several executors on one host" in job.view().reason


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("distdl: node-b cannot reach 10.0.0.1:40: timed out", "node-b cannot reach 10.0.0.1:40: timed out."),
        ("[SPARK-24942]: Barrier execution mode does not support dynamic resource allocation for now.",
         "Spark aborted the job's stage: [SPARK-24942]: Barrier execution mode does not support dynamic resource "
         "allocation for now."),
        ("Python in worker has different version: 3.12 than that in driver: 3.11, PySpark cannot run with",
         "The executors run Python 3.12, but this job runs Python 3.11."),
    ],
)  # fmt: skip
def test_errors_of_spark_are_explained_with_a_remedy(text, says):
    sentence, remedy = spark._explain(text)
    assert (sentence, bool(remedy)) == (says, True)


def refusal(options):
    with pytest.raises(InvalidSpec) as refused:
        SparkCluster().validate(SparkOptions(**options))
    return refused.value


def test_options_that_are_no_cluster_are_refused():
    for options in ({}, {"master": "yarn", "remote": "sc://a"}):
        assert refusal(options).message == (
            "A Spark cluster needs either a master, a remote, or a Spark session in this process."
        )
    assert "SPARK_CONNECT_AUTHENTICATE_TOKEN" in refusal({"remote": "sc://a:443/;token=abcdefgh"}).hint
    assert refusal({"master": "yarn", "conf": "many"}).field == "conf"
    assert "process list" in str(refusal({"master": "yarn", "conf": '{"spark.authenticate.secret": "s3cr3tvalue"}'}))
    assert refusal({"master": "yarn", "cpus_per_process": 0}).field == "cpus_per_process"
