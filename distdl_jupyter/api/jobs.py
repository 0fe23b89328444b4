"""HTTP API for jobs and sweeps: list, show, cancel, rerun and delete them, and return their results and files."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from distdl_jupyter.api.endpoint import Download, ServerContext, delete, get, post
from distdl_jupyter.core.errors import InvalidSpec, JobNotFound
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import clock, printable
from distdl_jupyter.core.logfile import LogLine
from distdl_jupyter.core.options import MAX_PRIORITY, MAX_PROCESSES
from distdl_jupyter.core.series import Band, RankCurve
from distdl_jupyter.core.spec import JobEnvironment
from distdl_jupyter.core.tracking import TrackerRecord
from distdl_jupyter.jobs import client, job_queue, results
from distdl_jupyter.jobs.reader import JobReader, PageReader
from distdl_jupyter.jobs.results import OutputFile
from distdl_jupyter.studies import sweep_study
from distdl_jupyter.views import card, job_page, job_table
from distdl_jupyter.views import resources as resources_view
from distdl_jupyter.views import stacks as stacks_view
from distdl_jupyter.views.card import FailureCard
from distdl_jupyter.views.job_page import CheckpointRow, ComparisonRow, JobCheck, JobDetail, LogChanges
from distdl_jupyter.views.job_table import JobRow
from distdl_jupyter.views.resources import Resources
from distdl_jupyter.views.stacks import JobStacks
from distdl_jupyter.views.steps import JobProfile, JobTime, make_job_profile, make_job_time
from distdl_jupyter.views.sweep import SweepPanel

if TYPE_CHECKING:
    from distdl_jupyter.studies.sweeps import Sweep

#: Maximum number of jobs in one comparison, because more curves in a figure cannot be distinguished.
MAX_COMPARED_JOBS = 12
#: Number of bytes of a file that are read at once.
_CHUNK_BYTES = 1 << 20
#: Number of log lines that are formatted at once.
_CHUNK_LINES = 1000
StateFilter = Literal[
    "", "active", "queued", "preparing", "starting", "running", "canceling", "completed", "failed", "canceled", "lost"
]
#: Selects one of the saved stack traces or profiles of a job.
RecordNumber = Annotated[int, Meta(ge=0, description="number in the job's card (default: the newest)")]


@get("/jobs")
def list_jobs(
    context: ServerContext, *, state: StateFilter = "", limit: Annotated[int, Meta(ge=1, le=100_000)] = 200
) -> list[JobRow]:
    """List the jobs in a state, newest first."""
    states = [item for item in State if state in ("", item.value) or (state == "active" and not item.ended)]
    return [entry.row for entry in context.job_index.read_all() if entry.row.state in states][:limit]


def read_row(job: client.Job) -> JobRow:
    """Return the current row of a job."""
    return job_table.make_entry(job.folder, job.view(), job.spec).row


@get("/jobs/{id}")
def show(reader: PageReader) -> JobDetail:
    """Return everything about a job that is not streamed."""
    view, spec, environment = reader.view, reader.spec, reader.folder.read_environment()
    has_checkpoints = reader.has_checkpoints
    return job_page.make_detail(view, spec, time.time(), environment=environment, has_checkpoints=has_checkpoints)


@delete("/jobs/{id}", status=204)
def remove(id_: str) -> None:
    """Delete an ended job with its log, values and outputs."""
    client.attach(id_).remove()


@post("/jobs/{id}/cancel", status=202)
def cancel(id_: str, *, now: bool = False) -> None:
    """Stop a job: send INT, TERM and KILL, with a grace period in between; with ``now``, send KILL immediately."""
    client.attach(id_).cancel(now=now)


@post("/jobs/{id}/priority", status=202)
def prioritize(id_: str, *, priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None) -> None:
    """Change the priority of a queued job; null moves it ahead of all queued jobs of its user."""
    job_queue.prioritize(id_, priority)


@post("/jobs/{id}/move", status=201, action="execute", slow=True)
def move(id_: str, *, compute_target: str) -> JobRow:
    """Move a queued job to another cluster. It is removed from its queue first, so it never runs twice."""
    return read_row(client.attach(id_).move(compute_target))


@post("/jobs/{id}/rerun", status=201, action="execute", slow=True)
def rerun(id_: str) -> JobRow:
    """Start the same job again, with its original code and values."""
    return read_row(client.attach(id_).rerun())


@post("/jobs/{id}/resume", status=201, action="execute", slow=True)
def resume(id_: str) -> JobRow:
    """Start a new job with the same code that continues from the checkpoints of this one."""
    return read_row(client.attach(id_).resume())


@get("/jobs/{id}/checkpoints")
def list_checkpoints(id_: str) -> tuple[CheckpointRow, ...]:
    """List the checkpoints of a job with the metrics at their steps, newest first."""
    return job_page.make_checkpoint_rows(client.attach(id_).checkpoints())


@post("/jobs/{id}/fork", status=201, action="execute", slow=True)
def fork(id_: str, *, path: str = "") -> JobRow:
    """Start a new job with the same code that continues from one checkpoint of this one, by default the newest."""
    return read_row(client.attach(id_).fork(path=path or None))


@get("/jobs/{id}/environment")
def show_environment(id_: str) -> JobEnvironment:
    """Return the Python version and packages of rank 0, and the git state of the code with uncommitted changes."""
    return client.attach(id_).environment()


@get("/jobs/{id}/resources")
def show_resources(reader: PageReader) -> Resources:
    """Return the newest resource usage of each rank and machine, the current warnings, and curves."""
    return resources_view.make_resources(reader.resources, running=reader.view.state is State.RUNNING)


@get("/jobs/{id}/stacks")
def show_stacks(id_: str, *, number: RecordNumber | None = None) -> JobStacks:
    """Return saved stack traces, by default the newest."""
    return stacks_view.make_job_stacks(client.attach(id_).stacks(recorded=True, number=number))


@post("/jobs/{id}/stacks", status=202)
def capture_stacks(id_: str) -> None:
    """Capture the stack traces of all ranks; the job's card has their number when they are saved."""
    client.attach(id_).ask_stacks()


@get("/jobs/{id}/profile")
def show_profile(id_: str, *, number: RecordNumber | None = None) -> JobProfile:
    """Return a saved profile, by default the newest: the operators that take the most time, for each rank."""
    return make_job_profile(client.attach(id_).profile(recorded=True, number=number))


@post("/jobs/{id}/profile", status=202)
def record_profile(
    id_: str,
    *,
    steps: Annotated[int, Meta(ge=1, le=50)] = 5,
    ranks: Annotated[tuple[int, ...], Meta(description="ranks to record; null: all")] | None = None,
) -> None:
    """Record the next steps of ranks; the job's card has the number of the profile when it is saved."""
    client.attach(id_).ask_profile(steps, ranks)


@get("/jobs/{id}/time")
def show_step_times(id_: str, *, last: Annotated[int, Meta(ge=0, le=1000)] = 0) -> JobTime:
    """Return the mean step time of each rank, split into parts, the rank that delays the others, and the last steps."""
    return make_job_time(client.attach(id_).time(), last)


@get("/jobs/{id}/tracking")
def list_trackers(id_: str) -> list[TrackerRecord]:
    """Return the progress of each experiment tracker of a job, and the URL of its run."""
    return client.attach(id_).tracking()


@get("/jobs/{id}/check")
def show_check(id_: str) -> JobCheck:
    """Return the progress and the findings of a check."""
    from distdl_jupyter.studies import correctness  # captures code, which a server needs only here

    return correctness.get_check_status(client.attach(id_))


@post("/jobs/{id}/check", status=201, action="execute", slow=True)
def start_check(id_: str) -> JobRow:
    """Check the code of a job with short runs on several ranks and on one process."""
    from distdl_jupyter.studies import correctness

    first = correctness.start(client.attach(id_))
    correctness.finish_later(first)
    return read_row(first)


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job; ``ok`` is None while it is active. ``values`` are the ranks' values in short form."""

    state: State
    ok: bool | None
    values: tuple[str, ...]
    failure: FailureCard | None


@get("/jobs/{id}/result")
def show_result(reader: PageReader) -> JobResult:
    """Return the value of each rank in short form, or the failure."""
    view = reader.view
    ok = view.state is State.COMPLETED if view.state.ended else None
    values = tuple(rank.result or "" for rank in view.ranks) if ok else ()
    return JobResult(view.state, ok, values, card.make_failure_card(view))


@get("/jobs/{id}/metrics")
def show_metrics(
    reader: PageReader,
    *,
    name: Annotated[str, Meta(description="a metric (default: all metrics)")] = "",
    points: Annotated[int, Meta(ge=3, le=1000, description="maximum number of points per rank")] = 1000,
) -> dict[str, list[RankCurve]]:
    """Return the series of each rank by metric, reduced to a number of points; short series are exact."""
    return {metric: curve.get_curves(points) for metric, curve in reader.curves.metrics.items() if name in ("", metric)}


@get("/jobs/{id}/log")
def show_log(
    reader: PageReader,
    *,
    first: Annotated[int, Meta(ge=0, description="number of the first row")] = 0,
    before: Annotated[int, Meta(ge=0, description="only rows before the row with this number")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=10_000, description="maximum number of rows")] = 1000,
    rank: Annotated[int, Meta(ge=0, description="only rows of this rank")] | None = None,
    format: Literal["json", "text"] = "json",  # noqa: A002 - the name of the query parameter
) -> LogChanges | Download:
    """Return rows of the log, or the whole log as a file (``format=text``).

    The rows are the last ``limit`` rows between ``first`` (inclusive) and ``before`` (exclusive).
    """
    if format == "text":
        name = f"{reader.folder.id}{'' if rank is None else f'-rank-{rank}'}.log"
        with_rank = reader.view.process_count > 1 and rank is None
        text = _format_log(client.Job(reader.folder).logs(rank), with_rank=with_rank)
        return Download(text, "text/plain; charset=utf-8", name)
    end = reader.log.next_number if before is None else before
    if rank is None:
        rows = [row for row in reader.window.read_rows_before(end, limit) if row.n >= first]
    else:
        rows = [row for row in reader.log.get_rows(first, end) if rank in row.lines][-limit:]
    return job_page.make_log_changes(reader.view, reader.log, rows)


def _format_log(lines: Iterator[LogLine], *, with_rank: bool) -> Generator[bytes, None, None]:
    """Yield the lines of a log with their time and rank, many lines at once."""

    def format_line(line: LogLine) -> str:
        rank = ("" if line.rank is None else f"[{line.rank}]").rjust(4) + " " if with_rank else ""
        return f"{clock(line.time)} {rank}{printable(line.text, _CHUNK_BYTES)}\n"

    while batch := list(itertools.islice(lines, _CHUNK_LINES)):
        yield "".join(map(format_line, batch)).encode("utf-8", "replace")


@get("/jobs/{id}/outputs")
def list_outputs(id_: str) -> list[OutputFile]:
    """List the files in the job's output folder, sorted by path."""
    return results.list_output_files(client.attach(id_).folder.outputs)


@get("/jobs/{id}/outputs/{path}")
def download_output(id_: str, path: str) -> Download:
    """Download one file from the job's output folder."""
    file = results.find_output_file(client.attach(id_).folder.outputs, path)
    if file is None:
        message = f"Job {id_} has no such output file."
        raise JobNotFound(message, code="output-unknown", hint="Reload the list of outputs.")
    return _create_download(file, Path(path).name)


def _create_download(path: Path, name: str) -> Download:
    """Return a download of a file; a file that is still growing is sent up to its current size."""
    size = path.stat().st_size

    def read_chunks() -> Generator[bytes, None, None]:
        with path.open("rb") as file:
            remaining = size
            while data := file.read(min(_CHUNK_BYTES, remaining)):
                remaining -= len(data)
                yield data

    return Download(read_chunks(), name=name, size=size)


@get("/jobs/{id}/profile/{number}/trace")
def download_trace(id_: str, number: str, *, rank: Annotated[int, Meta(ge=0)] = 0) -> Download:
    """Download the Chrome trace of one rank: gzipped JSON that https://ui.perfetto.dev can open."""
    path = client.attach(id_).profile(recorded=True, number=int(number)).traces.get(rank)
    if path is None:
        hint = "The job's card lists its profiles by number."
        raise JobNotFound(f"Job {id_} has no such trace.", code="trace-unknown", hint=hint)
    return _create_download(path, f"{id_}-profile-{number}-rank-{rank}.json.gz")


@get("/jobs/{id}/pictures/{number}")
def show_picture(id_: str, number: str) -> Download:
    """Return a picture by its number, as PNG or JPEG."""
    content = client.attach(id_).folder.read_picture(int(number))
    if content is None:
        hint = "The job's card lists its images by number."
        raise JobNotFound(f"Job {id_} has no such image.", code="picture-unknown", hint=hint)
    data, picture_format = content
    chunks, cache_control = (chunk for chunk in (data,)), "private, max-age=86400, immutable"
    return Download(chunks, f"image/{picture_format}", size=len(data), cache_control=cache_control)


@get("/queue")
def show_queue() -> job_queue.Queue:
    """Return the jobs that hold resources of this machine, and the queued jobs in their order."""
    return job_queue.queue()


@dataclass(frozen=True, slots=True)
class JobComparison:
    """Several jobs: their curves of one metric, and the options that differ."""

    metric: str
    bands: tuple[Band, ...]
    jobs: tuple[JobRow, ...]
    metrics: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]


@get("/compare")
def compare_jobs(
    *,
    ids: Annotated[tuple[str, ...], Meta(description="ids of jobs, separated by commas")] = (),
    metric: Annotated[str, Meta(description="the metric to plot (default: the one that most jobs report)")] = "",
) -> JobComparison:
    """Compare jobs: their curves of one metric, and the options that differ."""
    if not 1 <= len({*ids}) <= MAX_COMPARED_JOBS:
        message = f"ids must be 1 to {MAX_COMPARED_JOBS} different jobs."
        raise InvalidSpec(message, code="compare-ids-invalid", field="ids")
    readers = [JobReader(client.attach(id_).folder, curves=True) for id_ in dict.fromkeys(ids)]
    names = job_page.list_metric_names(reader.catch_up() for reader in readers)
    metric = metric or job_table.choose_metric(names)
    return JobComparison(
        metric=metric,
        bands=tuple(reader.curves.get(metric).get_band() for reader in readers),
        jobs=tuple(job_table.make_entry(reader.folder, reader.view, reader.spec).row for reader in readers),
        metrics=tuple(names),
        rows=job_page.compare_specs([(reader.spec, reader.folder.read_environment()) for reader in readers]),
    )


def find_sweep(id_: str) -> Sweep:
    """Return the handle of the sweep with this full id. Raises JobNotFound."""
    from distdl_jupyter.studies.sweeps import Sweep  # captures code, which a server needs only here

    return Sweep(sweep_study.find_id(id_))


@get("/sweeps/{id}")
def show_sweep(id_: str) -> SweepPanel:
    """Return the trials of a sweep so far with their parameters, and the best trial."""
    return find_sweep(id_).panel


@delete("/sweeps/{id}", status=204, slow=True)
def remove_sweep(id_: str) -> None:
    """Delete an ended sweep with its trials, their logs and outputs."""
    find_sweep(id_).remove()


@post("/sweeps/{id}/stop", status=202, slow=True)
def stop_sweep(id_: str) -> SweepPanel:
    """Cancel the running trials and do not start others."""
    return find_sweep(id_).stop().panel


@post("/sweeps/{id}/resume", status=201, action="execute", slow=True)
def resume_sweep(id_: str) -> SweepPanel:
    """Resume a sweep that was stopped, failed or killed."""
    return find_sweep(id_).resume().panel


@post("/sweeps/{id}/best", status=201, action="execute", slow=True)
def run_best(id_: str, *, processes: Annotated[int, Meta(ge=1, le=MAX_PROCESSES)]) -> JobRow:
    """Start a job with the best values and the given number of processes on one node."""
    return read_row(find_sweep(id_).best.run(process_count_per_node=processes))
