"""Slurm's own commands and what they print. Nothing here knows jobs of this package.

They print for people, so each is asked for fields by name, and a job's name is kept free of what could pass for one.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distdl_jupyter.core.errors import DistDLError

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo")
#: What of an own allocation may reach Slurm's commands; the rest would be taken for wishes about the new job.
_KEPT = frozenset(("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_DEBUG_FLAGS"))
#: Seconds that a command may take; sites let sbatch run checks of their own.
_TIMEOUT = 30.0
#: Seconds that a mere question may take.
_STATE_TIMEOUT = 8.0
_SILENT = re.compile(
    r"unable to contact slurm controller|connection (refused|timed out)|timed out on send/recv|zero bytes were"
    r"|socket timed out|unexpected message received|controller not responding",
    re.IGNORECASE,
)
_UNKNOWN = re.compile(r"invalid job id|job \S+ not found", re.IGNORECASE)


#: What every command says that finds neither slurm.conf nor a server that gives it.
_NO_CONFIGURATION = "could not establish a configuration source"


class SlurmFailed(DistDLError):
    """A command of Slurm was refused."""

    code = "slurm-refused"


class SlurmSilent(SlurmFailed):
    """Slurm's controller does not answer now."""

    code = "slurm-silent"


class UnknownJob(SlurmFailed):
    """Slurm knows nothing (any more) of this job."""

    code = "slurm-job-unknown"


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as Slurm tells it: ``state`` and ``reason`` are Slurm's words, "" for no reason.

    ``number`` is the job's own, also of a task of an array that has begun: srun does not take its "12_3". A job is
    ``preempted`` from when Slurm has asked it to make room, which is before its state says so.
    """

    state: str
    reason: str = ""
    exit_code: int = 0
    exit_signal: int = 0
    nodes: str = ""
    number: str = ""
    preempted: bool = False

    @property
    def pending(self) -> bool:
        """Whether no process of it was started yet."""
        return self.state in ("PENDING", "REQUEUED", "CONFIGURING", "SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD")

    @property
    def ended(self) -> bool:
        """Whether none of its ranks lives any more, as far as Slurm knows."""
        return self.state in _ENDED


_ENDED = frozenset(
    ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
     "REVOKED")
)  # fmt: skip


def absent() -> str:
    """Return a sentence with the remedy when Slurm's commands are not here, else ""."""
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    if not lacking:
        return ""
    verb = "is" if len(lacking) == 1 else "are"
    return (
        f"{', '.join(lacking)} {verb} not on the PATH. Run this on a login node of the cluster, or install the Slurm "
        "client (Debian: apt-get install slurm-client)."
    )


def user() -> str:
    """Return this user as Slurm names him, by the number where no name is known here, as in a container."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of Slurm's commands."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name in _KEPT}
    return {**own, **(more or {})}


def run(*command: str, given: str = "", more: Mapping[str, str] | None = None, timeout: float = _TIMEOUT) -> str:
    """Run a command of Slurm and return what it printed. Raises SlurmFailed, SlurmSilent, UnknownJob."""
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, env=environment(more), timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise SlurmSilent(f"Slurm did not respond to {command[0]} within {timeout:g} s.") from None
    except OSError as error:
        raise SlurmFailed(
            absent() or f"{command[0]} cannot be started: {error.strerror}.", code="slurm-command-missing"
        ) from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip() or done.stdout.strip()
    if _NO_CONFIGURATION in said.lower():
        raise SlurmFailed(
            "Slurm is not configured on this machine.",
            code="slurm-not-configured",
            hint="Use a login node of the cluster, or set SLURM_CONF to its slurm.conf.",
        )
    kind = SlurmSilent if _SILENT.search(said) else UnknownJob if _UNKNOWN.search(said) else SlurmFailed
    raise kind(_sentence(command[0], said))


def _sentence(program: str, said: str) -> str:
    """Return the last thing that a command complained of, without its "sbatch: error:"."""
    lines = [re.sub(r"^(\w+: )?((error|fatal|warning): )?", "", line).strip() for line in said.splitlines()]
    last = next((line for line in reversed(lines) if line), "no error message")
    return f"{program} failed: {last.rstrip('.')}."


def number(job: str) -> str:
    """Return the number of a job that was submitted: "12" of "12" or of "12;cluster", "12_3" of a task of an array."""
    return job.partition(";")[0]


def with_number(job: str, number: str) -> str:
    """Return the job with this number on the same cluster."""
    return number + "".join(job.partition(";")[1:])


def at(job: str) -> Mapping[str, str]:
    """Return what lets Slurm's commands speak to the job's own cluster, where there are several."""
    cluster = job.partition(";")[2]
    return {"SLURM_CLUSTERS": cluster} if cluster else {}


def submit(arguments: Sequence[str], secrets: Mapping[str, str]) -> str:
    """Submit a script, the last argument, and return the job: its number, or "number;cluster". Raises SlurmFailed.

    Values of ``secrets`` travel in sbatch's environment; ``arguments`` name them.
    """
    job = run("sbatch", "--parsable", *arguments, more=secrets).strip()
    if not number(job).isdigit():
        raise SlurmFailed(f"sbatch printed {job[:200]!r} instead of the job's number.", code="sbatch-answer-invalid")
    return job


def state(job: str) -> JobState:
    """Return how a job stands. Raises UnknownJob when Slurm has forgotten it, SlurmSilent."""
    return _job_state(run("scontrol", "show", "job", "--oneliner", number(job), more=at(job), timeout=_STATE_TIMEOUT))


def has_ended(job: str) -> bool:
    """Say whether a job is over, as one is that Slurm has forgotten; an array when all of its tasks are.

    Raises SlurmSilent.
    """
    try:
        return state(job).ended
    except UnknownJob:
        return True


def hosts(nodes: str) -> list[str]:
    """Return the hosts of Slurm's list, as ``node[1-3],gpu7``. Raises SlurmFailed."""
    return run("scontrol", "show", "hostnames", nodes, timeout=_STATE_TIMEOUT).split()


def config() -> dict[str, str]:
    """Return Slurm's settings by name. Raises SlurmFailed."""
    lines = [line.partition("=") for line in run("scontrol", "show", "config").splitlines()]
    return {name.strip(): value.strip() for name, is_setting, value in lines if is_setting}


def _job_state(text: str) -> JobState:
    """Return the state of a job; of an array that of a task that has not ended, where there is one."""
    found = list(map(_state_of, text.strip().splitlines() or [""]))
    return next((one for one in found if not one.ended), found[0])


def _state_of(line: str) -> JobState:
    fields = dict(word.partition("=")[::2] for word in line.split(" ") if "=" in word)
    code, signal_ = exit_code(fields.get("ExitCode", "0:0"))
    state, reason = fields.get("JobState", "").rstrip("+"), fields.get("Reason", "")
    preempted = fields.get("PreemptTime", "None") != "None"
    if state == "FAILED" and preempted:
        state = "PREEMPTED"  # it has ended in its grace time, on Slurm's SIGTERM
    return JobState(
        state, "" if reason in ("None", "(null)") else reason, code, signal_,
        "" if fields.get("NodeList") == "(null)" else fields.get("NodeList", ""), fields.get("JobId", ""),
        preempted,
    )  # fmt: skip


def exit_code(text: str) -> tuple[int, int]:
    """Return exit code and signal of Slurm's "code:signal"."""
    code, _, signal_ = text.partition(":")
    return leading_number(code), leading_number(signal_)


def leading_number(text: str) -> int:
    """Return the number with which a text begins, 0 without one."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0


def kill(job: str, part: str) -> None:
    """Kill the processes of a part of a job at once: of a step, as "0", or of its script, "batch". Raises SlurmFailed.

    For a whole job Slurm begins with TERM and waits (KillWait).
    """
    which = ["--batch", number(job)] if part == "batch" else [f"{number(job)}.{part}"]
    run("scancel", "--signal=KILL", *which, more=at(job))


def cancel(job: str) -> None:
    """Take a job out of the queue, or end it. Raises SlurmFailed."""
    run("scancel", number(job), more=at(job))


def jobs_named(name: str) -> list[str]:
    """Return the numbers of this user's jobs whose name ends in ``name`` or whose comment it is. Raises SlurmFailed."""
    said = run("squeue", "--noheader", "--me", "--format=%i|%k|%j")
    found = [line.strip().split("|", 2) for line in said.splitlines() if line.count("|") >= 2]
    return [number for number, comment, own in found if name == comment or own.endswith(name)]
