"""What Slurm's accounting (slurmdbd) knows: how a job has ended, what it used, and which accounts a user has.

Many Slurms have none, and it can be down while Slurm itself works: then nothing is known, and no job waits for it.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distdl_jupyter.clusters.slurm import commands, words
from distdl_jupyter.core.humanize import duration, size

if TYPE_CHECKING:
    from distdl_jupyter.clusters.slurm.options import SlurmOptions

#: Seconds that the accounting is waited for: for an answer, and until it has heard of a job's end.
_TIMEOUT, _BEHIND = 8.0, 4.0
_UNITS = "KMGTP"


# how a job has ended -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """What a job came to: Slurm's ``state``, ``seconds`` that it ran, ``memory`` in bytes (0: not known).

    ``memory`` is MaxRSS of sacct(1): the most that any task had, which here is a node with all of its ranks.
    """

    state: str
    seconds: int
    memory: int
    exit_code: int
    exit_signal: int

    def text(self, job: str) -> str:
        """Return it as a sentence about the job of this number."""
        how = f"exit code {self.exit_code}" if not self.exit_signal else f"signal {self.exit_signal}"
        parts = [f"Slurm job {job} ended as {self.state} after {duration(self.seconds)}, {how}"]
        if self.memory:
            parts.append(f"peak memory per node {size(self.memory)}")
        more = words.end(commands.JobState(self.state)) if self.state == "OUT_OF_MEMORY" else ""
        return f"{', '.join(parts)}. {more}".strip()


def usage(job: str) -> Usage | None:
    """Return what a job that has ended came to, None where no accounting says it."""
    until = time.monotonic() + _BEHIND
    while True:
        try:
            lines = _sacct(job, "JobID", "State", "ElapsedRaw", "MaxRSS", "ExitCode", "End")
        except commands.SlurmFailed:
            return None
        # slurmctld tells its accounting of an end a moment later, and first of the job, then of its steps.
        if (lines and all(line[5] != "Unknown" for line in lines)) or time.monotonic() > until:
            break
        time.sleep(0.3)
    first = next((line for line in lines if line[0] == commands.number(job) and line[5] != "Unknown"), None)
    if first is None or not first[1].strip():
        return None
    memory = max(_bytes(line[3]) for line in lines)
    return Usage(first[1].split()[0], commands.leading_number(first[2]), memory, *commands.exit_code(first[4]))


def state(job: str) -> commands.JobState | None:
    """Return how a job that Slurm itself has forgotten has ended, None where no accounting knows it."""
    try:
        first = next(iter(_sacct(job, "State", "ExitCode", more=("--allocations",))), None)
    except commands.SlurmFailed:
        return None
    if first is None or not first[0].strip():
        return None
    return commands.JobState(first[0].split()[0], "", *commands.exit_code(first[1]))


def _sacct(job: str, *fields: str, more: tuple[str, ...] = ()) -> list[list[str]]:
    """Return a job's lines, the job itself first, then its steps. Raises SlurmFailed where there is no accounting."""
    if shutil.which("sacct") is None:
        raise commands.SlurmFailed("The command sacct is not installed on this machine.")
    said = commands.run("sacct", "--noheader", "--parsable2", *more, "--jobs", commands.number(job),
                        f"--format={','.join(fields)}", more=commands.at(job), timeout=_TIMEOUT)  # fmt: skip
    return [line.split("|") for line in said.splitlines() if line.count("|") == len(fields) - 1]


def _bytes(text: str) -> int:
    """Return bytes of Slurm's "2956K" or "1.5G" (powers of 1024), 0 for nothing."""
    unit = text[-1:].upper()
    try:
        return int(float(text.rstrip(unit if unit in _UNITS else "") or 0) * 1024 ** (_UNITS.find(unit) + 1))
    except ValueError:
        return 0


# under which accounts a user may run -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Allowed:
    """Accounts, and the qualities of service of each, under which this user may run jobs."""

    accounts: dict[str, tuple[str, ...]]

    def refusal(self, options: SlurmOptions) -> tuple[str, str, str]:
        """Return the option that this user may not have so, what is wrong, and the remedy; "" for all when none is."""
        account, qos = options.account, options.qos
        if account and account.lower() not in self.accounts:
            return ("account", f"you cannot use the account {account}",
                    f"Remove the option account, or set it to one of: {', '.join(self.accounts)}.")  # fmt: skip
        found = [self.accounts[account.lower()]] if account else self.accounts.values()
        known = list(dict.fromkeys(name for names in found for name in names))
        if qos and known and qos.lower() not in known:
            of = f" with the account {account}" if account else ""
            return ("qos", f"you cannot use the QOS {qos}{of}",
                    f"Remove the option qos, or set it to one of: {', '.join(known)}.")  # fmt: skip
        return "", "", ""


def allowed(partition: str = "") -> Allowed | None:
    """Return under which accounts this user may run in a partition; None where Slurm does not look at that.

    Raises SlurmFailed, also when the accounting is down.
    """
    config = commands.config()
    enforced = config.get("AccountingStorageEnforce", "none")
    if enforced in ("none", "") or shutil.which("sacctmgr") is None:
        return None
    said = commands.run("sacctmgr", "--noheader", "--parsable2", "--readonly", "show", "associations", "where",
                        f"user={commands.user()}", f"cluster={config.get('ClusterName', '')}",
                        "format=Account,Partition,QOS", timeout=_TIMEOUT)  # fmt: skip
    found: dict[str, tuple[str, ...]] = {}
    for account, where, qos in (line.split("|")[:3] for line in said.splitlines() if line.count("|") >= 2):
        if not where or not partition or where in partition.split(","):
            found[account] = (*found.get(account, ()), *filter(None, qos.split(",")))
    if "qos" not in enforced:
        found = dict.fromkeys(found, ())
    return Allowed(found) if found else None
