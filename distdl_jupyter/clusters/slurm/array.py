"""Job arrays for sweeps. The tasks of an array wait in Slurm's queue, and each task runs the trial that has claimed it.

The values of a trial may depend on earlier trials, so they are unknown when the array is submitted; a task only holds a
position in the queue. The supervisor of a trial claims the first free task by creating a link to the trial's files,
named by the number of the task. A task that starts follows its link; without one, it waits briefly for the next trial
and then ends. A trial that is restarted, for example after an interruption, claims another task. So the array limits
the number of concurrent trials, and no trial runs twice.

``<folder of the sweep>/slurm/``, or the same below the option ``directory``, holds::

    lock            the lock for claiming tasks
    1/array.json    an array: its Slurm job ("" during the submission) and its number of tasks
    1/7, 1/7.out    the link from task 7 to the files of its trial, and the output of its script
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from distdl_jupyter import permissions
from distdl_jupyter.clusters.base import Context, RunNotice
from distdl_jupyter.clusters.slurm import commands, script
from distdl_jupyter.clusters.slurm.script import JobDirectory, SlurmOptions
from distdl_jupyter.core import files
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.space import SweepPlan
from distdl_jupyter.core.spec import Group, JobSpec
from distdl_jupyter.core.store import JobFolder, JobStore

#: Seconds that a task waits for a trial, because a trial only starts after the previous one has ended.
WAIT_SECONDS = 60
#: Polls per second of a waiting task; seconds that ``close`` waits until all tasks have ended.
_POLLS, _END_SECONDS = 5, 10.0
#: The link target of a task that can no longer be claimed.
_CLOSED = "-"


def claim_task(
    directory: JobDirectory, spec: JobSpec, options: SlurmOptions, secrets: Mapping[str, str], context: Context
) -> str:
    """Claim a task of the sweep's job array for a trial and return its id; submit an array if no task is free.

    Returns "" without a sweep, for the last trial, and if Slurm rejects arrays. Raises SlurmSilent, OSError.
    """
    group = spec.group
    if group is None or spec.trial is None or not _folder(group).path.exists():
        return ""
    sweep = JobDirectory(_folder(group), options.directory)
    sweep.make()
    with _locked(sweep.run):
        arrays, plan, number = _arrays(sweep.run), SweepPlan.of(group), spec.trial
        for folder in arrays[-1:]:
            if task := _claim(folder, directory, context):
                return task
        # The first trials start concurrently, so any of them may be the one that submits the array.
        remaining = plan.trials - (number if arrays or number >= plan.parallel else 0)
        max_size = commands.leading_number(commands.config().get("MaxArraySize", "")) if remaining > 1 else 0
        if (size := min(remaining, max_size)) < 2:
            return ""
        array = _submit_array(sweep.run, size, spec, options, secrets, context)
        return "" if array is None else _claim(array, directory, context)


def close(group: Group, options: SlurmOptions) -> None:
    """Remove unclaimed tasks from the queue; claimed tasks continue. Raises SlurmFailed, OSError.

    The sweep's folder below the option ``directory`` is removed if all tasks end within ``_END_SECONDS``.
    """
    sweep = JobDirectory(_folder(group), options.directory)
    if not sweep.run.is_dir():
        return
    with _locked(sweep.run):
        jobs = list(filter(None, map(_close_array, _arrays(sweep.run))))
        if not sweep.copied:
            return
        until = time.monotonic() + _END_SECONDS
        while not all(map(commands.has_ended, jobs)):
            if time.monotonic() > until:
                return
            time.sleep(0.2)
        if permissions.is_own(sweep.run):
            shutil.rmtree(sweep.run)
            sweep.job.rmdir()


def _folder(group: Group) -> JobFolder:
    return JobStore(kind="sweeps").folder(group.id)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the lock for claiming tasks. Raises OSError."""
    with (root / "lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# tasks -------------------------------------------------------------------------------------------


def _arrays(root: Path) -> list[Path]:
    """Return the folders of all arrays, the newest last."""
    return sorted((path for path in root.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def _free(folder: Path) -> list[Path]:
    """Return the links of unclaimed tasks in the order in which the tasks start."""
    return [link for task in range(_read(folder)[1]) if not (link := folder / str(task)).is_symlink()]


def _claim(folder: Path, directory: JobDirectory, context: Context) -> str:
    """Claim a free task for a job and return its id, "" if all are claimed.

    The job's handle is recorded first, so that another supervisor can claim the task if this one is killed.
    """
    job = _job(folder)
    for link in _free(folder) if job else ():
        task = f"{job}_{link.name}"
        context.record_handle(directory.handle(task, link))
        if directory.claim_task(link):
            return task
    return ""


def _close_array(folder: Path) -> str:
    """Remove the free tasks of an array from the queue; return its Slurm job id. Raises SlurmFailed."""
    job, closed = _job(folder), list[str]()
    for link in _free(folder):
        with contextlib.suppress(FileExistsError):  # a trial has claimed it, or the task has closed itself
            link.symlink_to(_CLOSED)
            closed.append(link.name)
    if job and closed:
        with contextlib.suppress(commands.UnknownJob):
            commands.cancel(f"{job}_[{','.join(closed)}]")
    return job


# arrays ------------------------------------------------------------------------------------------


def _submit_array(
    root: Path, size: int, spec: JobSpec, options: SlurmOptions, secrets: Mapping[str, str], context: Context
) -> Path | None:
    """Submit an array and return its folder, None if Slurm rejects arrays. Raises SlurmSilent, OSError."""
    assert spec.group is not None, "a trial has a sweep"
    number = 1 + max((int(path.name) for path in _arrays(root)), default=0)
    folder = permissions.private_folder(root / str(number))
    _write(folder, "", size)
    (folder / "batch").write_text(_batch(folder), encoding="utf-8")
    arguments = script.arguments(
        spec, options, secrets, folder, "%a.out", f"{spec.group.id}/{number}",
        f"--array=0-{size - 1}%{SweepPlan.of(spec.group).parallel}",
    )  # fmt: skip
    try:
        _write(folder, commands.submit([*arguments, str(folder / "batch")], secrets), size)
    except commands.SlurmSilent:  # Slurm may have accepted the array
        raise
    except commands.SlurmFailed as error:
        shutil.rmtree(folder)
        text = (
            f"Slurm rejected an array of {plural(size, 'job')}, so each trial is queued separately. ({error.message})"
        )
        context.note(RunNotice("info", text, "no-array"))
        return None
    return folder


def _write(folder: Path, job: str, size: int) -> None:
    files.write(folder / "array.json", {"job": job, "size": size})


def _read(folder: Path) -> tuple[str, int]:
    """Return the Slurm job of an array and its number of tasks, 0 before its submission. Raises OSError."""
    try:
        data = json.loads((folder / "array.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "", 0
    return data["job"], data["size"]


def _job(folder: Path) -> str:
    """Return the Slurm job of an array, "" if unknown. Raises SlurmFailed.

    If the submission was killed or its response was lost, the job is looked up in the queue by name.
    """
    job, size = _read(folder)
    if not job and (jobs := commands.jobs_named(f"{folder.parent.parent.name}/{folder.name}")):
        job = jobs[0].partition("_")[0]
        _write(folder, job, size)
    return job


def _batch(folder: Path) -> str:
    """Return the script that every task runs. Its ``ls`` makes new links visible on network file systems.

    Like the batch script of a job, it does nothing if Slurm requeues it.
    """
    return (
        "#!/bin/sh\n"
        f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || exit {script.REQUEUED}\n'
        f"cd {shlex.quote(str(folder))} || exit 1\n"
        "task=$SLURM_ARRAY_TASK_ID polls=0\n"
        'until ls >/dev/null; [ -f "$task/batch" ]; do\n'
        '    [ -h "$task" ] && exit 0\n'
        "    polls=$((polls + 1))\n"
        f'    [ $polls -gt {_POLLS * WAIT_SECONDS} ] && ln -sn {_CLOSED} "$task"\n'
        f"    [ $polls -gt {2 * _POLLS * WAIT_SECONDS} ] && exit 1\n"
        f"    sleep {1 / _POLLS}\n"
        "done\n"
        'exec /bin/sh "$task/batch"\n'
    )
