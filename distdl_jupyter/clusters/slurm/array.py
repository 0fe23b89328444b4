"""The job array of a sweep: its tasks wait in Slurm's queue together, and each runs the trial that has taken it.

What a trial tries may follow from those before it, so nothing of a trial is known when the array is submitted: a task
is a place in the queue only. The supervisor of a trial takes the first free one by a link with the task's number, made
once by whoever comes first, that leads to the trial's files. A task that begins follows its link, and waits a moment
for one where the trial before has just ended; a task that nobody takes gives up. A trial that begins again, after an
interruption for instance, takes another task: so as many run at once as the array allows, and none twice.

``<folder of the sweep>/slurm/``, or the same below the option ``directory``, holds::

    lock            who takes a task holds it
    1/array.json    an array: its Slurm job ("" while it is being submitted), and how many tasks it has
    1/7, 1/7.out    a link to the files of the trial that task 7 runs, and what its script has printed
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shlex
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from distdl_jupyter.clusters.base import Notice
from distdl_jupyter.clusters.slurm import commands, script
from distdl_jupyter.clusters.slurm.script import Site
from distdl_jupyter.core import atomic_write
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.core.sweep import Plan
from distdl_jupyter.node import permissions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from distdl_jupyter.clusters.base import Context
    from distdl_jupyter.clusters.slurm.options import SlurmOptions
    from distdl_jupyter.core.spec import Group, JobSpec
    from distdl_jupyter.core.store import JobFolder

#: Seconds that a task waits for a trial: that of the next begins when the one before has ended.
WAIT_SECONDS = 60
#: Looks of a waiting task in a second, and seconds for which the end of an array is waited for.
_LOOKS, _END_SECONDS = 5, 10.0
#: Where the link of a task leads that no trial may take any more.
_CLOSED = "-"


def take(site: Site, spec: JobSpec, options: SlurmOptions, secrets: Mapping[str, str], context: Context) -> str:
    """Let a trial be the next task of its sweep's array, which is submitted where there is none; return the task.

    "" for a job of no sweep, for the last trial, and where Slurm takes no array. Raises SlurmSilent, OSError.
    """
    group = spec.group
    if group is None or spec.trial is None or not _folder(group).path.exists():
        return ""
    of_sweep = Site(_folder(group), options.directory)
    of_sweep.make()
    with _locked(of_sweep.run):
        arrays, plan, number = _arrays(of_sweep.run), Plan.of(group), spec.trial
        for folder in arrays[-1:]:
            if task := _take_of(folder, site, context):
                return task
        # The first trials begin together, and any of them may come first.
        left = plan.trials - (number if arrays or number >= plan.parallel else 0)
        if left < 2 or (size := min(left, _most())) < 2:
            return ""
        new = _submitted(of_sweep.run, size, spec, options, secrets, context)
        return "" if new is None else _take_of(new, site, context)


def close(group: Group, options: SlurmOptions) -> None:
    """Take the tasks out of the queue that no trial has taken; those of trials go on. Raises SlurmFailed, OSError.

    A folder below the option ``directory`` is taken away when all tasks have ended.
    """
    of_sweep = Site(_folder(group), options.directory)
    if not of_sweep.run.is_dir():
        return
    with _locked(of_sweep.run):
        jobs = list(filter(None, map(_closed, _arrays(of_sweep.run))))
        if not of_sweep.copied:
            return
        until = time.monotonic() + _END_SECONDS
        while not all(map(commands.has_ended, jobs)):
            if time.monotonic() > until:
                return
            time.sleep(0.2)
        if permissions.is_own(of_sweep.run):
            shutil.rmtree(of_sweep.run)
            of_sweep.job.rmdir()


def _folder(group: Group) -> JobFolder:
    return JobStore(kind="sweeps").folder(group.id)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Wait until nobody else takes a task. Raises OSError."""
    with (root / "lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# tasks -------------------------------------------------------------------------------------------


def _arrays(root: Path) -> list[Path]:
    """Return the folders of all arrays, the newest last."""
    return sorted((one for one in root.iterdir() if one.name.isdigit()), key=lambda one: int(one.name))


def _free(folder: Path) -> list[Path]:
    """Return the links of the tasks that no trial has taken, in the order in which they begin."""
    return [link for task in range(_read(folder)[1]) if not (link := folder / str(task)).is_symlink()]


def _take_of(folder: Path, site: Site, context: Context) -> str:
    """Take a free task for a job and return it, "" where all are taken.

    The job's handle is written down first: when its supervisor is killed before it has the task, another one takes it.
    """
    job = _job(folder)
    for link in _free(folder) if job else ():
        task = commands.with_number(job, f"{commands.number(job)}_{link.name}")
        context.record_handle(site.handle(task, link))
        if site.take(link):
            return task
    return ""


def _closed(folder: Path) -> str:
    """Leave no free task in an array and take them out of the queue; return its job. Raises SlurmFailed."""
    job, closed = _job(folder), list[str]()
    for link in _free(folder):
        with contextlib.suppress(FileExistsError):  # a trial, or the task itself, was faster
            link.symlink_to(_CLOSED)
            closed.append(link.name)
    if job and closed:
        with contextlib.suppress(commands.UnknownJob):
            commands.cancel(commands.with_number(job, f"{commands.number(job)}_[{','.join(closed)}]"))
    return job


# arrays ------------------------------------------------------------------------------------------


def _most() -> int:
    """Return how many tasks an array may have; the number of a task is below MaxArraySize. Raises SlurmFailed."""
    return commands.leading_number(commands.config().get("MaxArraySize", ""))


def _submitted(
    root: Path, size: int, spec: JobSpec, options: SlurmOptions, secrets: Mapping[str, str], context: Context
) -> Path | None:
    """Submit an array and return its folder, None where Slurm takes none. Raises SlurmSilent, OSError.

    A folder of its own keeps its links from the tasks of every other array, also of one that nobody knows of.
    """
    assert spec.group is not None, "a trial has a sweep"
    number = 1 + max((int(one.name) for one in _arrays(root)), default=0)
    folder = permissions.own(root / str(number))
    _write(folder, "", size)
    (folder / "batch").write_text(_batch(folder), encoding="utf-8")
    arguments = script.arguments(
        spec, options, secrets, folder, "%a.out", f"{spec.group.id}/{number}",
        f"--array=0-{size - 1}%{Plan.of(spec.group).parallel}",
    )  # fmt: skip
    try:
        _write(folder, commands.submit([*arguments, str(folder / "batch")], secrets), size)
    except commands.SlurmSilent:  # it may have been accepted
        raise
    except commands.SlurmFailed as error:
        shutil.rmtree(folder)
        says = (
            f"Slurm rejected an array of {plural(size, 'job')}, so each trial is queued separately. ({error.message})"
        )
        context.note(Notice("info", says, "no-array"))
        return None
    return folder


def _write(folder: Path, job: str, size: int) -> None:
    atomic_write.write(folder / "array.json", {"job": job, "size": size})


def _read(folder: Path) -> tuple[str, int]:
    """Return the Slurm job of an array, and how many tasks it has: none where it was not begun. Raises OSError."""
    try:
        found = json.loads((folder / "array.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "", 0
    return found["job"], found["size"]


def _job(folder: Path) -> str:
    """Return the Slurm job of an array, "" where none is known. Raises SlurmFailed.

    One that was submitted by a supervisor that was killed then, or did not get Slurm's answer, is found in the queue.
    """
    job, size = _read(folder)
    if not job and (found := commands.jobs_named(f"{folder.parent.parent.name}/{folder.name}")):
        job = found[0].partition("_")[0]
        _write(folder, job, size)
    return job


def _batch(folder: Path) -> str:
    """Return the script of every task; the first look sees a link in a folder of a file server too (``ls``).

    As the script of a job by itself does, it does nothing where Slurm runs it once more.
    """
    return (
        "#!/bin/sh\n"
        f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || exit {script.REQUEUED}\n'
        f"cd {shlex.quote(str(folder))} || exit 1\n"
        "task=$SLURM_ARRAY_TASK_ID looks=0\n"
        'until ls >/dev/null; [ -f "$task/batch" ]; do\n'
        '    [ -h "$task" ] && exit 0\n'
        "    looks=$((looks + 1))\n"
        f'    [ $looks -gt {_LOOKS * WAIT_SECONDS} ] && ln -sn {_CLOSED} "$task"\n'
        f"    [ $looks -gt {2 * _LOOKS * WAIT_SECONDS} ] && exit 1\n"
        f"    sleep {1 / _LOOKS}\n"
        "done\n"
        'exec /bin/sh "$task/batch"\n'
    )
