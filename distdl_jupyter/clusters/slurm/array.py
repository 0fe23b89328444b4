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
#: Polls per second of a waiting task; timeout in seconds of ``close`` for the end of all tasks.
_POLLS_PER_SECOND, _END_SECONDS = 5, 10.0
#: Maximum number of tasks of an array: Slurm's default MaxArraySize is 1001. Further tasks are in another array.
_MAX_TASKS = 1000
#: The link target of a task that can no longer be claimed.
_CLOSED = "-"


def claim_task(
    directory: JobDirectory, spec: JobSpec, options: SlurmOptions, secrets: Mapping[str, str], context: Context
) -> str:
    """Claim a task of the sweep's job array for a trial and return its id; submit an array if no task is free.

    Returns "" without a sweep, for the last trial, and if Slurm rejects arrays. Raises SlurmSilent, OSError.
    """
    group, number = spec.group, spec.trial
    if group is None or number is None or not _sweep_folder(group).path.exists():
        return ""
    sweep, plan = JobDirectory(_sweep_folder(group), options.directory), SweepPlan.of(group)
    sweep.make()
    with _locked(sweep.run):
        arrays = _list_arrays(sweep.run)
        if arrays and (task := _claim_free_task(arrays[-1], directory, context)):
            return task
        # The first trials start concurrently, so any of them may be the one that submits the array.
        size = min(_MAX_TASKS, plan.trials - (number if arrays or number >= plan.parallel else 0))
        if size < 2:
            return ""
        folder = permissions.private_folder(sweep.run / str(len(arrays) + 1))
        _write_array(folder, "", size)
        (folder / "batch").write_text(_batch_script(folder), encoding="utf-8")
        args = f"--array=0-{size - 1}%{plan.parallel}", f"--comment={group.id}/{folder.name}", str(folder / "batch")
        try:
            job = commands.submit(script.arguments(spec, options, secrets, folder, "%a.out", *args), secrets)
        except commands.SlurmSilent:  # Slurm may have accepted the array
            raise
        except commands.SlurmFailed as error:
            shutil.rmtree(folder)
            tasks = plural(size, "job")
            text = f"Slurm rejected an array of {tasks}, so each trial is queued separately. ({error.message})"
            context.note(RunNotice("info", text, "no-array"))
            return ""
        _write_array(folder, job, size)
        return _claim_free_task(folder, directory, context)


def close(group: Group, options: SlurmOptions) -> None:
    """Remove unclaimed tasks from the queue; claimed tasks continue. Raises SlurmFailed, OSError.

    The sweep's folder below the option ``directory`` is removed if all tasks end within ``_END_SECONDS``.
    """
    sweep = JobDirectory(_sweep_folder(group), options.directory)
    if not sweep.run.is_dir():
        return
    with _locked(sweep.run):
        jobs = []
        for folder in _list_arrays(sweep.run):
            job, free_links = _load_array(folder)
            closed_tasks = []
            for link in free_links:
                with contextlib.suppress(FileExistsError):  # a trial has claimed it, or the task has closed itself
                    link.symlink_to(_CLOSED)
                    closed_tasks.append(link.name)
            if job and closed_tasks:
                with contextlib.suppress(commands.UnknownJob):
                    commands.run("scancel", f"{job}_[{','.join(closed_tasks)}]")
            jobs += [job] if job else []
        deadline = time.monotonic() + _END_SECONDS
        while sweep.copied and not all(map(commands.has_ended, jobs)):
            if time.monotonic() > deadline:
                return
            time.sleep(0.2)
        if sweep.copied and permissions.is_own(sweep.run):
            shutil.rmtree(sweep.run)
            sweep.job.rmdir()


def _sweep_folder(group: Group) -> JobFolder:
    return JobStore(kind="sweeps").folder(group.id)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the lock for claiming tasks. Raises OSError."""
    with (root / "lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _list_arrays(root: Path) -> list[Path]:
    """Return the folders of all arrays, the newest last."""
    return sorted((path for path in root.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def _write_array(folder: Path, job: str, size: int) -> None:
    files.write(folder / "array.json", {"job": job, "size": size})


def _load_array(folder: Path) -> tuple[str, list[Path]]:
    """Return the Slurm job of an array, "" if unknown, and the links of its free tasks, in the order of their start.

    If the submission was killed or its response was lost, the job is looked up in the queue. Raises SlurmFailed.
    """
    try:
        array = json.loads((folder / "array.json").read_text(encoding="utf-8"))
    except FileNotFoundError:  # not submitted
        return "", []
    job, size = array["job"], array["size"]
    if not job and (jobs := commands.jobs_named(f"{folder.parent.parent.name}/{folder.name}")):
        job = jobs[0].partition("_")[0]
        _write_array(folder, job, size)
    return job, [link for task in range(size) if not (link := folder / str(task)).is_symlink()]


def _claim_free_task(folder: Path, directory: JobDirectory, context: Context) -> str:
    """Claim a free task for a job and return its id, "" if all are claimed.

    The job's handle is recorded first, so that another supervisor can claim the task if this one is killed.
    """
    job, free_links = _load_array(folder)
    for link in free_links if job else ():
        task = f"{job}_{link.name}"
        context.record_handle(directory.handle(task, link))
        if directory.claim_task(link):
            return task
    return ""


def _batch_script(folder: Path) -> str:
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
        f'    [ $polls -gt {_POLLS_PER_SECOND * WAIT_SECONDS} ] && ln -sn {_CLOSED} "$task"\n'
        f"    [ $polls -gt {2 * _POLLS_PER_SECOND * WAIT_SECONDS} ] && exit 1\n"
        f"    sleep {1 / _POLLS_PER_SECOND}\n"
        "done\n"
        'exec /bin/sh "$task/batch"\n'
    )
