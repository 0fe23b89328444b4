"""Slurm's commands and their output, including accounting (slurmdbd).

The default output is for people, so commands request fields by name, and ``script.job_name`` never returns a name that
looks like a field. Many sites have no accounting, and accounting can be down while Slurm works; jobs do not wait for
it. This module must not depend on jobs of this package.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distdl_jupyter.core.errors import DistDLError

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo")
#: Variables of an allocation that Slurm's commands inherit; all others would become options of the new job.
_INHERITED = frozenset(("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_DEBUG_FLAGS"))
#: Timeout of a command in seconds; sbatch may run slow checks that the site has added.
_COMMAND_SECONDS = 30.0
#: Timeout of a query in seconds.
_QUERY_SECONDS = 8.0
_NO_RESPONSE = re.compile(
    r"unable to contact slurm controller|connection (refused|timed out)|timed out on send/recv|zero bytes were"
    r"|socket timed out|unexpected message received|controller not responding",
    re.IGNORECASE,
)
_UNKNOWN_JOB = re.compile(r"invalid job id|job \S+ not found", re.IGNORECASE)
#: The message of commands that find neither slurm.conf nor a server that provides it.
_NO_CONFIGURATION = "could not establish a configuration source"
_ENDED = re.compile("COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|BOOT_FAIL|DEADLINE|REVOKED")
#: Numbers of tasks or nodes: from, to, step.
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
#: The fields of sacct that ``accounted`` reads.
_SACCT_FIELDS = "JobID,State,ExitCode,ElapsedRaw,MaxRSS,End"


class SlurmFailed(DistDLError):
    """A command of Slurm failed."""

    code = "slurm-refused"


class SlurmSilent(SlurmFailed):
    """Slurm's controller does not respond."""

    code = "slurm-silent"


class UnknownJob(SlurmFailed):
    """Slurm does not know the job, or has purged it."""

    code = "slurm-job-unknown"


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job. ``state`` and ``reason`` are Slurm's terms; ``reason`` is "" without one.

    ``number`` is the plain job id, also for a started array task, because srun does not accept "12_3". A job is
    ``preempted`` as soon as Slurm has requested its end, before its state changes. Only accounting has ``seconds`` (run
    time) and ``memory`` (bytes; sacct's MaxRSS: the maximum over the nodes, each with all of its ranks).
    """

    state: str
    reason: str = ""
    exit_code: int = 0
    exit_signal: int = 0
    nodes: str = ""
    number: str = ""
    preempted: bool = False
    seconds: int = 0
    memory: int = 0

    @property
    def pending(self) -> bool:
        """Whether the job has not started any process yet."""
        return self.state in ("PENDING", "REQUEUED", "CONFIGURING", "SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD")

    @property
    def ended(self) -> bool:
        """Whether all of its ranks have ended, as far as Slurm knows."""
        return _ENDED.fullmatch(self.state) is not None


def missing_commands() -> str:
    """Return a sentence with the remedy if Slurm's commands are missing, else ""."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if not missing:
        return ""
    return (
        f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on the PATH. Run this on a login node of the "
        "cluster, or install the Slurm client (Debian: apt-get install slurm-client)."
    )


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of Slurm's commands."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name in _INHERITED
    }
    return {**inherited, **(variables or {})}


def run(*command: str, variables: Mapping[str, str] | None = None, timeout: float = _COMMAND_SECONDS) -> str:
    """Run a Slurm command and return its output. Raises SlurmFailed, SlurmSilent, UnknownJob."""
    try:
        result = subprocess.run(
            command, input="", capture_output=True, text=True, env=environment(variables), timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise SlurmSilent(f"Slurm did not respond to {command[0]} within {timeout:g} s.") from None
    except OSError as error:
        raise SlurmFailed(
            missing_commands() or f"{command[0]} cannot be started: {error.strerror}.", code="slurm-command-missing"
        ) from None
    if result.returncode == 0:
        return result.stdout
    output = result.stderr.strip() or result.stdout.strip()
    if _NO_CONFIGURATION in output.lower():
        message = "Slurm is not configured on this machine."
        hint = "Use a login node of the cluster, or set SLURM_CONF to its slurm.conf."
        raise SlurmFailed(message, code="slurm-not-configured", hint=hint)
    kind = SlurmSilent if _NO_RESPONSE.search(output) else UnknownJob if _UNKNOWN_JOB.search(output) else SlurmFailed
    # The last error message, without "sbatch: error:".
    lines = [re.sub(r"^(\w+: )?((error|fatal|warning): )?", "", line).strip() for line in output.splitlines()]
    last_line = next((line for line in reversed(lines) if line), "no error message")
    raise kind(f"{command[0]} failed: {last_line.rstrip('.')}.")


def submit(arguments: Sequence[str], secrets: Mapping[str, str]) -> str:
    """Submit a script, the last argument; return the job's number. Raises SlurmFailed.

    Values of ``secrets`` are passed in sbatch's environment; ``arguments`` name them.
    """
    output = run("sbatch", "--parsable", *arguments, variables=secrets).strip()
    if not re.fullmatch(r"\d+(;.*)?", output):  # the name of the cluster may follow
        raise SlurmFailed(f"sbatch printed {output[:200]!r} instead of a job ID.", code="sbatch-answer-invalid")
    return output.partition(";")[0]


def state(job: str) -> JobState:
    """Return the state of a job; for an array, of an unfinished task, or of the first if all have ended.

    Raises UnknownJob, SlurmSilent.
    """
    lines = run("scontrol", "show", "job", "--oneliner", job, timeout=_QUERY_SECONDS).strip().splitlines()
    states = [job_state(line) for line in lines or [""]]
    return next((state for state in states if not state.ended), states[0])


def job_state(line: str) -> JobState:
    """Return the state in a line of ``scontrol show job --oneliner``."""
    fields = dict(field.partition("=")[::2] for field in line.split(" ") if "=" in field)
    fields = {name: "" if value in ("None", "(null)") else value for name, value in fields.items()}
    is_preempted = bool(fields.get("PreemptTime"))
    state = fields.get("JobState", "").rstrip("+")
    if state == "FAILED" and is_preempted:
        state = "PREEMPTED"  # the job exited on Slurm's SIGTERM within the grace time
    code, signal_ = _exit_code(fields.get("ExitCode", "0:0"))
    nodes, number = fields.get("NodeList", ""), fields.get("JobId", "")
    return JobState(state, fields.get("Reason", ""), code, signal_, nodes, number, is_preempted)


def has_ended(job: str) -> bool:
    """Return whether a job, or all tasks of an array, have ended or were purged. Raises SlurmSilent."""
    try:
        return state(job).ended
    except UnknownJob:
        return True


def hosts(nodes: str) -> list[str]:
    """Return the hosts of a Slurm list such as ``node[1-3],gpu7``. Raises SlurmFailed."""
    return run("scontrol", "show", "hostnames", nodes, timeout=_QUERY_SECONDS).split()


def kill(job: str) -> None:
    """Kill the agents and the batch script of a job, which may already be ending, and then cancel the job.

    ``scancel`` alone would send TERM first and wait (KillWait). Raises SlurmSilent.
    """
    for arguments in (("--signal=KILL", f"{job}.0"), ("--signal=KILL", "--batch", job), (job,)):
        try:
            run("scancel", *arguments)
        except SlurmSilent:
            raise
        except SlurmFailed:
            continue


def jobs_named(name: str) -> list[str]:
    """Return the ids of this user's jobs whose comment is ``name`` or whose name ends with it. Raises SlurmFailed."""
    output = run("squeue", "--noheader", "--me", "--format=%i|%k|%j")
    rows = [line.strip().split("|", 2) for line in output.splitlines() if line.count("|") >= 2]
    return [number for number, comment, job_name in rows if name == comment or job_name.endswith(name)]


def accounted(job: str, timeout: float = 0.0) -> JobState | None:
    """Return the final state and the resource usage of an ended job, None if accounting does not know them.

    slurmctld reports the end of the job, and then of its steps, to accounting with a delay; wait for that at most
    ``timeout`` seconds.
    """
    command = ("sacct", "--noheader", "--parsable2", "--jobs", job, f"--format={_SACCT_FIELDS}")
    deadline = time.monotonic() + timeout
    while True:
        try:
            lines = run(*command, timeout=_QUERY_SECONDS).splitlines()
        except SlurmFailed:
            return None
        rows = [line.split("|") for line in lines if line.count("|") == _SACCT_FIELDS.count(",")]
        if (rows and all(end != "Unknown" for *_, end in rows)) or time.monotonic() >= deadline:
            break
        time.sleep(0.3)
    for id_, state_, exit_, seconds, _, end in rows:
        if id_ == job and end != "Unknown" and state_.strip():
            memory = max(_parse_bytes(row[4]) for row in rows)
            return JobState(state_.split()[0], "", *_exit_code(exit_), seconds=leading_number(seconds), memory=memory)
    return None


# fields of the output ---------------------------------------------------------------------------


def leading_number(text: str) -> int:
    """Return the number at the start of a text, 0 without one."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def numbers(text: str) -> list[int]:
    """Return the numbers of Slurm's "0,2-4" or "0-9:3"."""
    ranges = ((int(first), int(last or first), int(step or 1)) for first, last, step in _RANGE.findall(text))
    return [number for first, last, step in ranges for number in range(first, last + 1, step)]


def gpus_in(gres: str) -> tuple[int, str]:
    """Return number and type of GPUs from Slurm's ``gpu:a100:4(S:0-1)`` or from ``a100:4`` or ``4``."""
    count, names = 0, []
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        parts = part.removeprefix("gpu:").split(":")
        if (part.startswith("gpu") or ":" not in gres or not gres.count("gpu")) and parts[-1].isdigit():
            count += int(parts[-1])
            names += parts[:-1]
    return count, ", ".join(dict.fromkeys(names))


def _exit_code(text: str) -> tuple[int, int]:
    """Return exit code and signal of Slurm's "code:signal"."""
    code, _, signal_ = text.partition(":")
    return leading_number(code), leading_number(signal_)


def _parse_bytes(text: str) -> int:
    """Return the bytes of Slurm's "2956K" or "1.5G" (powers of 1024), 0 for ""."""
    match = re.match(r"([\d.]+)([KMGTP]?)", text)
    return int(float(match[1]) * 1024 ** " KMGTP".index(match[2] or " ")) if match else 0
