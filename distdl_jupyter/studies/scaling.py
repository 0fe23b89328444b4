"""``scale(train, processes=[1, 2, 4])``: measures how a training function scales, in short runs.

Each run is a job whose spec names the study and its plan (``core.spec.Group``), with its measurements in
``steps.jsonl``. A study has no other files; ``distdl_jupyter.scaling(id)`` opens it again.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter import capture
from distdl_jupyter.core import registry, step_times
from distdl_jupyter.core.errors import (
    DistDLError,
    InvalidSpec,
    JobFailed,
    JobNotFound,
    JobNotRunning,
    JobStillRunning,
    explain,
)
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import plural, short_id
from distdl_jupyter.core.options import ALIASES, TOTAL_NAMES
from distdl_jupyter.core.spec import Group
from distdl_jupyter.core.step_times import TOO_FEW_STEPS, WARM_UP_STEPS, ScalingPoint, measure_run
from distdl_jupyter.core.store import JobFolder, JobStore, create_id
from distdl_jupyter.jobs import client, job_list, rerun, study_rows
from distdl_jupyter.node.processes import has_ended, make_mark
from distdl_jupyter.supervisor import control
from distdl_jupyter.views.scaling import ScalingView, StudyInfo

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.step_times import Straggler
    from distdl_jupyter.jobs.client import Job
    from distdl_jupyter.views.job_table import JobRow, ListedJob

KIND = "scale"
#: Options of a job that are set by arguments of ``scale``, and these arguments.
_REPLACEMENTS = {"process_count_per_node": "processes", "node_count": "nodes", "distributed_backend": "backends"}
#: Seconds between two polls of a run.
_POLL_SECONDS = 0.2
#: Relative error of the rate below which a run is long enough.
_MAX_ERROR = 0.02
#: Maximum duration of a measurement as a multiple of ``seconds``.
_MAX_FACTOR = 3.0
#: Seconds that a run may last beyond its measurement if its driver has exited.
_SPARE_SECONDS = 600.0


def scale(
    function: Callable[..., Any],
    processes: Sequence[int] = (1, 2, 4),
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    nodes: int | Sequence[int] = 1,
    backends: str | Sequence[str] = registry.DEFAULT_BACKEND,
    seconds: float = 10.0,
    **options: Any,
) -> ScalingStudy:
    """Run a training function with several numbers of processes, one after another, and measure how it scales.

    Each number of processes is measured in one run of about ``seconds`` seconds of steps, without the first ones,
    which is then canceled unless the function has returned. The error of its rate is estimated from parts of the run.
    ``nodes`` is a number of nodes, or one for each item of ``processes``. Batch sizes are those of the function: the
    same on each process (weak scaling), or divided by the number of ranks (strong scaling). All runs have the same
    number of threads per process: the number of cores per process in the largest run. ``options`` are those of
    ``submit``.

    ``.table`` is a DataFrame, ``.figure`` a plotly figure, ``str()`` the sentences. The study is stored with its jobs:
    ``distdl_jupyter.scaling(id)`` opens it, ``.resume()`` continues an interrupted one.

    Raises InvalidSpec if the function does not train, JobFailed if it fails, and the errors of ``submit``.
    """
    draft = capture.capture_function(function, tuple(args), dict(kwargs or {}))
    return scale_draft(draft, processes, nodes=nodes, backends=backends, seconds=seconds, **options)


def scale_draft(
    draft: CapturedCode,
    processes: Sequence[int],
    *,
    nodes: int | Sequence[int] = 1,
    backends: str | Sequence[str] = registry.DEFAULT_BACKEND,
    seconds: float = 10.0,
    **options: Any,
) -> ScalingStudy:
    """Run ``scale`` for captured code."""
    counts, node_counts = _to_list(processes), _to_list(nodes)
    node_counts = node_counts if isinstance(nodes, Iterable) else node_counts * len(counts)
    labels = backends.split(",") if isinstance(backends, str) else _to_list(backends)
    _check_arguments(counts, node_counts, seconds, options)
    labels = [registry.resolve_label(str(label)) for label in dict.fromkeys(labels)] or [registry.DEFAULT_BACKEND]
    name = str(options.pop("name", draft.name))
    plan = {"processes": counts, "nodes": node_counts, "backends": labels, "seconds": seconds, "driver": make_mark()}
    group = Group(kind=KIND, id=create_id(), name=name, size=len(labels) * len(counts), plan=plan)
    options.setdefault("max_run_duration_seconds", _MAX_FACTOR * seconds + _SPARE_SECONDS)
    return _measure_missing(group, (), lambda **run_options: client.launch(draft, group, **run_options, **options))


def _list_missing(group: Group, complete: Collection[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """Yield the options of each missing run; ``complete`` lists the backend and number of processes of the others."""
    plan = group.plan
    for backend in plan["backends"]:
        for count, nodes in zip(plan["processes"], plan["nodes"], strict=True):
            if (backend, count) not in complete:
                yield {
                    "node_count": nodes,
                    "process_count_per_node": count // nodes,
                    "distributed_backend": backend,
                    "name": f"{group.name} on {count}",
                }


def _measure_missing(group: Group, complete: Collection[tuple[str, int]], start: Callable[..., Job]) -> ScalingStudy:
    """Start and measure the missing runs of a study, and return the study."""
    state, problem = State.CANCELED, ""
    try:
        for run_options in _list_missing(group, complete):
            count = run_options["node_count"] * run_options["process_count_per_node"]
            run = _measure(start(**run_options), group.plan["seconds"])
            rate = f"{run.rate:.4g} {'samples' if run.counts_samples else 'batches'}/s"
            sys.stderr.write(f"{run_options['distributed_backend']}, {plural(count, 'process')}: {rate}\n")
            sys.stderr.flush()
        state = State.COMPLETED
    except BaseException as error:  # an interrupt may have arrived while a run was started
        _end_runs(group.id)
        if isinstance(error, Exception):
            state, problem = State.FAILED, _summarize(error)
        if isinstance(error, KeyboardInterrupt):
            explain(error, _describe_interrupt(group.id))
        raise
    finally:
        study_rows.notify_end(group.id, state, problem)
    return scaling(group.id)


def scale_with_options(
    draft: CapturedCode, processes: Sequence[int], options: Mapping[str, Any], *, seconds: float = 10.0
) -> ScalingStudy:
    """Run ``scale`` with the options of a magic or command line, which may list nodes per run and backends."""
    job_options = dict(options)
    nodes, backends = job_options.pop("node_count", 1), job_options.pop("distributed_backend", registry.DEFAULT_BACKEND)
    return scale_draft(draft, processes, nodes=nodes, backends=backends, seconds=seconds, **job_options)


def _describe_interrupt(id_: str) -> str:
    """Return the message for an interrupted study whose runs were stopped."""
    try:
        info = scaling(id_).info
    except JobNotFound:
        return client.describe_not_started()
    measured = f"{info.done} of {info.size} numbers of processes" if info else "nothing"
    return (
        f"Interrupted with {measured} measured; no run is still running. To measure the rest, run "
        f"distdl_jupyter.scaling({short_id(id_)!r}).resume()"
    )


def parse_counts(text: str) -> list[int]:
    """Parse numbers of processes such as ``1,2,4``. Raises InvalidSpec."""
    try:
        return [int(number) for number in text.replace(" ", ",").split(",") if number]
    except ValueError:
        raise InvalidSpec(
            f"{text!r} is not a list of numbers of processes.",
            code="scale-processes-unreadable",
            field="processes",
            hint="Separate them with commas, for example 1,2,4.",
        ) from None


def _to_list(value: Any) -> list[Any]:
    return [*value] if isinstance(value, Iterable) else [value]


def _check_arguments(counts: Sequence[Any], nodes: Sequence[Any], seconds: Any, options: Mapping[str, Any]) -> None:
    for name in options:
        if (primary := ALIASES.get(name, name)) in (*TOTAL_NAMES, *_REPLACEMENTS):
            raise InvalidSpec(
                f"{name} is not an option of a scaling study.",
                code="scale-option-unsupported",
                field=name,
                hint=f"Use {_REPLACEMENTS.get(primary, 'processes')}= instead.",
            )
    if not counts or any(type(value) is not int or value < 1 for value in counts) or len(set(counts)) < len(counts):
        raise InvalidSpec(
            f"processes must be a list of different integers of at least 1, not {counts}.",
            code="scale-processes-invalid",
            field="processes",
            hint="Use a list such as processes=[1, 2, 4].",
        )
    if len(nodes) != len(counts) or any(
        type(value) is not int or value < 1 or count % value for value, count in zip(nodes, counts, strict=False)
    ):
        raise InvalidSpec(
            f"{counts} processes cannot be divided evenly among {[*nodes]} nodes.",
            code="scale-not-divisible",
            field="nodes",
            hint="Use one number of nodes, or one per number of processes.",
        )
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise InvalidSpec(
            "seconds must be a number above 0.",
            code="scale-seconds-invalid",
            field="seconds",
            hint="Use a duration such as seconds=10.",
        )


def _summarize(error: Exception) -> str:
    if isinstance(error, DistDLError):
        return " ".join(filter(None, (error.message.partition("\n")[0], error.hint)))
    return f"{type(error).__name__}: {error}"


def _end_runs(study: str) -> None:
    """Stop the running jobs of a study, and remove a run whose supervisor was never started."""
    for row in client.list_rows():
        if row.group is not None and row.group.id == study:
            job = client.attach(row.id)
            with contextlib.suppress(JobNotRunning):
                job.cancel()
            if job.wait().state is State.LOST and job.view().started is None:
                job.remove()


def _measure(job: Job, seconds: float) -> ScalingPoint:
    """Follow a job until it is measured, and stop it. Raises JobFailed, InvalidSpec."""
    reader = step_times.StepTimesReader(job.folder.steps)
    try:
        while not (ended := job.state.ended):
            if reader.read() and _is_enough(measure_run(reader.get_times()), seconds):
                break
            time.sleep(_POLL_SECONDS)
    finally:  # even after an interrupt
        if not job.state.ended:
            with contextlib.suppress(JobNotRunning):
                job.cancel()
            job.wait()
    if ended and job.state is not State.COMPLETED:
        job.result()
        raise JobFailed(job.view().reason, code=job.view().reason_code or "scaling-run-failed")
    reader.read()
    times = reader.get_times()
    result = measure_run(times) if times.rows else None
    if result is None:
        raise InvalidSpec(
            f"{job.name} {TOO_FEW_STEPS}",
            code="scaling-too-few-steps",
            field="function",
            hint="Use longer training code. Each run is stopped as soon as it has been measured.",
        )
    return result


def _is_enough(result: ScalingPoint | None, seconds: float) -> bool:
    if result is None:
        return False
    return result.seconds >= seconds and (
        result.error <= _MAX_ERROR * result.rate or result.seconds >= _MAX_FACTOR * seconds
    )


# reading ---------------------------------------------------------------------------------------


class ScalingStudy(ScalingView):
    """A scaling study, read from the folders of its runs. Any process may open it, even during the measurements."""

    def resume(self) -> ScalingStudy:
        """Resume an interrupted study: keep its measurements and start the missing runs.

        The code is that of the study's runs, so it need not be defined here. Secret environment variables are read from
        the environment of this process. Raises JobStillRunning, JobNotRunning if nothing is missing, JobNotFound if its
        runs were deleted, InvalidSpec if a secret variable is missing, and the errors of ``scale``.
        """
        _, folders, _ = _read_unfinished(self.id)
        with control.exclusive_lock(folders[0].control):  # so that only one of two processes resumes it
            spec, folders, complete = _read_unfinished(self.id)
            assert spec.group is not None
            group = replace(spec.group, plan={**spec.group.plan, "driver": make_mark()})

            def start(**run_options: Any) -> Job:
                backend = run_options["distributed_backend"]
                matches = [folder for folder in folders if folder.read_spec().distributed_backend == backend]
                job = client.Job((matches or folders)[-1])
                return client.relaunch(job, group=group, **{**job.spec.backend_options, **run_options})

            first = [start(**next(_list_missing(group, complete)))]
        return _measure_missing(group, complete, lambda **run_options: first.pop() if first else start(**run_options))


@dataclass(frozen=True, slots=True)
class _StudyRun:
    """One job of a study; ``run`` is None until it has made enough steps."""

    row: JobRow
    run: ScalingPoint | None
    straggler: Straggler | None
    #: Whether it was measured completely.
    is_whole: bool

    @property
    def key(self) -> tuple[str, int, int]:
        """Backend, processes and nodes."""
        return self.row.backend, self.row.node_count * self.row.process_count_per_node, self.row.node_count


def scaling(id: str = "") -> ScalingStudy:  # noqa: A002 - like all calls that take an id
    """Return the scaling study with this id or the last part of it, by default the newest. Raises JobNotFound."""
    listed = _list_jobs(id)
    spec = JobStore().get_folder(listed[0].row.id).read_spec()
    assert spec.group is not None
    runs = _read_runs(listed, spec.group)
    return ScalingStudy(spec.group.name, _make_points(runs), _make_info(spec, runs))


def _list_jobs(id_: str) -> list[ListedJob]:
    """Return the jobs of a study, the oldest first. Raises JobNotFound."""
    listed = [job for job in job_list.get_index().read_all() if job.row.group and job.row.group.kind == KIND]
    ids = list(dict.fromkeys(job.row.group.id for job in listed if job.row.group))
    matches = [study for study in ids if not id_ or study == id_ or short_id(study) == id_]
    if not matches:
        raise JobNotFound(
            f"Unknown scaling study {id_}." if id_ else "There are no scaling studies yet.",
            code="scaling-unknown",
            hint="Start one with: scale(train, processes=[1, 2, 4])",
        )
    return [job for job in reversed(listed) if job.row.group and job.row.group.id == matches[0]]


def _read_runs(listed: Sequence[ListedJob], group: Group) -> list[_StudyRun]:
    store, runs = JobStore(), []
    for job in listed:
        folder = store.get_folder(job.row.id)
        run, straggler = _read_steps(folder) if job.active else _read_ended_steps(str(folder.path))
        is_whole = run is not None and run.is_complete(State(job.row.state), group.plan.get("seconds", 0.0))
        runs.append(_StudyRun(job.row, run, straggler, is_whole))
    return runs


@functools.lru_cache(maxsize=512)
def _read_ended_steps(path: str) -> tuple[ScalingPoint | None, Straggler | None]:
    """Return the measurements of an ended job, which are final."""
    return _read_steps(JobFolder(Path(path)))


def _read_steps(folder: JobFolder) -> tuple[ScalingPoint | None, Straggler | None]:
    times = step_times.read(folder.steps)
    run = measure_run(times) if times.rows else None
    if run is None:
        return None, None
    measured_rows = [row for row in times.rows if row.attempt == times.rows[-1].attempt and row.step >= WARM_UP_STEPS]
    return run, step_times.StepTimes(measured_rows).straggler


def _make_points(runs: Sequence[_StudyRun]) -> list[ScalingPoint]:
    """Return a point for each measured backend and number of processes, in the order of the runs."""
    points: dict[tuple[str, int, int], ScalingPoint] = {}
    # An incomplete run counts only if its point has no complete run; of several, the newest counts.
    for job in sorted(runs, key=lambda job: job.is_whole):
        if job.run is not None:
            backend, processes, nodes = job.key
            points[job.key] = replace(job.run, backend=backend, processes=processes, nodes=nodes)
    return [points[key] for key in dict.fromkeys(job.key for job in runs) if key in points]


def _find_complete(runs: Sequence[_StudyRun]) -> set[tuple[str, int]]:
    """Return backend and number of processes of the points that need no more runs."""
    return {job.key[:2] for job in runs if job.is_whole}


def _make_info(spec: JobSpec, runs: Sequence[_StudyRun]) -> StudyInfo:
    group = spec.group
    assert group is not None
    rows, done = [job.row for job in runs], len(_find_complete(runs))
    state, problem = study_rows.get_scaling_state(rows[-1], time.time(), complete=done == group.size)
    return StudyInfo(
        id=group.id,
        state=state,
        problem=problem,
        target=spec.compute_target,
        done=done,
        size=group.size,
        runs=len(runs),
        seconds=(rows[-1].ended or time.time()) - rows[0].created,
        stragglers={job.key[:2]: job.straggler for job in runs if job.straggler is not None},
    )


def _read_unfinished(id_: str) -> tuple[JobSpec, list[JobFolder], set[tuple[str, int]]]:
    """Return a study that can be resumed: its newest spec, the folders of its runs, and its complete points.

    Raises JobNotFound, JobStillRunning, JobNotRunning if no run is missing, InvalidSpec if a secret variable is
    missing.
    """
    listed = _list_jobs(id_)
    folders = [JobStore().get_folder(job.row.id) for job in listed]
    spec = folders[-1].read_spec()
    group = spec.group
    assert group is not None
    complete = _find_complete(_read_runs(listed, group))
    if len(complete) >= group.size:
        raise JobNotRunning(
            f"All {group.size} points of scaling study {group.id} have been measured.", code="scaling-done"
        )
    state, _ = study_rows.get_scaling_state(listed[-1].row, time.time(), complete=False)
    driver = str(group.plan.get("driver", ""))
    if listed[-1].active or (state is State.RUNNING and driver != make_mark() and not has_ended(driver)):
        raise JobStillRunning(
            f"Scaling study {group.id} is still running.",
            code="scaling-still-running",
            hint="Wait for it to finish. If its process was killed, try again in a few seconds.",
        )
    rerun.find_secrets(spec)
    return spec, folders, complete
