"""Reads a running or ended sweep from its folder and those of its trials, in any process.

Each trial is a job whose spec names the sweep, its number and its values (``core.spec``). Its result is in its curve,
and the reason for pruning in its end event. The sweep's folder ``$DISTDL_HOME/sweeps/<id>/`` is like that of a job, and
also contains:

    journal.log     Optuna's storage, a JournalStorage file that Optuna's own tools open
    end.json        how the sweep ended; missing while it runs
    driven-on.json  how often the driver was restarted (``jobs.study_rows``)
    slurm/          on Slurm: its job array (``clusters.slurm.script``)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import DistDLError, JobNotFound
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import short_id
from distdl_jupyter.core.space import PRUNED_PREFIX, Study, SweepPlan, Trial, sample_points
from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.jobs import job_list, study_rows
from distdl_jupyter.jobs.client import Job
from distdl_jupyter.jobs.reader import JobReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.views.job_table import JobRow

KIND = "sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTrial(Trial):
    """A trial of a sweep with its job."""

    @property
    def job(self) -> Job:
        """The job of the trial."""
        return Job(JobStore().get_folder(self.id))

    def run(self, **options: Any) -> Job:
        """Start a new job with the values of this trial, for example with more processes, and return its handle.

        ``options`` replace those of the trial. Raises InvalidSpec, PluginUnavailable, JobNotFound.
        """
        from distdl_jupyter.core import registry  # lazy: reading sweeps needs no plug-ins
        from distdl_jupyter.jobs import jobspec

        resolved, spec = jobspec.resolve_options(options), self.job.spec
        processes = resolved.get("process_count_per_node", 1), resolved.get("node_count", 1)
        if spec.distributed_backend == registry.SINGLE_PROCESS_BACKEND and processes != (1, 1):
            resolved.setdefault("distributed_backend", registry.DEFAULT_BACKEND)
        return self.job.rerun(**{"name": f"{spec.group.name if spec.group else spec.name}, best", **resolved})


def get_store() -> JobStore:
    """Return the sweeps of this data directory."""
    return JobStore(kind="sweeps")


def get_folder(id_: str) -> JobFolder:
    """Return the folder of the sweep with this full id, which need not exist."""
    return get_store().get_folder(id_)


def find_id(id_: str = "") -> str:
    """Return the full id of a sweep from its id or the last part of it, by default the newest. Raises JobNotFound."""
    groups = (candidate.row.group for candidate in job_list.get_index().read_all())
    ids = {*get_store().list_ids(), *(group.id for group in groups if group and group.kind == KIND)}
    matches = sorted(
        (candidate for candidate in ids if not id_ or candidate == id_ or short_id(candidate) == id_), reverse=True
    )
    if not matches:
        raise JobNotFound(
            f"Unknown sweep {id_}." if id_ else "There are no sweeps yet.",
            code="sweep-unknown",
            hint='sweep(train, {"lr": loguniform(1e-4, 1e-1)}, metric="loss") starts one.',
        )
    return matches[0]


def read(id_: str) -> Study:
    """Return the sweep with this full id. Raises JobNotFound."""
    sweep_folder, rows = get_folder(id_), list_rows(id_)
    try:
        spec = sweep_folder.read_spec()
    except JobNotFound:
        if not rows:
            raise JobNotFound(f"Unknown sweep {id_}.", code="sweep-unknown") from None
        spec = _read_spec(str(JobStore().get_folder(rows[0].id).path))
    assert spec.group is not None
    plan = SweepPlan.from_group(spec.group)
    state, end = study_rows.get_sweep_state(id_, rows, plan.trials)  # read before the trials, so that no end is missed
    runs = [trial for row in rows if (trial := _make_trial(row, plan)) is not None and trial.state != State.LOST]
    trials = tuple(
        trial
        for trial in runs  # a stopped trial is requeued with another number
        if not trial.was_stopped or all(other.number <= trial.number or other.params != trial.params for other in runs)
    )
    return Study(
        id=id_,
        spec=spec,
        group=spec.group,
        plan=plan,
        state=state,
        trials=trials,
        problem=str(end.get("problem", "")),
        hint=str(end.get("hint", "")),
        ended=end.get("ended"),
    )


def list_rows(id_: str) -> list[JobRow]:
    """Return the rows of a sweep's jobs, oldest first."""
    return [job.row for job in reversed(job_list.get_index().read_all()) if job.row.group and job.row.group.id == id_]


def map_trials(rows: Iterable[JobRow]) -> dict[int, JobRow]:
    """Return the newest job of each trial, by number."""
    newest_rows: dict[int, JobRow] = {}
    for row in rows:
        try:
            number = _read_spec(str(JobStore().get_folder(row.id).path)).trial
        except DistDLError:  # it was removed
            continue
        if number is not None:
            newest_rows[number] = row
    return newest_rows


@functools.lru_cache(maxsize=4096)
def _read_spec(path: str) -> JobSpec:
    """Return the spec of a job, which never changes."""
    return JobFolder(Path(path)).read_spec()


def _make_trial(row: JobRow, plan: SweepPlan) -> SweepTrial | None:
    path = str(JobStore().get_folder(row.id).path)
    try:
        spec = _read_spec(path)
        points, value = (_read_curve if State(row.state).ended else _read_curve.__wrapped__)(path, plan.metric)
    except DistDLError:  # it was removed
        return None
    if spec.trial is None:
        return None
    pruned = row.state == "canceled" and row.message.startswith(PRUNED_PREFIX)
    done = row.done if row.done is not None else points[-1][0] if points else None
    return SweepTrial(
        number=spec.trial,
        id=row.id,
        params=spec.parameters,
        state="pruned" if pruned else row.state,
        value=value,
        created=row.created,
        ended=row.ended,
        message=row.message.removeprefix(PRUNED_PREFIX),
        done=done,
        total=row.total,
        points=points,
    )


@functools.lru_cache(maxsize=2048)
def _read_curve(path: str, metric: str) -> tuple[tuple[tuple[float, float], ...], float | None]:
    """Return a job's curve with a reduced number of points, and its newest value, or None if it is not finite."""
    reader = JobReader(JobFolder(Path(path)), curves=True)
    reader.catch_up()
    if metric not in reader.curves.metrics:
        return (), None
    band = reader.curves.get(metric).get_band()
    value = band.last if band.last is not None and math.isfinite(band.last) else None
    return tuple(sample_points(band.rows)), value
