"""Jobs as rows of a list, and the list as a table for notebooks and terminals.

The row of an ended job is stored in its folder as ``summary.json``, so that long lists are cheap.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from distdl_jupyter.core import files, humanize
from distdl_jupyter.core.alerts import CODE_PREFIX
from distdl_jupyter.core.errors import Finding
from distdl_jupyter.core.events import State
from distdl_jupyter.core.plan import QueueView
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.view import SHORT_WAIT, JobView, MetricView
from distdl_jupyter.views.wire import from_fields, to_finite
from distdl_jupyter.worker.hooks import frameworks

_EMPTY_TEXT = "No jobs yet. Start a cell with %%distributed -p 2, or run: distdl submit -p 2 train.py"


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The study of ``size`` runs that a job belongs to. Runs are compared by ``value``, or None if it is unknown.

    In a scaling study ("scale"), the value is the rate of all ranks in samples (or batches) per second; in a sweep
    ("sweep"), it is the newest mean of ``metric``. A higher value is better if ``maximize``.
    """

    kind: str
    id: str
    name: str
    size: int
    value: float | None
    metric: str = ""
    maximize: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """The fields of a job in lists and in the header of its panel."""

    id: str
    name: str
    state: State
    compute_target: str
    backend: str
    node_count: int
    process_count_per_node: int
    created: float
    ended: float | None
    last_sign: float
    #: Seconds of previous waits in queues.
    waited: float
    #: Start of the current wait in a queue (epoch seconds), or None if the job is not queued.
    queued_since: float | None
    done: float | None
    total: float | None
    remaining: float | None
    can_rerun: bool
    #: Whether the job has ended and left checkpoints.
    can_resume: bool
    #: The position of the job in the queue, or None if it is not queued.
    queue: QueueView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow(JobSummary):
    """One job in a list. ``spark`` contains up to 40 means of ``metric`` over time; ``message`` explains the state."""

    message: str
    metric: str
    value: float | None
    spark: tuple[float | None, ...]
    notebook: str
    #: How often the ranks were restarted.
    restarts: int
    #: Whether the job is stalled; ``message`` names the ranks that differ.
    stalled: bool
    group: RowGroup | None = None
    #: The newest alert: a NaN metric, or a rule whose condition is met.
    alert: Finding | None = None


def make_summary(view: JobView, now: float, *, has_checkpoints: bool) -> dict[str, Any]:
    """Return the fields of a ``JobSummary`` that the view does not contain, at the time ``now`` (epoch seconds)."""
    return {
        "backend": view.distributed_backend,
        "remaining": view.estimate_remaining(now),
        "can_rerun": view.state.ended,
        "can_resume": view.state.ended and has_checkpoints,
    }


def make_job_row(
    view: JobView, spec: JobSpec, now: float, *, has_checkpoints: bool = False, group_value: float | None = None
) -> JobRow:
    """Return the row of a job at the time ``now`` (epoch seconds); ``group_value`` is the job's value in its study."""
    group = _make_group(view, spec, group_value)
    metric = view.metrics.get((group.metric if group else "") or choose_metric(list(view.metrics)))
    return from_fields(
        JobRow,
        view,
        **make_summary(view, now, has_checkpoints=has_checkpoints),
        message=_format_status(view),
        metric=metric.name if metric else "",
        value=to_finite(metric.mean) if metric else None,
        spark=make_sparkline(metric),
        notebook=spec.source.notebook,
        restarts=len(view.restarts),
        stalled=view.stall is not None and not view.state.ended,
        alert=next((make_finding(note) for note in reversed(view.notes) if note["code"].startswith(CODE_PREFIX)), None),
        group=group,
    )


def _make_group(view: JobView, spec: JobSpec, value: float | None) -> RowGroup | None:
    group = spec.group
    if group is None:
        return None
    metric = str(group.plan.get("metric") or "") if group.kind == "sweep" else ""
    if metric:
        value = view.metrics[metric].mean if metric in view.metrics else None
    maximize = bool(group.plan.get("maximize"))
    return RowGroup(group.kind, group.id, group.name, group.size, to_finite(value), metric, maximize)


def make_finding(note: dict[str, Any]) -> Finding:
    """Return a note of a job as a finding."""
    return Finding(note["level"], note["code"], note["text"])


def _format_status(view: JobView) -> str:
    """Return a short text about the failure, or what the job waits for."""
    if view.state is State.FAILED and view.failure is not None:
        if view.failure.kind == "unequal":
            return view.failure.what.rpartition(": ")[2]
        error = view.failure.what.split(":")[0]
        return f"{error} on rank {view.failure.rank}" if view.process_count > 1 else error
    if view.remote_writer is not None:
        return view.remote_writer.describe()
    if view.state in (State.STARTING, State.RUNNING) and view.stall is not None:
        ranks = view.stall.ranks
        verb = "differs" if len(ranks) == 1 else "differ"
        return f"No progress: {humanize.ranks(ranks)} {verb}" if ranks else "No progress"
    if not view.state.ended and (compiling := [rank.rank for rank in view.ranks if rank.compiling]):
        return f"{frameworks.COMPILER} on {humanize.ranks(compiling)}"
    is_setting_up = view.state in (State.QUEUED, State.PREPARING, State.STARTING, State.RUNNING)
    return view.phases[-1].detail if is_setting_up and view.phases else view.reason


def choose_metric(names: Sequence[str]) -> str:
    """Return the metric to show first: the loss, or else the first metric, or "" if there is none."""
    return next((name for name in names if "loss" in name.lower()), names[0] if names else "")


def make_sparkline(metric: MetricView | None) -> tuple[float | None, ...]:
    """Return up to 40 means of a metric, spread over its steps, the newest last, or () if there are fewer than two.

    Four digits keep a list of a thousand jobs small.
    """
    means = [] if metric is None else [*(mean for _, mean in metric.trail), metric.mean]
    return tuple(to_finite(float(f"{mean:.4g}")) for mean in means) if len(means) > 1 else ()


class JobTable(humanize.Display):
    """Jobs displayed as a table at the time ``now``; ``older`` is the number of jobs that are not shown."""

    def __init__(self, jobs: Sequence[JobRow], older: int = 0, now: float | None = None) -> None:
        self._jobs, self._older, self._now = jobs, older, time.time() if now is None else now

    def _parts(self) -> list[str | humanize.Rows]:
        if not self._jobs:
            return [_EMPTY_TEXT]
        lost_jobs = (job for job in self._jobs if job.state == "lost" and job.message)
        reasons = [f"{humanize.short_id(job.id)}: {job.message}" for job in lost_jobs]
        older = f"{humanize.plural(self._older, 'older job')} not shown: distdl ls --all, or %dist_jobs --all"
        rows = ([text(job, self._now) for text in COLUMNS.values()] for job in self._jobs)
        return [humanize.WholeRows([list(COLUMNS), *rows]), *reasons, *([older] if self._older else [])]


def _format_state(job: JobRow, _now: float) -> str:
    state = humanize.display_state(job.state, stalled=job.stalled)
    label = f"{humanize.STATE_SIGNS[state]} {humanize.STATE_LABELS[state]}"
    is_counted = job.state == "running" and job.total and job.done is not None
    return f"{label} {humanize.percent(job.done or 0, job.total or 1)}" if is_counted else label


def _format_elapsed(job: JobRow, now: float) -> str:
    end = now if job.ended is None else job.ended
    waited = job.waited + (0.0 if job.queued_since is None else max(0.0, end - job.queued_since))
    waited = waited if waited >= SHORT_WAIT else 0.0
    return humanize.ran_and_waited(end - job.created - waited, waited)


#: The columns of a table of jobs: the heading, and a function of a job and a time (epoch seconds) that returns text.
COLUMNS: dict[str, Callable[[JobRow, float], str]] = {
    "Id": lambda job, _now: job.id,
    "State": _format_state,
    "Name": lambda job, _now: job.name,
    "Processes": lambda job, _now: humanize.processes(job.node_count, job.process_count_per_node),
    "Backend": lambda job, _now: job.backend,
    "Elapsed": _format_elapsed,
    "Last": lambda job, _now: (
        f"{job.metric} {'not finite' if job.value is None else humanize.number(job.value)}" if job.metric else ""
    ),
    "Created": lambda job, now: humanize.ago(max(0.0, now - job.created)),
}


# summary.json -----------------------------------------------------------------------------------

#: Version of the stored rows. Increase it when rows are computed differently.
ROW_RULES_VERSION = 10
VERSION = f"{ROW_RULES_VERSION}-{zlib.crc32(repr(tuple(JobRow.__dataclass_fields__)).encode()):08x}"


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A row with data that pages do not receive: the job's cluster and the hosts of its ranks.

    ``check`` is the id of the check whose steps this job repeats on one process, or "" for any other job.
    """

    row: JobRow
    cluster: str
    hosts: tuple[str, ...]
    check: str = ""

    @property
    def active(self) -> bool:
        """Whether the job has not ended."""
        return not State(self.row.state).ended


def make_entry(folder: JobFolder, view: JobView, spec: JobSpec) -> ListedJob:
    """Return the current entry of a job."""
    hosts = tuple(dict.fromkeys(rank.host for rank in view.ranks if rank.host))
    ended = view.state.ended
    value = _find_group_value(folder, view, spec) if ended else None
    row = make_job_row(view, spec, time.time(), has_checkpoints=ended and folder.has_checkpoints, group_value=value)
    return ListedJob(row, spec.cluster, hosts, Path(str(spec.check.get("replay", ""))).name)


def _find_group_value(folder: JobFolder, view: JobView, spec: JobSpec) -> float | None:
    """Return the rate of an ended run of a scaling study, or None for any other job and for an interrupted run."""
    if spec.group is None or spec.group.kind != "scale":
        return None
    from distdl_jupyter.core import step_times  # lazy: few jobs are runs of a study

    times = step_times.read(folder.steps)
    run = step_times.measure_run(times) if times.rows else None
    return run.rate if run and run.is_complete(view.state, spec.group.plan.get("seconds", 0.0)) else None


def write_summary(folder: JobFolder, entry: ListedJob) -> None:
    """Store the row of an ended job in its folder, so that lists need not read its events. Ignores disk errors."""
    with contextlib.suppress(OSError):
        files.replace_file(folder.summary, msgspec.json.encode((VERSION, entry)))


_decoder = msgspec.json.Decoder(tuple[str, ListedJob])


def read_summary(folder: JobFolder) -> ListedJob | None:
    """Return the stored row of an ended job, or None if there is none or another version wrote it.

    An ended job does not change (see ``core.events``), so its row is not compared with its other files.
    """
    try:
        version, entry = _decoder.decode(folder.summary.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return entry if version == VERSION and entry.row.id == folder.id and not entry.active else None
