"""What is looked at before a job goes to Slurm, and what is told of one there, of answers as Slurm gives them."""

import json
import platform

import pytest

from distdl_jupyter.clusters.agents.staging import Job
from distdl_jupyter.clusters.base import Context, Exit
from distdl_jupyter.clusters.slurm import accounting, checkup, commands, nodes, probe, script, sinfo, words
from distdl_jupyter.clusters.slurm.commands import JobState, SlurmFailed
from distdl_jupyter.clusters.slurm.options import SlurmOptions
from distdl_jupyter.clusters.slurm.sinfo import Node, Partition
from distdl_jupyter.clusters.slurm.watch import Watch
from distdl_jupyter.core.plan import Placement
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from tests.conftest import wait_for

PARTITIONS = [Partition("gpu", up=True, time_limit=60, nodes=2, default=True),
              Partition("old", up=False, time_limit=None, nodes=1, default=False),
              Partition("long", up=True, time_limit=None, nodes=1, default=False)]  # fmt: skip
NODES = [Node("n1", "idle", gpus=4), Node("n2", "down", gpus=2, reason="no power")]


@pytest.fixture
def check(monkeypatch):
    """Return ``check(**options)``: the rows that are not ok, as (what, level, what it says); nodes are not entered."""
    monkeypatch.setattr(commands, "absent", lambda: "")
    monkeypatch.setattr(sinfo, "partitions", lambda: PARTITIONS)
    monkeypatch.setattr(sinfo, "nodes", lambda _partition: NODES)
    monkeypatch.setattr(accounting, "allowed", lambda _partition: None)
    looked = []
    monkeypatch.setattr(probe, "look", lambda *_: looked.append(1) or [])

    def check(**options):
        looked.clear()
        rows = checkup.checked(SlurmOptions(**options), [], [])
        assert bool(looked) == all(row.level != "error" for row in rows), "nodes are entered when nothing else is wrong"
        return [(row.what, row.level) for row in rows if row.what not in ("Slurm", "Node", "Folder")]

    return check


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, [("Partition", "ok"), ("Time limit", "ok"), ("GPUs", "info")]),
        ({"time_limit": "60", "gpus_per_node": "4"}, [("Partition", "ok"), ("Time limit", "ok")]),
        ({"time_limit": "61", "gpus_per_node": "4"}, [("Partition", "ok"), ("Time limit", "error")]),
        ({"gpus_per_node": "5"}, [("Partition", "ok"), ("Time limit", "ok"), ("GPUs", "error")]),
        ({"partition": "long", "time_limit": "9-0", "gpus_per_node": "1"}, [("Partition", "ok")]),
        ({"partition": "old", "gpus_per_node": "1"}, [("Partition", "error")]),
        ({"partition": "none", "gpus_per_node": "1"}, [("Partition", "error")]),
    ],
)
def test_what_a_partition_cannot_give_is_an_error(check, options, rows):
    assert check(**options) == rows


def facts(monkeypatch, **changes):
    """Let a node answer with these facts."""
    python = {"version": platform.python_version()}
    found = {
        "host": "n1",
        "modules": {"cloudpickle": True, "obstore": True},
        "packages": {},
        "python": python,
        "programs": {},
        **changes,
    }
    monkeypatch.setattr(commands, "run", lambda *_, **_more: f"motd\nDISTDL-FACTS{json.dumps(found)}\n")
    return [(row.what, row.level) for row in probe.look(SlurmOptions(), "python", ["pytest"], ["mpirun"])]


def test_what_a_node_has_not_or_has_otherwise_is_told(monkeypatch):
    ok = {"modules": {"cloudpickle": True, "obstore": True, "pytest": True}, "programs": {"mpirun": "/usr/bin/mpirun"}}
    same = {"packages": {"cloudpickle": "", "obstore": "", "pytest": ""}}
    names = ["Python", "cloudpickle", "obstore", "pytest", "mpirun"]
    assert facts(monkeypatch, **ok, **same) == [(name, "ok") for name in names]
    assert facts(monkeypatch, **ok, packages={"cloudpickle": "0.1"})[1] == ("cloudpickle", "warning")
    assert facts(monkeypatch, **ok, python={"version": "2.7.18"})[0] == ("Python", "warning")
    without = {"modules": {"cloudpickle": True, "pytest": True}}
    assert facts(monkeypatch, **without)[2] == ("obstore", "warning")
    assert facts(monkeypatch)[3:] == [("pytest", "error"), ("mpirun", "error")]


@pytest.mark.parametrize(
    ("message", "level"),
    [
        ("srun: error: Unable to allocate resources: Requested nodes are busy", "info"),
        ("srun: no such file", "warning"),
    ],
)
def test_that_no_node_is_free_is_no_warning(monkeypatch, message, level):
    def refuse(*_, **_more):
        raise SlurmFailed(message)

    monkeypatch.setattr(commands, "run", refuse)
    (row,) = probe.look(SlurmOptions(), "python", [], [])
    assert row.level == level
    assert bool(row.remedy) == (level == "warning")


@pytest.mark.parametrize(
    ("state", "notices"),
    [
        (JobState("PENDING", "Resources"), 0),
        (JobState("PENDING", "JobHeldUser"), 1),
        (JobState("RUNNING", "JobHeldUser"), 0),
    ],
)
def test_why_a_job_cannot_begin_is_told_once_while_it_waits(monkeypatch, state, notices):
    monkeypatch.setattr(commands, "state", lambda _job: state)
    watch = Watch("12")
    watch._look()
    watch._look()
    assert len(watch.notices()) == notices


@pytest.mark.parametrize(("seconds", "limit"), [(None, ""), (1, 1), (60, 1), (61, 2)])
def test_slurm_gets_a_limit_behind_the_job_s_own(seconds, limit):
    spec = JobSpec(id="20260101-000000-abcde", name="x", max_run_duration_seconds=seconds)
    assert script._limit_of(spec) == (limit and str(limit + script._SPARE))


def test_a_job_s_files_can_be_taken_away_twice(tmp_path):
    site = script.Site(JobFolder(tmp_path / "20260101-000000-abcde"), "")
    site.run.mkdir(parents=True)
    site.remove()
    site.remove()
    assert not site.run.exists()
    assert site.job.exists()


def test_an_end_that_nobody_explains_names_slurms_state():
    assert words.end(JobState("COMPLETING")) == ""
    assert words.unexplained(JobState("COMPLETING", "Why")) == "Slurm ended the job as COMPLETING (Why)."


@pytest.mark.parametrize(
    ("state", "sent", "signal", "evidence"),
    [
        (JobState("FAILED", "NonZeroExitCode", 7), "", None, "Slurm ended the job as FAILED (NonZeroExitCode)."),
        (JobState("OUT_OF_MEMORY"), "", None, "Slurm killed the job because it exceeded its memory"),
        (JobState("CANCELLED"), "", "TERM", "canceled outside of this package (scancel)"),
        (JobState("CANCELLED"), "TERM", "TERM", ""),
        (JobState("CANCELLED"), "KILL", "KILL", ""),
        (JobState("NODE_FAIL"), "", None, "Slurm lost node-a."),
    ],
)
def test_the_end_of_a_rank_whose_agent_is_gone_is_that_of_the_job(monkeypatch, tmp_path, state, sent, signal, evidence):
    monkeypatch.setattr(commands, "state", lambda _job: state)
    folder = JobFolder(tmp_path / "20260101-000000-abcde")
    slurm = nodes.SlurmJob(script.Site(folder, ""), "12")
    slurm.sent.update({sent} - {""})
    job = Job(JobSpec(id=folder.id, name="x"), folder, None)
    machines = nodes.SlurmNodes(job, Placement((), "", (), ""), Context(folder), [], slurm)
    try:
        end = wait_for(lambda: machines.explained(Exit(0, None, None, "Slurm lost node-a.")))
    finally:
        machines.close()
    assert (end.rank, end.code, end.signal) == (0, None, signal)
    assert evidence in end.evidence
    assert bool(evidence) == bool(end.evidence)


def test_srun_s_words_say_which_node_is_lost_and_which_agent_has_ended(monkeypatch, tmp_path):
    monkeypatch.setattr(commands, "state", lambda _job: JobState("RUNNING", nodes="node-[a-c]"))
    slurm = nodes.SlurmJob(script.Site(JobFolder(tmp_path / "20260101-000000-abcde"), ""), "12")
    slurm.listen("srun: error: Node failure on node-b\nsrun: error: node-c: task 2: Killed\n")
    assert [slurm.why_lost(at, f"node-{name}") for at, name in enumerate("abc")] == [
        "", "Slurm lost node-b.", "The agent on node-c ended: Killed.",
    ]  # fmt: skip
    slurm.watch.stop()
