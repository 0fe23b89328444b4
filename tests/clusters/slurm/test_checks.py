"""What is checked before a job goes to Slurm, and what is known of one there, from output as Slurm prints it."""

import os
from pathlib import Path

import pytest

from distdl_jupyter.clusters.agents.staging import StagedJob
from distdl_jupyter.clusters.base import Context, Exit
from distdl_jupyter.clusters.slurm import cluster, commands, script
from distdl_jupyter.clusters.slurm.cluster import SlurmJob, SlurmNodes
from distdl_jupyter.clusters.slurm.commands import JobState, SlurmFailed
from distdl_jupyter.clusters.slurm.script import SlurmOptions
from distdl_jupyter.core.plan import Placement
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from tests.conftest import wait_for
from tests.processes import executable

NODES = [
    commands.parse_node("n1", "idle", "8", "0.1", "gpu:4", "none"),
    commands.parse_node("n2", "down", "8", "0.1", "gpu:2", "no power"),
]


@pytest.mark.parametrize(
    ("options", "refusal", "rows"),
    [
        ({}, "", {"Submission": "ok"}),
        ({"gpus_per_node": "4", "time_limit": "1:00:00"}, "", {"Submission": "ok"}),
        (
            {"gpus_per_node": "5"},
            "allocation failure: Requested node configuration is not available",
            {"Submission": "error"},
        ),
    ],
)
def test_a_node_is_entered_only_when_nothing_else_is_wrong(monkeypatch, options, refusal, rows):
    def run(*command, **_):
        assert command[:2] == ("sbatch", "--test-only")
        if refusal:
            raise SlurmFailed(refusal)
        return ""

    entered = []
    monkeypatch.setattr(commands, "explain_missing_commands", lambda: "")
    monkeypatch.setattr(commands, "list_nodes", lambda _partition: NODES)
    monkeypatch.setattr(commands, "run", run)
    monkeypatch.setattr(cluster, "_check_software", lambda *_: entered.append(1) or [])
    found = cluster.SlurmCluster().run_checks(SlurmOptions(**options))
    (nodes,) = [row for row in found if row.what == "Nodes"]
    assert (nodes.level, nodes.message) == ("warning", "1 of 2 nodes are down: n2 (down: no power)")
    assert {row.what: row.level for row in found if row.what not in ("Slurm", "Nodes")} == rows
    assert bool(entered) == ("error" not in rows.values())
    assert all(row.remedy and row.code for row in found if row.level in ("error", "warning"))


@pytest.mark.parametrize(
    ("message", "code", "value"),
    [
        (
            "Invalid account or account/partition combination specified",
            "slurm-account-not-allowed",
            "Remove the option 'account'",
        ),
        ("Invalid qos specification", "slurm-qos-not-allowed", "Remove the option 'qos'"),
        ("invalid partition specified: a1000", "slurm-partition-invalid", "Set the option 'partition'"),
        ("Requested time limit is invalid", "slurm-time-limit", "Lower time_limit"),
        ("Something else", "slurm-refused", ""),
    ],
)
def test_a_refusal_of_sbatch_has_a_code_and_a_remedy(message, code, value):
    found, remedy = commands.explain_sbatch_error(SlurmFailed(f"sbatch failed: {message}."))
    assert found == code
    assert value in remedy
    assert bool(value) == bool(remedy)


@pytest.fixture
def srun(tmp_path, monkeypatch):
    """Put a program in the place of srun that runs these shell commands."""

    def put(commands):
        executable(tmp_path / "srun", commands)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return put


def test_a_free_node_is_checked_with_an_agent_by_the_rules_for_all_hosts(srun):
    srun('while [ "$1" != /bin/bash ]; do shift; done\nexec "$@"')
    rows = cluster._check_software(SlurmOptions(setup="export A=1"), ["pytest", "distdl_nowhere"], ["distdl_program"])
    levels = {row.what: row.level for row in rows}
    assert [levels[name] for name in ("Python", "pytest", "cloudpickle")] == ["ok"] * 3
    assert [levels[name] for name in ("distdl_nowhere", "distdl_program")] == ["error"] * 2
    assert {row.node for row in rows} <= {"", os.uname().nodename}
    assert not {"Network", "Code", "Host key"} & levels.keys()


@pytest.mark.parametrize(
    ("message", "level"),
    [
        ("srun: error: Unable to allocate resources: Requested nodes are busy", "info"),
        ("srun: error: Invalid account", "warning"),
    ],
)
def test_that_no_node_is_free_is_no_warning(srun, message, level):
    srun(f"echo '{message}' >&2; exit 1")
    (row,) = cluster._check_software(SlurmOptions(), [], [])
    assert row.level == level
    assert bool(row.remedy) == (level == "warning")
    assert (message in row.message) == (level == "warning")


@pytest.mark.parametrize(
    ("state", "notices"),
    [
        (JobState("PENDING", "Resources"), 0),
        (JobState("PENDING", "JobHeldUser"), 1),
        (JobState("RUNNING", "JobHeldUser"), 0),
    ],
)
def test_why_a_job_cannot_begin_is_told_once_while_it_waits(monkeypatch, state, notices):
    monkeypatch.setattr(commands, "load_state", lambda _job: state)
    job = SlurmJob(None, "12")
    job.query()
    job.query()
    assert len(job.take_notices()) == notices


@pytest.mark.parametrize(("seconds", "limit"), [(None, ""), (1, 1), (60, 1), (61, 2)])
def test_slurm_gets_a_limit_behind_the_job_s_own(seconds, limit):
    spec = JobSpec(id="20260101-000000-abcde", name="x", max_run_duration_seconds=seconds)
    arguments = script.build_sbatch_arguments(spec, SlurmOptions(), {}, Path("/jobs"), "job.out")
    assert [word for word in arguments if word.startswith("--time=")] == (
        [f"--time={limit + script._LIMIT_MARGIN_MINUTES}"] if limit else []
    )


@pytest.mark.parametrize(
    ("state", "sent", "signal", "evidence"),
    [
        (JobState("FAILED", "NonZeroExitCode", 7), "", None, "Slurm ended the job as FAILED (NonZeroExitCode)."),
        (JobState("OUT_OF_MEMORY"), "", None, "Slurm killed job 12 because it exceeded its memory limit"),
        (JobState("CANCELLED"), "", None, "canceled outside of this package (scancel)"),
        (JobState("CANCELLED"), "TERM", "TERM", ""),
        (JobState("CANCELLED"), "KILL", "KILL", ""),
        (JobState("NODE_FAIL"), "", None, "Slurm lost node-a."),
    ],
)
def test_the_end_of_a_rank_whose_agent_is_gone_is_that_of_the_job(monkeypatch, tmp_path, state, sent, signal, evidence):
    monkeypatch.setattr(commands, "load_state", lambda _job: state)
    folder = JobFolder(tmp_path / "20260101-000000-abcde")
    slurm = SlurmJob(script.JobDirectory(folder, ""), "12")
    slurm.start()
    slurm.sent_signals.update({sent} - {""})
    job = StagedJob(JobSpec(id=folder.id, name="x"), folder, None)
    machines = SlurmNodes(job, Placement((), "", (), ""), Context(folder), [], slurm)
    try:
        end = wait_for(lambda: machines.explain_exit(Exit(0, None, None, "Slurm lost node-a.")))
    finally:
        machines.close()
    assert (end.rank, end.code, end.signal) == (0, None, signal)
    assert evidence in end.evidence
    assert bool(evidence) == bool(end.evidence)


def test_srun_s_words_say_which_node_is_lost_and_which_agent_has_ended(monkeypatch, tmp_path):
    monkeypatch.setattr(commands, "load_state", lambda _job: JobState("RUNNING", nodes="node-[a-c]"))
    slurm = SlurmJob(script.JobDirectory(JobFolder(tmp_path / "20260101-000000-abcde"), ""), "12")
    slurm.on_output("srun: error: Node failure on node-b\nsrun: error: node-c: task 2: Killed\n")
    assert [slurm.explain_loss(at, f"node-{name}") for at, name in enumerate("abc")] == [
        "", "Slurm lost node-b.", "The agent on node-c ended: Killed.",
    ]  # fmt: skip
