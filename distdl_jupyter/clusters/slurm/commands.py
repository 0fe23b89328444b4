"""Runs Slurm's commands, reads their output, and explains Slurm's terms to users, with remedies.

The default output is for people, so commands request fields by name, and ``script.build_job_name`` never returns a name
that looks like a field. Many sites have no accounting (slurmdbd), and it can be down while Slurm works. This module
must not import this package's job classes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distdl_jupyter.clusters.base import NodeInfo, NodeState, RunNotice
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.plan import QueuedJob

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo")
#: Variables of an allocation that Slurm's commands inherit; all others would become options of the new job.
_INHERITED = frozenset(("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_DEBUG_FLAGS"))
#: The remedy if Slurm's commands are missing.
MISSING_REMEDY = "Use a login node of the cluster, or install the Slurm client (Debian: apt-get install slurm-client)."
#: Timeout of a command in seconds; sbatch may run slow checks that the site has added.
_COMMAND_SECONDS = 30.0
#: Timeout of a query in seconds.
_QUERY_SECONDS = 8.0
#: Errors of Slurm's commands if the controller does not respond.
_NO_RESPONSE = re.compile(
    r"unable to contact slurm controller|connection (refused|timed out)|timed out on send/recv|zero bytes were"
    r"|socket timed out|unexpected message received|controller not responding",
    re.IGNORECASE,
)
#: Errors of Slurm's commands for a job that the controller does not know.
_UNKNOWN_JOB = re.compile(r"invalid job id|job \S+ not found", re.IGNORECASE)
#: The states of a job that has ended.
_ENDED = re.compile("COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|BOOT_FAIL|DEADLINE|REVOKED")


class SlurmFailed(DistDLError):
    """A command of Slurm failed."""

    code = "slurm-refused"


class SlurmTimeout(SlurmFailed):
    """Slurm's controller does not respond."""

    code = "slurm-silent"


class UnknownJob(SlurmFailed):
    """Slurm does not know the job, or has purged it."""

    code = "slurm-job-unknown"


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job; ``state`` and ``reason`` are Slurm's terms."""

    state: str
    reason: str = ""
    exit_code: int = 0
    exit_signal: int = 0
    nodes: str = ""
    #: The plain job ID, also of a started array task, because srun does not accept "12_3".
    job_id: str = ""
    #: Whether Slurm has requested the end of the job, which happens before the state changes.
    is_preempted: bool = False

    @property
    def is_pending(self) -> bool:
        """Whether the job has not started any process yet."""
        return self.state in ("PENDING", "REQUEUED", "CONFIGURING", "SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD")

    @property
    def has_ended(self) -> bool:
        """Whether Slurm reports that all ranks of the job have ended."""
        return _ENDED.fullmatch(self.state) is not None


def explain_missing_commands() -> str:
    """Return a message about missing Slurm commands, or "" if all are installed. It includes the remedy."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"Slurm's commands are not on the PATH ({', '.join(missing)}). {MISSING_REMEDY}" if missing else ""


def build_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for Slurm's commands."""
    names = [name for name in os.environ if not name.startswith("SLURM_") or name in _INHERITED]
    return {name: os.environ[name] for name in names} | dict(variables or {})


def run(*command: str, variables: Mapping[str, str] | None = None, timeout: float = _COMMAND_SECONDS) -> str:
    """Run a Slurm command and return its output. Raises SlurmFailed, SlurmTimeout, UnknownJob."""
    try:
        env = build_environment(variables)
        result = subprocess.run(
            command, input="", capture_output=True, text=True, env=env, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise SlurmTimeout(f"Slurm did not respond to {command[0]} within {timeout:g} s.") from None
    except OSError as error:
        text = explain_missing_commands() or f"{command[0]} cannot be started: {error.strerror}."
        raise SlurmFailed(text, code="slurm-command-missing") from None
    if result.returncode == 0:
        return result.stdout
    output = result.stderr.strip() or result.stdout.strip()
    if "could not establish a configuration source" in output.lower():  # neither slurm.conf nor a server with it
        message = "Slurm is not configured on this machine."
        hint = "Use a login node of the cluster, or set SLURM_CONF to its slurm.conf."
        raise SlurmFailed(message, code="slurm-not-configured", hint=hint)
    error_class = UnknownJob if _UNKNOWN_JOB.search(output) else SlurmFailed
    if _NO_RESPONSE.search(output):
        error_class = SlurmTimeout
    # The last error message, without "sbatch: error:".
    lines = [re.sub(r"^(\w+: )?((error|fatal|warning): )?", "", line).strip() for line in output.splitlines()]
    last_line = next((line for line in reversed(lines) if line), "no error message")
    raise error_class(f"{command[0]} failed: {last_line.rstrip('.')}.")


def submit(arguments: Sequence[str], secrets: Mapping[str, str]) -> str:
    """Submit the script that is the last argument, and return the job ID. Raises SlurmFailed.

    The values of ``secrets`` are passed in sbatch's environment; ``arguments`` contain only their names.
    """
    output = run("sbatch", "--parsable", *arguments, variables=secrets).strip()
    if not re.fullmatch(r"\d+(;.*)?", output):  # the name of the cluster may follow
        raise SlurmFailed(f"sbatch printed {output[:200]!r} instead of a job ID.", code="sbatch-answer-invalid")
    return output.partition(";")[0]


def load_state(job: str) -> JobState:
    """Return the state of a job, or of an unfinished task if it is an array. Raises UnknownJob, SlurmTimeout."""
    output = run("scontrol", "show", "job", "--oneliner", job, timeout=_QUERY_SECONDS).strip()
    states = [parse_state(line) for line in output.split("\n")]
    return next((state for state in states if not state.has_ended), states[0])


def parse_state(line: str) -> JobState:
    """Return the state in a line of ``scontrol show job --oneliner``."""
    fields = dict(field.partition("=")[::2] for field in line.split(" ") if "=" in field)
    fields = {name: "" if value in ("None", "(null)") else value for name, value in fields.items()}
    state, is_preempted = fields.get("JobState", "").rstrip("+"), bool(fields.get("PreemptTime"))
    if state == "FAILED" and is_preempted:
        state = "PREEMPTED"  # the job exited on Slurm's SIGTERM within the grace time
    reason, nodes, job_id = (fields.get(name, "") for name in ("Reason", "NodeList", "JobId"))
    return JobState(state, reason, *_split_code(fields.get("ExitCode", "")), nodes, job_id, is_preempted)


def has_ended(job: str) -> bool:
    """Return whether a job, or every task of an array, has ended or was purged. Raises SlurmTimeout."""
    try:
        return load_state(job).has_ended
    except UnknownJob:
        return True


def cancel(*arguments: str) -> None:
    """Run scancel for a job, which may have ended. Raises SlurmTimeout."""
    try:
        run("scancel", *arguments)
    except SlurmFailed as error:
        if isinstance(error, SlurmTimeout):
            raise


def find_jobs(name: str) -> list[str]:
    """Return the IDs of this user's jobs whose comment is ``name`` or whose name ends with it. Raises SlurmFailed."""
    output = run("squeue", "--noheader", "--me", "--format=%i|%k|%j")
    rows = [line.strip().split("|", 2) for line in output.splitlines() if line.count("|") >= 2]
    return [id_ for id_, comment, job_name in rows if name == comment or job_name.endswith(name)]


def load_final_state(job: str) -> JobState | None:
    """Return the state of an ended job from accounting, or None if accounting does not have it."""
    command = ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State,ExitCode")
    try:
        name, _, code = run(*command, timeout=_QUERY_SECONDS).partition("\n")[0].partition("|")
    except SlurmFailed:
        return None
    state = JobState(name.partition(" ")[0], "", *_split_code(code))  # a name such as "CANCELLED by 1000"
    return state if state.has_ended else None


def parse_number(text: str) -> int:
    """Return the number at the start of a text, or 0 if it does not start with a number."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def count_gpus(gres: str) -> tuple[int, str]:
    """Return the number and the type of GPUs in ``gpu:a100:4(S:0-1)``, ``a100:4`` or ``4``."""
    count, names = 0, []
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        parts = part.removeprefix("gpu:").split(":")
        if (part.startswith("gpu") or ":" not in gres or not gres.count("gpu")) and parts[-1].isdigit():
            count += int(parts[-1])
            names += parts[:-1]
    return count, ", ".join(dict.fromkeys(names))


def _split_code(text: str) -> tuple[int, int]:
    """Return exit code and signal of Slurm's "code:signal"."""
    code, _, signal_ = text.partition(":")
    return parse_number(code), parse_number(signal_)


# text for users: see "JOB REASON CODES" and "JOB STATE CODES" in squeue(1) --------------------------

_LIMIT_PROBLEM = "it exceeds a limit on the resources that you may use at the same time"
_TIME_PROBLEM = "its time limit exceeds that of your account or quality of service"
#: Frequent reasons why a job waits: the prefix of Slurm's term, the reason as text, and the remedy, which is "" if the
#: job only has to wait. Any other reason is shown as Slurm's term.
_REASONS: tuple[tuple[str | tuple[str, ...], str, str], ...] = (
    ("Resources", "waiting for free nodes", ""),
    ("Priority", "waiting for jobs with higher priority", ""),
    ("JobArrayTaskLimit", "waiting for other tasks of its array", ""),
    ("QOSMaxJobsPerUser", "waiting for your other jobs to end", ""),
    ("PartitionTimeLimit", "its time limit exceeds the partition's", "Lower time_limit, or use another partition."),
    ("PartitionNodeLimit", "it needs too many nodes for the partition", "Lower node_count, or use another partition."),
    ("PartitionDown", "the partition is down", "Wait for the administrators, or set another partition."),
    ("BadConstraints", "no node meets its requirements", "Check 'constraint', 'gpus_per_node' and 'cpus_per_task'."),
    ("AccountNotAllowed", "the account is not allowed to use the partition", "Set another account or partition."),
    ("QOSNotAllowed", "the quality of service is not allowed for this job", "Set another qos or partition."),
    ("JobHeldUser", "you put it on hold", "Release it: scontrol release {job}"),
    (("JobHeldAdmin", "launch_failed"), "it is on hold", "Ask the administrators for the reason."),
    (("QOSMaxWall", "AssocMaxWall"), _TIME_PROBLEM, "Lower time_limit."),
    (("QOSMax", "AssocMaxCpu", "AssocMaxNode", "AssocMaxGRES"), _LIMIT_PROBLEM, "Request fewer nodes or GPUs."),
    (("ReqNodeNotAvail", "Nodes_required"), "its nodes are down or reserved", "Wait, or set another partition."),
)

#: The state of a job that Slurm has requeued after its start; the name is not Slurm's.
REQUEUED_AFTER_START = "QUEUED_AGAIN"
_REQUEUE_HINT = "To resume such jobs automatically, set the option 'requeue'."
#: Final states that are not failures of the code. With the option ``requeue``, a new Slurm job continues.
_INTERRUPTIONS = {
    "TIMEOUT": "Slurm job {job} hit its time limit (TIMEOUT). "
    "Raise time_limit, or set the option 'requeue' and save checkpoints.",
    REQUEUED_AFTER_START: f"Slurm requeued job {{job}} (scontrol requeue). {_REQUEUE_HINT}",
    "PREEMPTED": f"Slurm gave the nodes of job {{job}} to a job with higher priority (PREEMPTED). {_REQUEUE_HINT}",
    "NODE_FAIL": "Slurm lost a node of job {job} (NODE_FAIL).",
    "BOOT_FAIL": "A node of Slurm job {job} did not boot (BOOT_FAIL).",
}
_FINAL_STATES = _INTERRUPTIONS | {
    "CANCELLED": "Slurm job {job} was canceled outside of this package (scancel).",
    "OUT_OF_MEMORY": "Slurm killed job {job} because it exceeded its memory limit (OUT_OF_MEMORY). "
    "Request more memory, for example by adding --mem=64G to the option 'extra'.",
}
#: The remedy for an account or a quality of service that sbatch rejects.
_LIST_HINT = "or set it to a value listed by: sacctmgr show assoc user=$USER format=account,qos"
#: Errors of sbatch: the message, the code and the remedy.
REFUSAL_REMEDIES = (
    ("invalid partition", "slurm-partition-invalid", "Set the option 'partition' to one listed by: sinfo -o %P"),
    ("invalid account", "slurm-account-not-allowed", f"Remove the option 'account', {_LIST_HINT}"),
    ("invalid qos", "slurm-qos-not-allowed", f"Remove the option 'qos', {_LIST_HINT}"),
    ("time limit", "slurm-time-limit", "Lower time_limit."),
    ("node count", "slurm-node-count", "Lower node_count."),
    ("node configuration is not available", "slurm-nodes-insufficient", "Request fewer cores or GPUs per node."),
    ("invalid generic resource", "slurm-gpus-invalid", "Set gpus_per_node to a value listed by: sinfo -o %G"),
    ("invalid feature", "slurm-constraint-invalid", "Set the option 'constraint' to features listed by: sinfo -o %f"),
    ("more processors", "slurm-nodes-insufficient", "Request fewer processes or cores per node."),
    ("unrecognized option", "slurm-extra-invalid", "Remove it from the option 'extra'."),
    ("contact slurm controller", "slurm-silent", "Try again when Slurm's controller responds to: scontrol ping"),
)


def _explain_reason(reason: str) -> tuple[str, str]:
    """Return the reason why a pending job waits, and the remedy. The remedy is "" if it only has to wait."""
    matches = ((text, remedy) for prefix, text, remedy in _REASONS if reason.startswith(prefix))
    return next(matches, ("waiting" if reason else "waiting for Slurm to schedule it", ""))


def describe_waiting(state: JobState) -> str:
    """Return why a pending job waits: "waiting for free nodes (Resources)"."""
    if state.state == "CONFIGURING":
        return "its nodes are being started (CONFIGURING)"
    text, _remedy = _explain_reason(state.reason)
    return f"{text} ({state.reason})" if state.reason else text


def make_blocked_notice(state: JobState, job: str) -> RunNotice | None:
    """Return the notice for a job that cannot start without a change, or None if it only has to wait."""
    problem, remedy = _explain_reason(state.reason)
    text = f"Slurm job {job} cannot start, because {problem} ({state.reason}). {remedy.format(job=job)}"
    return RunNotice("warning", text, state.reason.split(",")[0]) if remedy else None


def describe_end(state: JobState, job: str) -> str:
    """Return the cause of the end with its remedy, or "" if the final state only reflects the exit codes."""
    return _FINAL_STATES.get(state.state, "").format(job=job)


def describe_interruption(state: JobState, job: str) -> str:
    """Return the interruption that ended a job as a sentence, or "" if the job ended for another reason."""
    state_name = "PREEMPTED" if state.is_preempted and not state.has_ended else state.state
    sentence = _INTERRUPTIONS.get(state_name, "").format(job=job).partition(". ")[0]
    return f"{sentence.rstrip('.')}." if sentence else ""


def explain_sbatch_error(error: SlurmFailed) -> tuple[str, str]:
    """Return the code and the remedy for an error of sbatch."""
    matches = ((code, remedy) for message, code, remedy in REFUSAL_REMEDIES if message in error.message.lower())
    return next(matches, (error.code, error.hint))


#: Prefixes of the states of a node that cannot run jobs.
_DOWN_STATES = re.compile("down|drain|fail|error|unk|no_respond|perfctrs|maint|power(ed|ing)?_down")
#: Prefixes of the states of a node that will soon be up.
_STARTING_STATES = re.compile("powering_up|boot|reboot|configuring")
#: States of jobs that have nodes.
_RUNNING_STATES = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")


def list_nodes(partition: str) -> list[NodeInfo]:
    """Return the nodes of a partition, or all nodes if ``partition`` is "". Raises SlurmFailed."""
    filters = [f"--partition={partition}"] if partition else []
    output = run("sinfo", "--noheader", "--Node", *filters, "--format=%N|%T|%c|%O|%G|%E")
    rows = ([field.strip() for field in line.split("|", 5)] for line in output.splitlines() if line.count("|") >= 5)
    return list({row[0]: parse_node(*row) for row in rows}.values())


def parse_node(name: str, slurm_state: str, cores: str, load: str, gres: str, reason: str) -> NodeInfo:
    """Return a node from the fields of sinfo."""
    base_state, is_unresponsive = slurm_state.lower().rstrip("*~#!%$@^-"), slurm_state.endswith("*")
    state: NodeState = "starting" if _STARTING_STATES.match(base_state) else "up"
    detail = base_state
    if is_unresponsive or _DOWN_STATES.match(base_state):
        state = "down"
        detail += f": {reason}" if reason not in ("none", "") else ""
        detail += " (no response to Slurm)" if is_unresponsive else ""
    gpus, gpu_name = count_gpus(gres)
    cpu_load = round(float(load), 1) if re.fullmatch(r"\d+(\.\d+)?", load) else None
    return NodeInfo(name, state, detail, gpus, gpu_name, parse_number(cores), load=cpu_load)


def list_queue() -> list[QueuedJob]:
    """Return this user's jobs in Slurm: running jobs, then waiting jobs, by Slurm's priority. Raises SlurmFailed."""
    # The name is last because it may contain the separator.
    output = run("squeue", "--noheader", "--me", "--array", "--format=%i|%T|%r|%Q|%D|%C|%b|%P|%j")
    jobs = []
    for line in (line for line in output.splitlines() if line.count("|") >= 8):
        id_, state, reason, *amounts, gres, partition, name = line.split("|", 8)
        numbers = dict(zip(("priority", "nodes", "cores"), map(parse_number, amounts), strict=True))
        is_running, reason = state in _RUNNING_STATES, "" if reason in ("None", "(null)") else reason
        why = "" if is_running else describe_waiting(JobState(state, reason))
        gpus = count_gpus(re.sub(r"gres[:/]", "", gres))[0] * numbers["nodes"]
        jobs.append(QueuedJob(id=id_, name=name, runs=is_running, why=why, gpus=gpus, partition=partition, **numbers))
    return sorted(jobs, key=lambda job: (not job.runs, -job.priority, parse_number(job.id)))
