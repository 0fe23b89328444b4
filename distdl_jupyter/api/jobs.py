"""HTTP API for jobs: list, show, cancel, rerun and delete jobs, and return their results."""

from __future__ import annotations

import contextlib
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from distdl_jupyter.api.call import Context, checked_id, delete, get, job, post
from distdl_jupyter.core import tracking, user_settings
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.options import MOST_PRIORITY
from distdl_jupyter.core.series import Band, RankCurve
from distdl_jupyter.core.spec import JobEnvironment
from distdl_jupyter.core.state import State
from distdl_jupyter.jobs import client, job_queue
from distdl_jupyter.jobs.reader import JobReader, PageReader
from distdl_jupyter.views import card, job_page, job_table
from distdl_jupyter.views import resources as resources_view
from distdl_jupyter.views import stacks as stacks_view
from distdl_jupyter.views.card import FailureCard
from distdl_jupyter.views.job_page import CheckpointRow, ComparisonRow, JobCheck, JobDetail
from distdl_jupyter.views.job_table import JobRow
from distdl_jupyter.views.resources import Resources
from distdl_jupyter.views.stacks import JobStacks
from distdl_jupyter.views.steps import JobProfile, JobTime, job_profile, job_time

#: Maximum number of distinguishable curves in one figure.
MOST_COMPARED = 12


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs, newest first; the counts are of all jobs, ``total`` of those that match the query."""

    jobs: tuple[JobRow, ...]
    total: int
    active: int
    failed: int


_StateFilter = Literal[
    "", "active", "queued", "preparing", "starting", "running", "canceling", "completed", "failed", "canceled", "lost"
]


@get("/jobs")
def jobs(
    context: Context,
    *,
    state: _StateFilter = "",
    q: Annotated[str, Meta(description="text to find in name, id, cluster, backend or notebook")] = "",
    limit: Annotated[int, Meta(ge=1, le=1000, description="maximum number of rows")] = 200,
    offset: Annotated[int, Meta(ge=0, le=1_000_000, description="number of rows to skip")] = 0,
) -> JobList:
    """List the jobs, newest first."""

    def matches(row: JobRow) -> bool:
        text = " ".join((row.name, row.id, row.compute_target, row.backend, row.notebook)).lower()
        in_state = not State(row.state).ended if state == "active" else state in ("", row.state)
        return in_state and all(term in text for term in q.lower().split())

    rows = [entry.row for entry in context.listing.all()]
    matching = [row for row in rows if matches(row)]
    return JobList(
        jobs=tuple(matching[offset : offset + limit]),
        total=len(matching),
        active=sum(not State(row.state).ended for row in rows),
        failed=sum(row.state == State.FAILED.value for row in rows),
    )


def row_of(shown: client.Job) -> JobRow:
    """Return the row of a job as it is now."""
    reader = _read(shown)
    return job_table.listed(reader.folder, reader.view, reader.spec).row


def _read(shown: client.Job) -> JobReader:
    reader = JobReader(shown.folder, curves=True)
    reader.catch_up()
    return reader


@get("/jobs/{id}", refuses=(404,))
def show(reading: PageReader) -> JobDetail:
    """Return everything about a job that is not streamed."""
    return job_page.job_detail(
        reading.view,
        reading.spec,
        time.time(),
        environment=reading.folder.read_environment(),
        has_checkpoints=reading.has_checkpoints,
    )


@delete("/jobs/{id}", status=204, refuses=(404, 409, 507))
def remove(id_: str) -> None:
    """Delete an ended job with its log, values and outputs."""
    job(id_).remove()


@post("/jobs/{id}/cancel", status=202, refuses=(404, 409, 507))
def cancel(id_: str, *, now: bool = False) -> None:
    """Stop a job: INT, TERM, KILL with a grace period in between; with ``now``, KILL at once."""
    job(id_).cancel(now=now)


@post("/jobs/{id}/priority", status=202, refuses=(404, 409, 507))
def prioritize(id_: str, *, priority: Annotated[int, Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] | None = None) -> None:
    """Change the priority of a queued job; null moves it ahead of all queued jobs of its user."""
    job_queue.prioritize(checked_id(id_), priority)


@post("/jobs/{id}/move", status=201, action="execute", slow=True, refuses=(400, 404, 409, 424, 502, 507))
def move(id_: str, *, compute_target: str) -> JobRow:
    """Move a queued job to another cluster; it leaves its queue first, so it never runs twice."""
    return row_of(job(id_).move(compute_target))


@post("/jobs/{id}/rerun", status=201, action="execute", slow=True, refuses=(400, 404, 502, 507))
def rerun(id_: str) -> JobRow:
    """Start the same job again, with its original code and values."""
    return row_of(job(id_).rerun())


@post("/jobs/{id}/resume", status=201, action="execute", slow=True, refuses=(400, 404, 409, 424, 502, 507))
def resume(id_: str) -> JobRow:
    """Start a new job with the same code that continues from the checkpoints of this one."""
    return row_of(job(id_).resume())


@dataclass(frozen=True, slots=True)
class CheckpointTable:
    """The checkpoints of a job, the newest first, and the names of all metrics that they have."""

    metrics: tuple[str, ...]
    checkpoints: tuple[CheckpointRow, ...]


@get("/jobs/{id}/checkpoints", refuses=(404,))
def checkpoints_of_job(id_: str) -> CheckpointTable:
    """List the checkpoints of a job with the metrics at their steps, newest first."""
    known = job(id_).checkpoints()
    return CheckpointTable(tuple(job_page.checkpoint_metrics(known)), job_page.checkpoint_rows(known))


@post("/jobs/{id}/fork", status=201, action="execute", slow=True, refuses=(400, 404, 424, 502, 507))
def fork(
    id_: str, *, path: Annotated[str, Meta(description="as in the list of checkpoints; without it, the newest")] = ""
) -> JobRow:
    """Start a new job with the same code that continues from one checkpoint of this one."""
    return row_of(job(id_).fork(path=path or None))


@get("/jobs/{id}/environment", refuses=(404,))
def environment_of_job(id_: str) -> JobEnvironment:
    """Return Python and packages of rank 0, and the git state of the code with its uncommitted changes."""
    return job(id_).environment()


@get("/jobs/{id}/resources", refuses=(404,))
def resources(reading: PageReader) -> Resources:
    """Return the newest resource usage of each rank and machine, current warnings, and curves."""
    return resources_view.resources(reading.resources, running=reading.view.state is State.RUNNING)


@get("/jobs/{id}/stacks", refuses=(404,))
def stacks(
    id_: str,
    *,
    number: Annotated[int, Meta(ge=0, description="number of the stack traces; without it, the newest")] | None = None,
) -> JobStacks:
    """Return saved stack traces, by default the newest."""
    return stacks_view.stacks(job(id_).stacks(kept=True, number=number))


@post("/jobs/{id}/stacks", status=202, refuses=(404, 409))
def capture_stacks(id_: str) -> None:
    """Capture the stack traces of all ranks; the job's card has their number when they are saved."""
    job(id_).ask_stacks()


@get("/jobs/{id}/profile", refuses=(404,))
def profile(
    id_: str,
    *,
    number: Annotated[int, Meta(ge=0, description="number of the profile; without it, the newest")] | None = None,
) -> JobProfile:
    """Return a saved profile, by default the newest: the operators that take the most time, for each rank."""
    return job_profile(job(id_).profile(kept=True, number=number))


@post("/jobs/{id}/profile", status=202, refuses=(400, 404, 409, 507))
def record_profile(
    id_: str,
    *,
    steps: Annotated[int, Meta(ge=1, le=50)] = 5,
    ranks: Annotated[tuple[int, ...], Meta(description="ranks to record; null: all")] | None = None,
) -> None:
    """Record the next steps of ranks; the job's card has the number of the profile when it is saved."""
    job(id_).ask_profile(steps, ranks)


@get("/jobs/{id}/time", refuses=(404,))
def time_of_steps(
    id_: str, *, last: Annotated[int, Meta(ge=0, le=1000, description="number of newest records of each rank")] = 0
) -> JobTime:
    """Return the mean step time of each rank in parts, the rank that delays the others, and the newest steps."""
    return job_time(job(id_).time(), last)


class TrackerRow(tracking.TrackerRecord, frozen=True, kw_only=True):
    """Progress of one experiment tracker with a job.

    ``url`` is the page of the run; for a run that is kept on this machine ``command`` shows it, "" where there is none.
    """

    title: str
    command: str


@dataclass(frozen=True, slots=True)
class TrackerList:
    """The trackers that a job has."""

    trackers: tuple[TrackerRow, ...]


@get("/jobs/{id}/tracking", refuses=(404,))
def trackers(id_: str) -> TrackerList:
    """Return the progress of each tracker of a job, and the address of its run."""
    folder = job(id_).folder.path
    return TrackerList(
        tuple(
            TrackerRow(**msgspec.structs.asdict(record), title=record.title, command=_command(folder, record))
            for record in tracking.of_job(folder)
        )
    )


def _command(folder: Path, record: tracking.TrackerRecord) -> str:
    """Return the command that shows a run that is stored on this machine, "" if there is none."""
    if record.url or not record.run:
        return ""
    if record.tracker == "tensorboard":
        # The whole job folder if ranks have written their own event files.
        has_own = next(folder.glob("outputs/**/events.out.tfevents.*"), None) is not None
        logs = folder if has_own else tracking.folder_of(folder, "tensorboard")
        return f"tensorboard --logdir {shlex.quote(str(logs))}"
    if record.tracker == "mlflow":
        from distdl_jupyter.tracking.trackers import mlflow_address

        with contextlib.suppress(DistDLError):
            return f"mlflow ui --backend-store-uri {shlex.quote(mlflow_address(user_settings.SETTINGS.read()))}"
    return ""


@get("/jobs/{id}/check", refuses=(404,))
def check(id_: str) -> JobCheck:
    """Return the progress and the findings of a check."""
    from distdl_jupyter.studies import correctness

    return correctness.check_status(job(id_))


@post("/jobs/{id}/check", status=201, action="execute", slow=True, refuses=(400, 404, 424, 502, 507))
def start_check(id_: str) -> JobRow:
    """Check the code of a job with short runs on several ranks and on one process."""
    from distdl_jupyter.studies import correctness

    first = correctness.start(job(id_))
    correctness.finish_later(first)
    return row_of(first)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a job; ``ok`` is None while it is active. ``values`` are short forms of what each rank returned."""

    state: State
    ok: bool | None
    values: tuple[str, ...]
    failure: FailureCard | None


@get("/jobs/{id}/result", refuses=(404,))
def result(reading: PageReader) -> Result:
    """Return the value of each rank in short form, or the failure."""
    view = reading.view
    return Result(
        state=view.state,
        ok=view.state is State.COMPLETED if view.state.ended else None,
        values=tuple(rank.result or "" for rank in view.ranks) if view.state is State.COMPLETED else (),
        failure=card.failure_card(view),
    )


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """One metric of all ranks."""

    name: str
    ranks: list[RankCurve]


@dataclass(frozen=True, slots=True)
class MetricsList:
    """Metrics in the order of their first report."""

    metrics: tuple[MetricSeries, ...]


@get("/jobs/{id}/metrics", refuses=(404,))
def metrics(
    reading: PageReader,
    *,
    name: Annotated[str, Meta(description="a metric; without it, all metrics")] = "",
    points: Annotated[int, Meta(ge=3, le=1000, description="maximum number of points per rank")] = 1000,
) -> MetricsList:
    """Return the series of each rank, reduced to a number of points; short series are exact."""
    names = [known for known in reading.book.names if not name or known == name]
    return MetricsList(tuple(MetricSeries(known, reading.book.lines(known, points)) for known in names))


@get("/queue")
def queue() -> job_queue.Queue:
    """Return the jobs that hold resources of this machine, and the queued jobs in order."""
    return job_queue.queue()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several jobs: their curves of one metric, and the options that differ."""

    metric: str
    bands: tuple[Band, ...]
    jobs: tuple[JobRow, ...]
    metrics: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]


@get("/compare", refuses=(404,))
def compare_jobs(
    *,
    ids: Annotated[tuple[str, ...], Meta(description="ids of jobs, separated by commas")] = (),
    metric: Annotated[str, Meta(description="the metric to plot; without it, the metric of most jobs")] = "",
) -> Comparison:
    """Compare jobs: their curves of one metric, and the options that differ."""
    different = list(dict.fromkeys(ids))
    if not 1 <= len(different) <= MOST_COMPARED:
        raise InvalidSpec(f"ids must be 1 to {MOST_COMPARED} different jobs.", code="compare-ids-invalid", field="ids")
    readers = [_read(job(id_)) for id_ in different]
    names = job_page.metric_names(reader.view for reader in readers)
    metric_name = metric or job_table.default_metric(names)
    return Comparison(
        metric=metric_name,
        bands=tuple(reader.book.band(metric_name) for reader in readers),
        jobs=tuple(job_table.listed(reader.folder, reader.view, reader.spec).row for reader in readers),
        metrics=tuple(names),
        rows=job_page.differing_rows([(reader.spec, reader.folder.read_environment()) for reader in readers]),
    )
