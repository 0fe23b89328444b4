"""``scale(train, processes=[1, 2, 4])``: short runs of a training function, and how they scale.

``distdl_jupyter.scaling(id)`` opens a study again.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distdl_jupyter import capture
from distdl_jupyter.core import registry
from distdl_jupyter.core.aliases import ALIASES, TOTALS
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, JobFailed, JobNotFound, JobNotRunning, explain
from distdl_jupyter.core.humanize import plural, short_id
from distdl_jupyter.core.scaling import Run, enough, measured, too_few
from distdl_jupyter.core.spec import Group
from distdl_jupyter.core.state import State
from distdl_jupyter.core.step_times import StepTimesReader
from distdl_jupyter.core.store import new_id
from distdl_jupyter.jobs import client, study_rows
from distdl_jupyter.node.processes import mark
from distdl_jupyter.studies import scaling_study
from distdl_jupyter.supervisor import control

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.jobs.client import Job
    from distdl_jupyter.views.scaling import ScalingShown

#: Options of one job, and what stands for them here.
_INSTEAD = {"process_count_per_node": "processes", "node_count": "nodes", "distributed_backend": "backends"}
#: Seconds between two looks at a run.
_LOOK = 0.2
#: A run is long enough when the error of its rate is below this share, or after so many times ``seconds``.
_PRECISE, _AT_MOST = 0.02, 3.0
#: Seconds that a run may last beside those in which it is measured. Its own limit, should nobody be left to end it.
_SPARE = 600.0


def scaling(id: str = "") -> ScalingShown:  # noqa: A002 - as all calls that take an id
    """Return the scaling study with this id or its last part, the newest without one. Raises JobNotFound."""
    return scaling_study.find(id)


def scale(
    function: Callable[..., Any],
    processes: Sequence[int] = (1, 2, 4),
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    nodes: int | Sequence[int] = 1,
    backends: str | Sequence[str] = registry.DEFAULT,
    seconds: float = 10.0,
    **options: Any,
) -> ScalingShown:
    """Run a training function with several numbers of processes, one after another, and measure how it scales.

    Each run is measured for about ``seconds`` seconds of steps, without the first steps, and then canceled unless the
    function has returned. Runs are repeated until two of them agree. ``nodes`` is a number of nodes, or one for each
    item of ``processes``. Batch sizes are those of the function: the same on each process (weak scaling), or divided by
    the number of ranks (strong scaling). All runs have equally many threads per process: as many as each process of the
    largest run has cores. ``options`` are those of ``submit``.

    ``.table`` is a DataFrame, ``.figure`` a plotly figure, ``str()`` the sentences. The study is stored with its jobs:
    ``distdl_jupyter.scaling(id)`` opens it, ``.resume()`` continues an interrupted one.

    Raises InvalidSpec if the function does not train, JobFailed if it fails, and the errors of ``submit``.
    """
    draft = capture.capture_function(function, tuple(args), dict(kwargs or {}))
    return of_draft(draft, processes, nodes=nodes, backends=backends, seconds=seconds, **options)


def of_draft(
    draft: CapturedCode, processes: Sequence[int], *, nodes: int | Sequence[int] = 1,
    backends: str | Sequence[str] = registry.DEFAULT, seconds: float = 10.0, **options: Any,
) -> ScalingShown:  # fmt: skip
    """Do what ``scale`` does with captured code."""
    counts, by_count = _listed(processes), _listed(nodes)
    by_count = by_count if isinstance(nodes, Iterable) else by_count * len(counts)
    labels = backends.split(",") if isinstance(backends, str) else _listed(backends)
    _check(counts, by_count, labels, seconds, options)
    labels = [registry.backend_label(one) for one in dict.fromkeys(labels)]
    name = str(options.pop("name", draft.name))
    plan = {"processes": counts, "nodes": by_count, "backends": labels, "seconds": seconds, "driver": mark()}
    group = Group(kind=scaling_study.KIND, id=new_id(), name=name, size=len(labels) * len(counts), plan=plan)
    options.setdefault("max_run_duration_seconds", _AT_MOST * seconds + _SPARE)
    return _measured(group, {}, lambda **given: client.launch(draft, group, **given, **options))


def resume(id_: str = "") -> ScalingShown:
    """Go on with a study that was broken off: what was measured stays, and what is missing is run.

    The code is that of the study's runs, so nothing of it need be defined here; secret environment variables are taken
    from this process's environment. Raises JobNotFound, JobStillRunning, JobNotRunning where nothing is missing, and
    what ``scale`` does.
    """
    found = scaling_study.unfinished(id_)
    with control.alone(found.folders[0].control):  # of two that go on with it at the same moment one does
        found = scaling_study.unfinished(id_)
        assert found.spec.group is not None
        group = replace(found.spec.group, plan={**found.spec.group.plan, "driver": mark()})

        def start(**given: Any) -> Job:
            like = [one for one in found.folders if one.spec().distributed_backend == given["distributed_backend"]]
            job = client.Job((like or found.folders)[-1])
            return client.launch_again(job, group=group, **{**job.spec.backend_options, **given})

        first = [start(**next(_missing(group, found.measured)))]
    return _measured(group, found.measured, lambda **given: first.pop() if first else start(**given))


def _missing(group: Group, known: dict[tuple[str, int], list[Run]]) -> Iterator[dict[str, Any]]:
    """Yield the options of one run after the other until those that are ``known``, to which they are added, suffice."""
    plan = group.plan
    for backend in plan["backends"]:
        for count, nodes in zip(plan["processes"], plan["nodes"], strict=True):
            while not enough([run.rate for run in known.get((backend, count), [])]):
                yield {"node_count": nodes, "process_count_per_node": count // nodes,
                       "distributed_backend": backend, "name": f"{group.name} on {count}"}  # fmt: skip


def _measured(group: Group, known: dict[tuple[str, int], list[Run]], start: Callable[..., Job]) -> ScalingShown:
    """Start the runs that are missing of a study, measure each, and return it."""
    state, problem = State.CANCELED, ""
    try:
        for given in _missing(group, known):
            backend, count = given["distributed_backend"], given["node_count"] * given["process_count_per_node"]
            runs = known.setdefault((backend, count), [])
            runs.append(_measure(start(**given), group.plan["seconds"]))
            _report(backend, count, runs)
        state = State.COMPLETED
    except BaseException as error:  # an interrupt may have come while a run was started
        _end_runs(group.id)
        if isinstance(error, Exception):
            state, problem = State.FAILED, _in_short(error)
        if isinstance(error, KeyboardInterrupt):
            explain(error, _interrupted(group.id))
        raise
    finally:
        study_rows.tell(group.id, state, problem)
    return scaling_study.find(group.id)


def of_options(
    draft: CapturedCode, processes: Sequence[int], options: Mapping[str, Any], *, seconds: float = 10.0
) -> ScalingShown:
    """Do what ``scale`` does with the options of a line: its nodes are those of each run, its backends a list."""
    more = dict(options)
    nodes, backends = more.pop("node_count", 1), more.pop("distributed_backend", registry.DEFAULT)
    more |= {"nodes": nodes, "backends": backends, "seconds": seconds}
    return of_draft(draft, processes, **more)


def _interrupted(id_: str) -> str:
    """Return the explanation of an interrupt of a study whose runs were ended."""
    try:
        facts = scaling_study.find(id_).facts
    except JobNotFound:
        return client.nothing_started()
    measured = f"{facts.done} of {facts.size} numbers of processes" if facts else "nothing"
    return (f"Interrupted with {measured} measured; no run is still running. To measure the rest, run "
            f"distdl_jupyter.scaling({short_id(id_)!r}).resume()")  # fmt: skip


def numbers(text: str) -> list[int]:
    """Return the numbers of processes that are typed as ``1,2,4``. Raises InvalidSpec."""
    try:
        return [int(word) for word in text.replace(" ", ",").split(",") if word]
    except ValueError:
        raise InvalidSpec(
            f"{text!r} is not a list of numbers of processes.",
            code="scale-processes-unreadable",
            field="processes",
            hint="Example: 1,2,4.",
        ) from None


def _listed(given: Any) -> list[Any]:
    return [*given] if isinstance(given, Iterable) else [given]


def _is_positive(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < math.inf


def _check(
    counts: Sequence[Any], nodes: Sequence[Any], labels: Sequence[Any], seconds: Any, options: Mapping[str, Any]
) -> None:
    for name in options:
        if (primary := ALIASES.get(name, name)) in (*TOTALS, *_INSTEAD):
            raise InvalidSpec(
                f"{name} cannot be combined with several numbers of processes.",
                code="scale-option-unsupported",
                field=name,
                hint=f"Use {_INSTEAD.get(primary, 'processes')}= instead.",
            )
    if not counts or any(type(one) is not int or one < 1 for one in counts) or len(set(counts)) < len(counts):
        raise InvalidSpec(
            f"processes must be a list of different integers of at least 1, not {counts}.",
            code="scale-processes-invalid",
            field="processes",
            hint="Example: processes=[1, 2, 4].",
        )
    if len(nodes) != len(counts) or any(
        type(one) is not int or one < 1 or count % one for one, count in zip(nodes, counts, strict=False)
    ):
        raise InvalidSpec(
            f"{counts} processes cannot be divided evenly among {[*nodes]} nodes.",
            code="scale-not-divisible",
            field="nodes",
            hint="Give one number of nodes, or one per number of processes.",
        )
    if not labels or not all(isinstance(one, str) for one in labels):
        raise InvalidSpec(
            f"backends must be a list of names, not {labels}.",
            code="scale-backends-invalid",
            field="backends",
            hint="List them with: distdl doctor",
        )
    if not _is_positive(seconds):
        raise InvalidSpec(
            "seconds must be a number above 0.",
            code="scale-seconds-invalid",
            field="seconds",
            hint="Example: seconds=10.",
        )


def _in_short(error: Exception) -> str:
    """Return an error as the sentences of a message."""
    if isinstance(error, DistDLError):
        return " ".join(filter(None, (error.message.partition("\n")[0], error.hint)))
    return f"{type(error).__name__}: {error}"


def _end_runs(study: str) -> None:
    """End what still runs of a study; a run whose supervisor had yet to be started was none."""
    for row in client.rows():
        if row.group is not None and row.group.id == study:
            job = client.attach(row.id)
            with contextlib.suppress(JobNotRunning):
                job.cancel()
            if job.wait().state is State.LOST and job.view().started is None:
                job.remove()


def _measure(job: Job, seconds: float) -> Run:
    """Follow a job until it has been measured, and end it. Raises JobFailed, InvalidSpec."""
    reader = StepTimesReader(job.folder.steps)
    try:
        while not (ended := job.state.ended):
            if reader.read() and _is_enough(measured(reader.times()), seconds):
                break
            time.sleep(_LOOK)
    finally:  # also when this is interrupted
        if not job.state.ended:
            with contextlib.suppress(JobNotRunning):
                job.cancel()
            job.wait()
    if ended and job.state is not State.COMPLETED:
        job.result()
        raise JobFailed(job.view().reason, code=job.view().reason_code or "scaling-run-failed")
    reader.read()
    times = reader.times()
    found = measured(times) if times.rows else None
    if found is None:
        raise InvalidSpec(too_few(job.name), code="scaling-too-few-steps", field="function",
                          hint="Use longer training code. Each run is stopped as soon as it has been "
                          "measured.")  # fmt: skip
    return found


def _is_enough(found: Run | None, seconds: float) -> bool:
    if found is None:
        return False
    return found.seconds >= seconds and (found.error <= _PRECISE * found.rate or found.seconds >= _AT_MOST * seconds)


def _report(backend: str, count: int, runs: Sequence[Run]) -> None:
    """Print the throughput of the newest of ``runs``."""
    run = runs[-1]
    unit = "samples" if run.counts_samples else "batches"
    sys.stderr.write(f"{backend}, {plural(count, 'process')}, run {len(runs)}: {run.rate:.4g} {unit}/s\n")
    sys.stderr.flush()
