"""Slurm's output as it is read and explained; no Slurm is needed."""

import os

import pytest

from distdl_jupyter.clusters.slurm import cluster, commands, script
from distdl_jupyter.clusters.slurm.commands import JobState
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.jobs.job_queue import ClusterQueue, Queue, WaitingJob
from tests.processes import executable


@pytest.mark.parametrize(
    "limit", ["30", "30:00", "30:01", "2:00:00", "1-12", "1-12:30", "2-00:00:01", "UNLIMITED", "infinite"]
)
def test_time_limits_are_taken_as_slurm_writes_them(limit):
    assert registry.check_options("clusters", "slurm", {"time_limit": limit}).time_limit == limit


@pytest.mark.parametrize(
    ("gres", "count", "name"),
    [
        ("gpu:a100:4(S:0-1)", 4, "a100"),
        ("gpu:2", 2, ""),
        ("4", 4, ""),
        ("a100:4", 4, "a100"),
        ("(null)", 0, ""),
        ("craynetwork:4,gpu:v100:8", 8, "v100"),
        ("gpu:a100:4,gpu:h100:2", 6, "a100, h100"),
        ("", 0, ""),
    ],
)
def test_gpus_are_counted(gres, count, name):
    assert commands.count_gpus(gres) == (count, name)


def test_a_number_is_taken_for_text_where_slurm_takes_both():
    options = registry.check_options("clusters", "slurm", {"time_limit": 30, "gpus_per_node": 4})
    assert (options.time_limit, options.gpus_per_node, options.gpus) == ("30", "4", 4)
    assert registry.get("clusters", "slurm").process_count_per_node(options, use_gpu=None) == 4
    assert registry.get("clusters", "slurm").process_count_per_node(options, use_gpu=False) == 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"cpus_per_task": 0}, "cpus_per_task"),
        ({"extra": "--array=1-4"}, "extra"),
        ({"extra": "'open"}, "extra"),
        ({"extra": "-o file"}, "extra"),
        ({"extra": "-o/tmp/x"}, "extra"),
        ({"extra": "--out=/tmp/x"}, "extra"),
        ({"extra": "--err /tmp/x"}, "extra"),
        ({"extra": "-N4"}, "extra"),
        ({"extra": "--export-file=/tmp/x"}, "extra"),
        ({"extra": "--open-mode=truncate"}, "extra"),
        ({"requeue": -1}, "requeue"),
        ({"requeue": True}, "requeue"),
        ({"checkpoint_seconds": 70_000}, "checkpoint_seconds"),
        ({"container_mounts": "/d:/d"}, "container_mounts"),
        ({"extra": "--signal=USR1@60"}, "extra"),
    ],
)
def test_options_that_cannot_be_are_refused(options, field):
    with pytest.raises(InvalidSpec) as refused:
        registry.check_options("clusters", "slurm", options)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "extra",
    ["--hold", "-H", "-pdebug", "-Awell", "-wnode-1", "--nodelist=n1", "--ntasks-per-core=1", "--no-requeue",
     "--comment=--array --mem 4G", "-t30 -x node-o", "--wait-all-nodes=1", "--exclusive -Q"],
)  # fmt: skip
def test_what_only_resembles_an_own_option_of_a_job_is_taken(extra):
    assert registry.check_options("clusters", "slurm", {"extra": extra}).extra == extra


def test_waiting_is_told_with_slurm_s_own_word():
    assert commands.describe_waiting(JobState("PENDING", "Resources")) == "waiting for free nodes (Resources)"
    assert (
        commands.describe_waiting(JobState("PENDING", "Priority")) == "waiting for jobs with higher priority (Priority)"
    )
    assert commands.describe_waiting(JobState("PENDING", "SomethingNew")) == "waiting (SomethingNew)"
    assert "CONFIGURING" in commands.describe_waiting(JobState("CONFIGURING"))
    assert JobState("CONFIGURING").is_pending


def test_what_never_begins_has_a_remedy_and_a_turn_has_none():
    assert commands.make_blocked_notice(JobState("PENDING", "Resources"), "12") is None
    assert commands.make_blocked_notice(JobState("PENDING", "Priority"), "12") is None
    for reason in ("PartitionTimeLimit", "JobHeldUser", "QOSMaxGRESPerUser", "ReqNodeNotAvail,UnavailableNodes:n1"):
        notice = commands.make_blocked_notice(JobState("PENDING", reason), "12")
        assert "12" in notice.text
        assert notice.code
        assert notice.text.endswith((".", ": scontrol release 12"))


def test_a_name_can_pass_for_no_field_of_slurm():
    spec = JobSpec(id="20260101-000000-abcde", name="x JobState=COMPLETED\nReason=y")
    assert script.build_job_name(spec) == "x-JobState-COMPLETED-Reason-y-20260101-000000-abcde"


def test_a_place_that_is_not_known_yet_is_not_shown():
    one = WaitingJob(
        position=None, id="20260101-000000-abcde", name="train", user="", why="", priority=3, target="slurm"
    )
    shown = str(Queue(waiting=(one,), holding=(), total={}, free={})).splitlines()[-1]
    assert shown.split() == ["abcde", "train", "3"]


def test_the_state_of_an_array_is_that_of_a_task_that_goes_on(monkeypatch):
    said = "JobId=13 ArrayTaskId=0 JobState=FAILED\nJobId=12 ArrayTaskId=3-9 JobState=PENDING\n"
    monkeypatch.setattr(commands, "run", lambda *_command, **_more: said)
    assert commands.load_state("12").is_pending
    assert commands.parse_state(said.splitlines()[0]).state == "FAILED"


@pytest.mark.parametrize(
    ("state", "preempted", "is_interrupted"),
    [("RUNNING", "None", False), ("RUNNING", "2026-01-01T00:00:00", True), ("FAILED", "2026-01-01T00:00:00", True),
     ("FAILED", "None", False), ("COMPLETED", "2026-01-01T00:00:00", False),
     ("CANCELLED", "2026-01-01T00:00:00", False),
     ("PREEMPTED", "None", True)],
)  # fmt: skip
def test_a_job_that_is_asked_to_make_room_is_interrupted_before_its_state_says_so(state, preempted, is_interrupted):
    found = commands.parse_state(f"JobId=12 JobState={state} Reason=None PreemptTime={preempted} ExitCode=1:0")
    assert bool(commands.describe_interruption(found, "12")) is is_interrupted


@pytest.mark.parametrize(
    ("state", "reason", "shown", "detail"),
    [
        ("idle", "", "up", "idle"),
        ("mixed", "", "up", "mixed"),
        ("allocated", "", "up", "allocated"),
        ("down", "no power", "down", "down: no power"),
        ("drained", "disk", "down", "drained: disk"),
        ("idle*", "", "down", "idle (no response to Slurm)"),
        ("powering_up", "", "starting", "powering_up"),
        ("completing", "", "up", "completing"),
    ],
)
def test_nodes_are_shown_with_why_they_are_down(state, reason, shown, detail):
    node = commands.parse_node("n1", state, "8", "0.5", "(null)", reason or "none")
    assert (node.state, node.detail, node.cores, node.load) == (shown, detail, 8, 0.5)


def test_what_of_an_own_allocation_could_be_taken_for_a_wish_stays_behind(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_CONF", "/etc/here")
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    kept = commands.build_environment()
    assert "SLURM_NTASKS" not in kept
    assert (kept["SLURM_CONF"], kept["SBATCH_ACCOUNT"]) == ("/etc/here", "mine")


def test_without_slurm_the_remedy_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "login node" in registry.get("clusters", "slurm").unavailable(None)


def test_a_machine_that_is_in_no_cluster_says_what_to_do(monkeypatch, tmp_path):
    # What Slurm 22.05 says without slurm.conf, and without a server that gives it.
    said = "error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host"
    for name in commands.PROGRAMS:
        executable(
            tmp_path / name,
            f"echo '{name}: {said}' >&2\necho '{name}: fatal: Could not establish a configuration source' >&2\nexit 1",
        )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (row,) = registry.get("clusters", "slurm").run_checks(registry.check_options("clusters", "slurm", {}))
    assert (row.level, row.message) == ("error", "Slurm is not configured on this machine.")
    assert "SLURM_CONF" in row.remedy


# ends and the queue -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "is_out_of_memory"),
    [
        ("slurmstepd-n1: error: StepId=1.0 exceeded memory limit (5 > 3), being killed\n", True),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.",
            True,
        ),
        ("slurmstepd: error: Detected 2 oom-kill event(s) in StepId=7.batch.", True),
        ("srun: error: n1: task 0: Killed\nexceeded memory limit, says a rank", False),
    ],
)
def test_kill_for_memory_is_read_in_what_slurm_prints(output, is_out_of_memory, tmp_path):
    slurm = cluster.SlurmJob(script.JobDirectory(JobFolder(tmp_path), ""), "12")
    slurm.on_output(output)
    assert slurm.is_out_of_memory is is_out_of_memory


def test_own_jobs_are_listed_by_slurm_s_order(tmp_path, monkeypatch):
    lines = [
        "7|PENDING|Priority|5|1|4|N/A|long,dd|mine|with a bar",
        "8_3|PENDING|JobArrayTaskLimit|9|2|8|gres:gpu:a100:4|dd|fold",
        "3|RUNNING|None|1|1|8|N/A|dd|digits-20260101-000000-abcde",
    ]
    executable(tmp_path / "squeue", f"cat <<'EOF'\n{chr(10).join(lines)}\nEOF")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    jobs = commands.list_queue()
    assert [(job.id, job.runs, job.gpus) for job in jobs] == [
        ("3", True, 0),
        ("8_3", False, 8),
        ("7", False, 0),
    ]
    assert (jobs[1].why, jobs[2].name) == (
        "waiting for other tasks of its array (JobArrayTaskLimit)", "mine|with a bar")  # fmt: skip
    rows = ClusterQueue(name="Slurm", jobs=tuple(jobs)).make_rows()
    assert rows[0] == ("3", "digits-20260101-000000-abcde", "1 node, 8 cores", "dd", "running")
    assert rows[1][2] == "2 nodes, 8 GPUs, 8 cores"


def test_container_is_srun_s_and_sees_the_job_s_folder(tmp_path):
    options = registry.check_options("clusters", "slurm", {"container_image": "a/b:c", "container_mounts": "/d:/d:ro"})
    assert script.build_container_arguments(options, tmp_path) == [
        "--container-image=a/b:c", f"--container-mounts={tmp_path}:{tmp_path},/d:/d:ro"]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("FAILED|3:0", JobState("FAILED", "", 3, 0)),
        ("CANCELLED by 1000|0:15", JobState("CANCELLED", "", 0, 15)),
        ("RUNNING|0:0", None),
        ("|0:0", None),
        ("", None),
    ],
)
def test_only_an_end_is_read_from_accounting(line, state, tmp_path, monkeypatch):
    executable(tmp_path / "sacct", f"echo '{line}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert commands.load_final_state("7") == state


def test_a_machine_without_accounting_knows_no_ended_job(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commands.load_final_state("7") is None
