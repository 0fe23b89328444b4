"""Deletes old jobs.

A job is deleted only if it ended longer ago than the given age and is not among the newest ``keep`` jobs; a sweep
without trials is treated like a job. Unfinished jobs, jobs with a running supervisor on any host, trials of a running
sweep, and jobs of other users are never deleted.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from distdl_jupyter.core import files, humanize
from distdl_jupyter.core.errors import DiskRefused, InvalidSpec, JobNotFound, JobStillRunning
from distdl_jupyter.core.events import State
from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.jobs import client, study_rows
from distdl_jupyter.views.job_table import JobRow

if TYPE_CHECKING:
    from pathlib import Path

#: The reason why a job is kept.
Reason = Literal["active", "busy", "other-user", "other-host", "newest", "younger"]
_DAY_SECONDS = 86400.0
_UNIT_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": _DAY_SECONDS, "w": 7 * _DAY_SECONDS}
_AGE_PATTERN = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNIT_SECONDS)})")
_HEADER = ("Id", "State", "Name", "Ended", "Size")


@dataclass(frozen=True, slots=True)
class OldJob:
    """A job to prune: ``ended`` in epoch seconds, ``size`` in bytes; ``problem`` is why it could not be deleted."""

    id: str
    name: str
    state: State
    ended: float
    size: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class KeptJobs:
    """The number of jobs that were kept for one reason."""

    reason: Reason
    count: int


@dataclass(frozen=True, slots=True, repr=False)
class PruneResult(humanize.Display):
    """The jobs that were deleted, or would be (``dry_run``), and the number of jobs kept. Displays as a table."""

    jobs: tuple[OldJob, ...]
    retained: tuple[KeptJobs, ...]
    dry_run: bool

    @property
    def failed(self) -> tuple[OldJob, ...]:
        """The jobs that could not be deleted."""
        return tuple(job for job in self.jobs if job.problem)

    def summary(self) -> str:
        """Return the number and size of the deleted jobs, and the reasons for keeping the others."""
        deleted_jobs = [job for job in self.jobs if not job.problem]
        amount = f"{humanize.plural(len(deleted_jobs), 'job')}, {humanize.size(sum(job.size for job in deleted_jobs))}"
        deleted = f"Would delete {amount} (dry run, nothing was deleted)." if self.dry_run else f"Deleted {amount}."
        reasons = ", ".join(f"{humanize.count(group.count)} {_REASON_TEXTS[group.reason]}" for group in self.retained)
        return f"{deleted if self.jobs else 'No jobs match.'}{f' Kept: {reasons}.' if reasons else ''}"

    def _parts(self) -> list[str | humanize.Rows]:
        now = time.time()
        rows = [
            (job.id, job.state, job.name, humanize.ago(now - job.ended), humanize.size(job.size)) for job in self.jobs
        ]
        failed = [f"{job.id} could not be deleted: {job.problem}" for job in self.failed]
        return [*([humanize.WholeRows([_HEADER, *rows])] if rows else []), *failed, self.summary()]


#: The texts of the reasons, in display order.
_REASON_TEXTS: dict[Reason, str] = {
    "active": "running or queued",
    "busy": "in use",
    "other-user": "owned by another user",
    "other-host": "active on another host",
    "newest": "among the newest",
    "younger": "newer",
}


def prune(older: str | timedelta | None = None, keep: int | None = None, *, dry_run: bool = False) -> PruneResult:
    """Delete ended jobs that are older than an age (``"30d"``) and not among the newest ``keep`` jobs.

    At least one of the two is required. With ``dry_run``, nothing is deleted; the result lists the jobs that would be.
    Jobs that could not be deleted have a ``problem`` in the result.

    Raises InvalidSpec, DiskRefused if the jobs cannot be listed.
    """
    seconds, keep = _check_rule(older, keep)
    jobs, counts = _select_old(seconds, keep)
    if not dry_run:
        jobs = [_delete(job) for job in jobs]
    reasons = tuple(KeptJobs(reason, counts[reason]) for reason in _REASON_TEXTS if counts[reason])
    return PruneResult(tuple(jobs), reasons, dry_run)


def prune_daily(older: str | None, keep: int | None) -> PruneResult | None:
    """Call ``prune`` at most once a day; return None if it was not called. Raises the same errors, and OSError."""
    _check_rule(older, keep)
    marker = JobStore().jobs.with_name("pruned")
    try:
        if 0 <= time.time() - marker.stat().st_mtime < _DAY_SECONDS:
            return None
    except FileNotFoundError:
        if not marker.parent.is_dir():
            return None
    files.replace_file(marker, "")
    return prune(older, keep)


def _check_rule(older: Any, keep: Any) -> tuple[float | None, int | None]:
    """Return ``older`` in seconds, and ``keep``. Raises InvalidSpec."""
    if older is None and keep is None:
        raise InvalidSpec(
            "prune needs a rule for which jobs to delete.",
            code="prune-nothing-chosen",
            field="older",
            hint="Set older to an age such as 30d, keep to the number of newest jobs to keep such as 50, or both.",
        )
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 0):
        raise InvalidSpec(
            f"keep must be an integer of at least 0, not {keep!r}.", code="prune-keep-invalid", field="keep"
        )
    return None if older is None else _parse_age(older), keep


def _parse_age(older: Any) -> float:
    if isinstance(older, timedelta) and older >= timedelta(0):
        return older.total_seconds()
    match = _AGE_PATTERN.fullmatch(older.strip()) if isinstance(older, str) else None
    if match is None:
        raise InvalidSpec(
            f"older must be an age with its unit, such as 30d, 12h, 4w or 90min, not {str(older)!r}.",
            code="prune-age-invalid",
            field="older",
        )
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def _select_old(seconds: float | None, keep: int | None) -> tuple[list[OldJob], Counter[Reason]]:
    """Return the jobs to delete, newest first, and how many are kept for each reason."""
    jobs_to_delete: list[OldJob] = []
    counts: Counter[Reason] = Counter()
    now, jobs = time.time(), client.list_rows()
    rows = sorted([*jobs, *study_rows.list_empty_sweeps(jobs)], key=lambda row: row.id, reverse=True)
    for position, row in enumerate(rows):
        folder = JobStore(kind="sweeps" if study_rows.is_study(row) else "jobs").get_folder(row.id)
        ended = row.last_sign if row.ended is None else row.ended
        try:
            reason = _find_keep_reason(folder, row.state) or _find_sweep_reason(row)
        except FileNotFoundError:  # another process has deleted it
            continue
        if reason:
            counts[reason] += 1
        elif keep is not None and position < keep:
            counts["newest"] += 1
        elif seconds is not None and now - ended < seconds:
            counts["younger"] += 1
        else:
            jobs_to_delete.append(OldJob(row.id, row.name, row.state, ended, _measure_size(folder.path)))
    return jobs_to_delete, counts


def _find_keep_reason(folder: JobFolder, state: str) -> Reason | None:
    """Return why a job must be kept regardless of its age, or None if it may be deleted."""
    if folder.path.lstat().st_uid != os.geteuid():
        return "other-user"
    ended, holder = State(state).ended, folder.read_supervisor()
    if holder.is_on_other_host and not (ended and holder.is_silent):  # its lock is not visible here
        return "other-host"
    if not ended:
        return "active"
    return "busy" if holder.is_held else None


def _find_sweep_reason(row: JobRow) -> Reason | None:
    """Return "busy" if the job is a trial of a sweep that is running or can be resumed."""
    folder = JobStore(kind="sweeps").get_folder(row.group.id) if row.group is not None else None
    if folder is None or not folder.path.exists():
        return None
    has_ended = (folder.path / "end.json").exists() and not folder.read_supervisor().is_held
    return None if has_ended else "busy"


def _delete(job: OldJob) -> OldJob:
    """Delete a job, which may have changed since it was listed; return it with the problem, if any."""
    sweeps, folder = JobStore(kind="sweeps"), JobStore().get_folder(job.id)
    is_sweep = not folder.path.exists() and sweeps.get_folder(job.id).path.exists()
    try:
        if reason := _find_keep_reason(sweeps.get_folder(job.id) if is_sweep else folder, job.state):
            return replace(job, problem=f"It is {_REASON_TEXTS[reason]}.")
        if is_sweep:
            sweeps.remove(sweeps.get_folder(job.id))
        else:
            client.Job(folder).remove()
    except (FileNotFoundError, JobNotFound):  # another process has deleted it
        return job
    except (JobStillRunning, DiskRefused) as error:
        return replace(job, problem=str(error))
    return job


def _measure_size(folder: Path) -> int:
    """Return the disk usage of a folder in bytes."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512  # noqa: PTH118 - may be thousands
            except OSError:
                continue
    return total
