"""Merges the runs of each study into one row of the job list, and restarts drivers of sweeps that have died.

The row of a study stores the id of its ``group``. A sweep has a row before its first trial. Each sweep has a driver
process (``sweep_driver``). If it has died, the next reader of the list starts a new one, which resumes from the files.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import files, registry, step_times
from distdl_jupyter.core.alerts import Alert
from distdl_jupyter.core.errors import DistDLError, JobNotFound
from distdl_jupyter.core.events import State
from distdl_jupyter.core.files import JobLock
from distdl_jupyter.core.humanize import number, plural, short_id
from distdl_jupyter.core.space import PRUNED_PREFIX, STOP_REASON
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.core.view import JobView
from distdl_jupyter.jobs import job_list, rerun
from distdl_jupyter.supervisor import control
from distdl_jupyter.views.job_table import make_job_row

if TYPE_CHECKING:
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.views.job_table import JobRow, RowGroup

#: The driver of a sweep, which is started like a supervisor.
DRIVER_MODULE = "distdl_jupyter.studies.sweep_driver"
#: Seconds after the end of a run within which the next run may still start.
_NEXT_RUN_SECONDS = 8.0
#: Maximum number of drivers that may die in a row without any trial started or ended in between.
_MAX_RESTARTS = 3


def list_studies(jobs: Sequence[JobRow]) -> list[JobRow]:
    """Return a row for each study, including sweeps without a trial; ``jobs`` are sorted newest first."""
    return [*_group_runs(jobs), *list_empty_sweeps(jobs)]


def _group_runs(jobs: Sequence[JobRow]) -> list[JobRow]:
    runs: dict[str, list[JobRow]] = {}
    for row in jobs:
        if row.group is not None:
            runs.setdefault(row.group.id, []).append(row)
    return [_make_row(runs_of_study[0], runs_of_study) for runs_of_study in runs.values()]


def list_empty_sweeps(jobs: Sequence[JobRow]) -> list[JobRow]:
    """Return a row for each sweep without a trial: it has just started, or failed before its first trial."""
    with_trials = {row.group.id for row in jobs if row.group is not None}
    store, studies = JobStore(kind="sweeps"), []
    for id_ in store.list_ids():
        if id_ not in with_trials:
            with contextlib.suppress(JobNotFound):  # it was removed
                spec = store.get_folder(id_).read_spec()
                if spec.group is not None:
                    studies.append(_make_row(make_job_row(JobView.from_spec(spec), spec, time.time()), ()))
    return studies


def is_study(row: JobRow) -> bool:
    """Return whether a row belongs to a study."""
    return row.group is not None and row.group.id == row.id


def fold_rows(jobs: Sequence[JobRow]) -> list[JobRow]:
    """Return the rows with the runs of each study replaced by one row at the position of the newest run."""
    empty_sweeps = list_empty_sweeps(jobs)
    studies, result = {row.id: row for row in (*_group_runs(jobs), *empty_sweeps)}, []
    for row in heapq.merge(jobs, empty_sweeps, key=lambda row: row.id, reverse=True):
        current = row if row.group is None else studies.pop(row.group.id, None)
        if current is not None:
            result.append(current)
    return result


def _make_row(template: JobRow, runs: Sequence[JobRow]) -> JobRow:
    """Return the row of a study from its ``runs``, newest first; ``template`` is the newest run, or the empty sweep."""
    group = template.group
    assert group is not None
    kind_fields = _get_sweep_fields(runs, group) if group.kind == "sweep" else _get_scaling_fields(runs, group)
    ended = None if kind_fields["state"] == State.RUNNING.value else template.ended if runs else kind_fields["ended"]
    created = runs[-1].created if runs else template.created
    return replace(
        template,
        id=group.id,
        created=created,
        total=group.size,
        remaining=None,
        spark=(),
        queue=None,
        can_rerun=False,
        can_resume=False,
        stalled=False,
        waited=0.0,
        queued_since=None,
        alert=None,
        **{**kind_fields, "ended": ended},
    )


# scaling studies ---------------------------------------------------------------------------------


def _get_scaling_fields(runs: Sequence[JobRow], group: RowGroup) -> dict[str, Any]:
    rates = {
        (run.backend, run.node_count * run.process_count_per_node): run.group.value
        for run in reversed(runs)
        if run.group is not None and run.group.value is not None and State(run.state).ended
    }
    measured_count = len(rates)
    state, reason = get_scaling_state(runs[0], time.time(), complete=measured_count >= group.size)
    share = _compute_efficiency(rates)
    return {
        "name": f"Scaling of {group.name}",
        "state": state.value,
        "message": reason,
        "done": min(measured_count, group.size),
        "metric": "" if share is None else "% of ideal",
        "value": None if share is None else round(100 * share),
    }


def get_scaling_state(newest: JobRow, now: float, *, complete: bool) -> tuple[State, str]:
    """Return the state of a scaling study from its newest run and, if it ended early, the reason."""
    state = State(newest.state)
    if not state.ended:
        return State.RUNNING, ""
    if complete:
        return State.COMPLETED, ""
    if state in (State.FAILED, State.LOST):
        return state, newest.message
    if state is State.COMPLETED and newest.group is not None and newest.group.value is None:
        return State.FAILED, f"{newest.name} {step_times.TOO_FEW_STEPS}"
    if now - (newest.ended or now) < _NEXT_RUN_SECONDS:
        return State.RUNNING, ""
    return State.CANCELED, ""


def _compute_efficiency(rates: dict[tuple[str, int], float]) -> float | None:
    """Return the rate per process at the highest process count relative to the lowest, for the first backend.

    Return None if the runs cannot be compared.
    """
    points = sorted((count, rate) for (backend, count), rate in rates.items() if backend == next(iter(rates))[0])
    return step_times.compute_efficiency(points[0], points[-1]) if len(points) > 1 else None


# sweeps ------------------------------------------------------------------------------------------


def _get_sweep_fields(runs: Sequence[JobRow], group: RowGroup) -> dict[str, Any]:
    values = [run.group.value for run in runs if run.state == "completed" and run.group and run.group.value is not None]
    state, end = get_sweep_state(group.id, runs, group.size)
    running = sum(not State(run.state).ended for run in runs)
    pruned = sum(run.state == "canceled" and run.message.startswith(PRUNED_PREFIX) for run in runs)
    counts = (f"{running} running" if running else "", f"{pruned} pruned" if pruned else "")
    if state in (State.RUNNING, State.COMPLETED):
        text = ", ".join(filter(None, counts))
    else:
        text = " ".join(filter(None, (str(end.get(name, "")) for name in ("problem", "hint"))))
    return {
        "name": f"Sweep of {group.name}",
        "state": state.value,
        "message": text,
        "done": min(_count_ended(runs), group.size),
        "metric": f"best {group.metric}" if values else "",
        "ended": end.get("ended"),
        "value": (max if group.maximize else min)(values, default=None),
    }


def _count_ended(runs: Sequence[JobRow]) -> int:
    """Return the number of ended trials that are not repeated."""
    return sum(State(run.state).ended and run.state != "lost" and run.message != STOP_REASON for run in runs)


def get_sweep_state(id_: str, runs: Sequence[JobRow], size: int) -> tuple[State, dict[str, Any]]:
    """Return the state of a sweep with these runs and ``size`` trials, and its end: ``problem``, ``hint``, ``ended``.

    If its driver has died, another one is started.
    """
    folder = JobStore(kind="sweeps").get_folder(id_)
    if not folder.path.exists():
        is_running, is_done = any(not State(run.state).ended for run in runs), _count_ended(runs) >= size
        return State.RUNNING if is_running else State.COMPLETED if is_done else State.LOST, {
            "problem": "The folder of the sweep was deleted, so no more trials start. Its finished trials are kept.",
            "hint": "" if is_done else "Start a new sweep for more.",
        }
    holder = folder.read_supervisor()
    if holder.is_held:
        return State.RUNNING, {}
    if end := _read_end(folder):
        return State(end["state"]), end
    if holder.is_on_other_host:
        return State.RUNNING, {"problem": f"The sweep runs on {holder.host}."}
    return _restart_driver(folder, runs)


def _read_end(folder: JobFolder) -> dict[str, Any]:
    """Return how a sweep ended, or {} if it has not."""
    try:
        end = json.loads((folder.path / "end.json").read_text(encoding="utf-8"))
        return {**end, "state": State(end["state"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _restart_driver(folder: JobFolder, runs: Sequence[JobRow]) -> tuple[State, dict[str, Any]]:
    """Start another driver of a sweep whose driver has died; if that is not possible, record why."""
    id_ = short_id(folder.id)
    hint = f'Continue with sweep("{id_}").resume(), or: distdl sweep --resume {id_}'
    try:
        spec = folder.read_spec()
        secrets = rerun.find_secrets(spec)
        lock = JobLock.acquire(folder.lock)
        if lock is None:
            return State.RUNNING, {}
        try:
            if not (end := _read_end(folder)) and _count_restart(folder, runs):
                problem = f"The process that controls the sweep died {_MAX_RESTARTS + 1} times in a row."
                record_end(folder, State.LOST, problem, f"See {folder.supervisor_log} for the cause. {hint}")
                end = _read_end(folder)
            if end:
                return State(end["state"]), end
            control.start_supervisor(folder, lock, secrets, python=spec.python, module=DRIVER_MODULE)
        finally:
            lock.release()
    except (DistDLError, OSError) as error:
        cause = error.message if isinstance(error, DistDLError) else f"No new process can be started: {error.strerror}."
        problem = "The process that controls the sweep was killed from outside. Running trials continue."
        return State.LOST, {"problem": f"{problem} {cause}", "hint": hint}
    return State.RUNNING, {}


def _count_restart(folder: JobFolder, runs: Sequence[JobRow]) -> bool:
    """Count a restart of the driver, and return whether there were too many without a new or ended trial."""
    path, progress = folder.path / "driven-on.json", [len(runs), sum(State(run.state).ended for run in runs)]
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        attempts = record["tries"] + 1 if record["come"] == progress else 1
    except (OSError, ValueError, KeyError, TypeError):
        attempts = 1
    files.write_json(path, {"come": progress, "tries": attempts})
    return attempts > _MAX_RESTARTS


def reopen_sweep(folder: JobFolder) -> None:
    """Remove the end marker of a sweep. The caller holds its lock and starts another driver."""
    for name in ("control", "end.json", "driven-on.json"):
        (folder.path / name).unlink(missing_ok=True)


def record_end(folder: JobFolder, state: State, problem: str = "", hint: str = "") -> None:
    """Record and announce the end of a sweep whose lock the caller holds; skip a deleted sweep."""
    if not folder.path.exists():
        return
    with contextlib.suppress(DistDLError, OSError):  # jobs queued for trials end without it
        spec = folder.read_spec()
        assert spec.group is not None, "it belongs to a sweep"
        options = registry.check_options("clusters", spec.cluster, spec.cluster_options)
        registry.get("clusters", spec.cluster).close_group(spec.group, options)
    end = {"state": state.value, "problem": problem, "hint": hint, "ended": time.time()}
    files.write_json(folder.path / "end.json", end)
    notify_end(folder.id, state, " ".join(filter(None, (problem, hint))))


# how studies end ---------------------------------------------------------------------------------


def notify_end(id_: str, state: State, problem: str = "") -> None:
    """Send the message about the end of a study if the user wants it and the study exists."""
    try:
        jobs = [entry.row for entry in job_list.get_index().read_all()]
        row = next(row for row in list_studies(jobs) if row.id == id_)
    except (DistDLError, StopIteration):
        return
    alert = Alert("failure", problem) if problem else Alert("end", _format_end(row))
    sweep = JobStore(kind="sweeps").get_folder(id_)
    runs = (JobStore().get_folder(entry.id) for entry in jobs if entry.group is not None and entry.group.id == id_)
    control.notify(sweep if sweep.path.exists() else next(runs), row.name, state, alert, id_=id_)


def _format_end(row: JobRow) -> str:
    assert row.group is not None
    if row.group.kind == "sweep":
        best = "" if row.value is None else f", {row.metric} {number(row.value)}"
        return f"{row.done:g} of {plural(row.total or 0, 'trial')} have ended{best}."
    ideal = "" if row.value is None else f", {row.value:g} % of the ideal rate on the most processes"
    return f"{row.done:g} of {plural(row.total or 0, 'point')} measured{ideal}."
