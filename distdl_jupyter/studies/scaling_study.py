"""A scaling study, read again from the folders of its runs: nothing of it is kept anywhere else.

Each run is a job whose spec names the study and what was asked for (``core.spec.Group``); what it measured stands in
its ``steps.jsonl``. So any process may open a study, while it goes on and after the process that drives it has ended.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import scaling, step_times
from distdl_jupyter.core.errors import JobNotFound, JobNotRunning, JobStillRunning
from distdl_jupyter.core.humanize import short_id
from distdl_jupyter.core.state import State
from distdl_jupyter.core.step_times import StepTimes
from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.jobs import job_list, rerun, study_rows
from distdl_jupyter.node.processes import has_ended, mark
from distdl_jupyter.views.scaling import Facts, ScalingShown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distdl_jupyter.core.spec import Group, JobSpec
    from distdl_jupyter.core.step_times import Straggler
    from distdl_jupyter.views.ended_cache import Listed
    from distdl_jupyter.views.job_table import JobRow

KIND = "scale"


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One job of a study; ``run`` is None before it has made enough steps."""

    row: JobRow
    run: scaling.Run | None
    straggler: Straggler | None
    #: Whether it was measured to its end, and not cut off.
    is_whole: bool

    @property
    def processes(self) -> int:
        """How many processes it has."""
        return self.row.node_count * self.row.process_count_per_node

    @property
    def key(self) -> tuple[str, int, int]:
        """Return backend, processes and nodes."""
        return self.row.backend, self.processes, self.row.node_count


def find(id_: str = "", *, over: bool = False) -> ScalingShown:
    """Return the study with an id, or its last part; without one the newest. Raises JobNotFound.

    ``over`` says that no further run will come, which else shows some seconds after the last one.
    """
    return _read(_listed(id_), over=over)


def _listed(id_: str) -> list[Listed]:
    """Return the jobs of a study, the oldest first. Raises JobNotFound."""
    listed = [one for one in job_list.here().all() if one.row.group and one.row.group.kind == KIND]
    ids = list(dict.fromkeys(one.row.group.id for one in listed if one.row.group))
    found = [one for one in ids if not id_ or one == id_ or short_id(one) == id_]
    if not found:
        raise JobNotFound(
            f"Unknown scaling study {id_}." if id_ else "There are no scaling studies yet.",
            code="scaling-unknown",
            hint="Start one with: scale(train, processes=[1, 2, 4])",
        )
    return [one for one in reversed(listed) if one.row.group and one.row.group.id == found[0]]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A study that can go on: its newest spec, the folders of its runs, the oldest first, and what was measured."""

    spec: JobSpec
    folders: list[JobFolder]
    measured: dict[tuple[str, int], list[scaling.Run]]


def unfinished(id_: str) -> Unfinished:
    """Return a study of which something is missing and that no process drives.

    Raises JobNotFound, JobStillRunning, JobNotRunning where nothing is missing, InvalidSpec where a secret variable is.
    """
    listed = _listed(id_)
    folders = [JobStore().folder(one.row.id) for one in listed]
    spec = folders[-1].spec()
    group = spec.group
    assert group is not None
    driver, runs = str(group.plan.get("driver", "")), _runs(listed, group)
    whole = _whole(runs)
    done = sum(scaling.enough([run.rate for run in found]) for found in whole.values())
    if done >= group.size:
        raise JobNotRunning(
            f"All {group.size} points of scaling study {group.id} have been measured.", code="scaling-done"
        )
    state, _ = study_rows.scaling_state(listed[-1].row, time.time(), complete=False)
    if listed[-1].active or (state is State.RUNNING and driver != mark() and not has_ended(driver)):
        raise JobStillRunning(
            f"Scaling study {group.id} is still running.",
            code="scaling-still-running",
            hint="A run whose process has died is ended within some seconds.",
        )
    rerun.secrets_of(spec)
    return Unfinished(spec, folders, whole)


def _read(listed: list[Listed], *, over: bool) -> ScalingShown:
    """Return the study of some jobs, the oldest first."""
    spec = JobStore().folder(listed[0].row.id).spec()
    assert spec.group is not None
    runs = _runs(listed, spec.group)
    found = ScalingShown(spec.group.name, _points(runs))
    found.facts = _facts(spec, runs, listed, over=over)
    return found


def _runs(listed: list[Listed], group: Group) -> list[StudyRun]:
    store, found = JobStore(), []
    for one in listed:
        folder = store.folder(one.row.id)
        run, straggler = _measured(folder) if one.active else _kept(str(folder.path))
        is_whole = run is not None and run.is_whole(State(one.row.state), group.plan.get("seconds", 0.0))
        found.append(StudyRun(one.row, run, straggler, is_whole))
    return found


@functools.lru_cache(maxsize=512)
def _kept(path: str) -> tuple[scaling.Run | None, Straggler | None]:
    """Return what a job measured that has ended, and changes no more."""
    return _measured(JobFolder(Path(path)))


def _measured(folder: JobFolder) -> tuple[scaling.Run | None, Straggler | None]:
    times = step_times.read(folder.steps)
    run = scaling.measured(times) if times.rows else None
    if run is None:
        return None, None
    warm = [row for row in times.rows if row.attempt == times.rows[-1].attempt and row.step >= scaling.WARM_UP]
    return run, StepTimes(warm, {}, times.sending).straggler


def _points(runs: Sequence[StudyRun]) -> list[scaling.Point]:
    """Return a point for each backend and number of processes of which something is known, in the order of the runs."""
    found: dict[tuple[str, int, int], list[scaling.Run]] = {}
    for one in sorted(runs, key=lambda one: not one.is_whole):
        # A run that goes on, or was cut off, counts where there is no other.
        if one.run is not None and (one.is_whole or not found.get(one.key)):
            found.setdefault(one.key, []).append(one.run)
    return [scaling.point(*key, group) for key, group in found.items()]


def _facts(spec: JobSpec, runs: Sequence[StudyRun], listed: Sequence[Listed], *, over: bool) -> Facts:
    group = spec.group
    assert group is not None
    now = float("inf") if over else time.time()
    rows = [one.row for one in runs]
    done = _done(runs)
    state, why = study_rows.scaling_state(rows[-1], now, complete=done == group.size)
    last = rows[-1].ended or time.time()
    by_point: dict[tuple[str, int], list[Straggler | None]] = {}
    for one in runs:
        if one.run is not None:
            by_point.setdefault((one.row.backend, one.processes), []).append(one.straggler)
    plan: dict[str, Any] = group.plan
    return Facts(
        id=group.id, state=state, problem=why, target=spec.compute_target,
        hosts=tuple(dict.fromkeys(host for one in listed for host in one.hosts)),
        done=done, size=group.size, runs=len(runs), seconds=last - rows[0].created,
        processes=tuple(plan.get("processes", ())), backends=tuple(plan.get("backends", ())),
        stragglers={key: same for key, found in by_point.items() if (same := _same(found)) is not None},
    )  # fmt: skip


def _done(runs: Sequence[StudyRun]) -> int:
    """Return of how many points the runs suffice."""
    return sum(scaling.enough([run.rate for run in found]) for found in _whole(runs).values())


def _whole(runs: Sequence[StudyRun]) -> dict[tuple[str, int], list[scaling.Run]]:
    """Return what was measured to its end, by backend and number of processes."""
    found: dict[tuple[str, int], list[scaling.Run]] = {}
    for one in runs:
        if one.run is not None and one.is_whole:
            found.setdefault((one.row.backend, one.processes), []).append(one.run)
    return found


def _same(found: Sequence[Straggler | None]) -> Straggler | None:
    """Return the straggler that all runs of a point name, None where one names none or another."""
    ranks = {one.rank if one else None for one in found}
    return found[-1] if len(ranks) == 1 else None
