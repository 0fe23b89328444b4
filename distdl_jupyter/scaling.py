"""``scale(train, processes=[1, 2, 4])``: short runs of a training function, how they scale, and a forecast."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter import capture, client, registry
from distdl_jupyter.core import scaling
from distdl_jupyter.core.aliases import ALIASES, TOTALS
from distdl_jupyter.core.errors import InvalidSpec, JobFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.state import State
from distdl_jupyter.core.step_times import StepTimesReader
from distdl_jupyter.views.scaling import displayable

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.client import Job
    from distdl_jupyter.views.scaling import ScalingShown

#: Options of one job, and what stands for them here.
_INSTEAD = {"process_count_per_node": "processes", "node_count": "nodes", "distributed_backend": "backends"}
#: Seconds between two looks at a run.
_LOOK = 0.2
#: Runs of a point: two, and a third where these differ by more than this share.
_RUNS, _MOST_RUNS, _ALIKE = 2, 3, 0.05
#: A run is long enough when the error of its rate is below this share, or after so many times ``seconds``.
_PRECISE, _AT_MOST = 0.02, 3.0


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
    """Run a training function on several numbers of processes, one after the other, and return how it scales.

    Each run is measured for about ``seconds`` seconds of steps without the first ones, and canceled then unless the
    function has returned; it is repeated until two runs agree. ``nodes`` is one number of nodes, or one for each of
    ``processes``. Batches stay as the function makes them: of one size on each process (weak scaling), or, where it
    divides them by the ranks, of one size for all (strong scaling). ``options`` are those of ``submit``.

    ``.figure`` and ``.table`` show it, ``.forecast(16)`` says what more processes are likely to bring.

    Raises InvalidSpec for a function that trains nothing, JobFailed for one that fails, and what ``submit`` raises.
    """
    draft = capture.capture_function(function, tuple(args), dict(kwargs or {}))
    return of_draft(draft, processes, nodes=nodes, backends=backends, seconds=seconds, **options)


def of_draft(
    draft: CapturedCode, processes: Sequence[int], *, nodes: int | Sequence[int] = 1,
    backends: str | Sequence[str] = registry.DEFAULT, seconds: float = 10.0, **options: Any,
) -> ScalingShown:  # fmt: skip
    """Do what ``scale`` does with captured code."""
    counts = [*processes]
    by_count = [nodes] * len(counts) if isinstance(nodes, int) else [*nodes]
    _check(counts, by_count, seconds, options)
    found = scaling.Scaling(str(options.pop("name", draft.name)))
    for backend in backends.split(",") if isinstance(backends, str) else backends:
        for count, node_count in zip(counts, by_count, strict=True):
            given = {"node_count": node_count, "process_count_per_node": count // node_count,
                     "distributed_backend": backend, "name": f"{found.name} on {count}", **options}  # fmt: skip
            runs: list[scaling.Run] = []
            while len(runs) < _RUNS or (len(runs) < _MOST_RUNS and not _agree(runs)):
                runs.append(_measure(client.launch(draft, **given), seconds))
                _tell(backend, count, runs)
            found.points.append(scaling.point(backend, count, node_count, runs))
    return displayable(found)


def of_options(
    draft: CapturedCode, processes: Sequence[int], options: Mapping[str, Any], *, seconds: float = 10.0
) -> ScalingShown:
    """Do what ``scale`` does with the options of a line: its nodes are those of each run, its backends a list."""
    more = dict(options)
    nodes, backends = more.pop("node_count", 1), more.pop("distributed_backend", registry.DEFAULT)
    return of_draft(draft, processes, nodes=nodes, backends=backends, seconds=seconds, **more)


def numbers(text: str) -> list[int]:
    """Return the numbers of processes that are typed as ``1,2,4``. Raises InvalidSpec."""
    try:
        return [int(word) for word in text.replace(" ", ",").split(",") if word]
    except ValueError:
        raise InvalidSpec(f"{text!r} are no numbers of processes.", field="processes",
                          hint="Example: 1,2,4.") from None  # fmt: skip


def _check(counts: Sequence[int], nodes: Sequence[int], seconds: float, options: Mapping[str, Any]) -> None:
    for name in options:
        if (primary := ALIASES.get(name, name)) in (*TOTALS, *_INSTEAD):
            raise InvalidSpec(f"{name} has no place beside several numbers of processes.", field=name,
                              hint=f"Give {_INSTEAD.get(primary, 'processes')}=.")  # fmt: skip
    if not counts or len(set(counts)) < len(counts) or min(counts) < 1:
        raise InvalidSpec(f"processes is {counts}, but it takes different numbers from 1.", field="processes",
                          hint="Example: processes=[1, 2, 4].")  # fmt: skip
    if len(nodes) != len(counts) or any(one < 1 or count % one for one, count in zip(nodes, counts, strict=False)):
        raise InvalidSpec(f"{counts} processes cannot be divided equally among {[*nodes]} nodes.", field="nodes",
                          hint="Give one number of nodes, or one for each number of processes.")  # fmt: skip
    if seconds <= 0:
        raise InvalidSpec("seconds takes a number above 0.", field="seconds", hint="Example: seconds=10.")


def _agree(runs: Sequence[scaling.Run]) -> bool:
    rates = [run.rate for run in runs]
    return max(rates) <= (1 + _ALIKE) * min(rates)


def _measure(job: Job, seconds: float) -> scaling.Run:
    """Follow a job until it has been measured, and end it. Raises JobFailed, InvalidSpec."""
    reader = StepTimesReader(job.folder.steps)
    try:
        while not (ended := job.state.ended):
            if reader.read() and _is_enough(scaling.measured(reader.times()), seconds):
                break
            time.sleep(_LOOK)
    finally:  # also when this is interrupted
        if not job.state.ended:
            job.cancel()
            job.wait()
    if ended and job.state is not State.COMPLETED:
        job.result()
        raise JobFailed(job.view().reason)
    reader.read()
    times = reader.times()
    found = scaling.measured(times) if times.rows else None
    if found is None:
        least = scaling.WARM_UP + scaling.LEAST_STEPS
        raise InvalidSpec(
            f"{job.name} made too few steps to be measured: an optimizer has to step {least} times at least.",
            field="function", hint="Let it train longer: each run is ended as soon as it was measured.",
        )  # fmt: skip
    return found


def _is_enough(found: scaling.Run | None, seconds: float) -> bool:
    if found is None:
        return False
    spent = found.steps * found.batch / found.rate
    return spent >= seconds and (found.error <= _PRECISE * found.rate or spent >= _AT_MOST * seconds)


def _tell(backend: str, count: int, runs: Sequence[scaling.Run]) -> None:
    """Print what a run came to."""
    run = runs[-1]
    unit = "samples" if run.counts_samples else "batches"
    sys.stderr.write(f"{backend}, {plural(count, 'process')}, run {len(runs)}: {run.rate:.4g} {unit}/s\n")
    sys.stderr.flush()
