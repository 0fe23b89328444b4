"""``log`` and ``progress``: what training code calls to report, the same on one rank, on many and in a plain notebook.

* In a rank each call is one atomic write to its standard output, so nothing is lost when the rank is killed.
* Values that are on a GPU are copied without waiting and sent by a thread as soon as they arrive (see ``deferred``).
* Outside a job ``log`` prints a line, at most two a second, and ``progress`` does nothing.
"""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

from distdl_jupyter.worker import channel, deferred, scalar, step_times
from distdl_jupyter.worker.step_axis import StepAxis

#: Seconds between two lines that ``log`` prints outside a job.
PRINT_EVERY = 0.5

#: Names that training code logs itself; automatic pick-up leaves them alone.
own_names: set[str] = set()
#: Whether training code reports its own progress.
own_progress = False

_count = itertools.count()
_axis = StepAxis()
_has_noted_start = False
_next_print = 0.0


def log(step: float | None = None, **metrics: Any) -> None:
    """Report metric values of one step: ``log(step=3, loss=0.1, accuracy=0.9)``.

    Values are Python or numpy numbers, or arrays and tensors with one element; NaN and inf are allowed. Without
    ``step``, the calls of each rank are counted: 0, 1, 2, ... For names that are not Python identifiers, write
    ``log(**{"loss/train": 0.1})``.
    A step that starts over, for example with each epoch, continues the count. A step that was logged before, for
    example after loading a checkpoint, replaces what was logged from there on.
    If ``samples`` is an integer, it is also the sample count of the step in ``Job.time``.

    Raises TypeError if a value is not a single number, and ValueError if the step is not finite.
    """
    own_names.update(metrics)
    if "samples" in metrics:
        step_times.recorder.samples(metrics["samples"])
    number = next(_count) if step is None else _step(step)
    send(number, metrics)


def send(step: float, metrics: dict[str, Any]) -> None:
    """Report values at a step, whoever found them. Raises TypeError for a value that is not one number."""
    out = channel.current()
    values: dict[str, scalar.Number] = {}
    later: dict[str, Any] = {}
    for name, value in metrics.items():
        # The common case first: this runs for each value of each training step.
        if type(value) is float and math.isfinite(value):
            values[name] = value
        elif out is not None and getattr(value, "is_cuda", False):
            later[name] = value
        else:
            values[name] = scalar.to_json(name, value)
    if out is None:
        _print(step, values)
        return
    for placed in _axis.place(step, metrics):
        waiting = {name: later[name] for name in placed.names if name in later}
        ready = {name: values[name] for name in placed.names if name in values}
        if waiting:
            deferred.add(out, placed.step, waiting, again=placed.again)
        if ready:
            out.metric(placed.step, ready, again=placed.again)
    if _axis.started_over is not None and not _has_noted_start:
        _note_start(*_axis.started_over)


def progress(done: float, total: float | None = None, unit: str = "") -> None:
    """Report the progress of this rank: ``progress(3, 10, "epochs")``. Omit ``total`` if the end is unknown.

    Raises TypeError if a value is not a number, and ValueError if it is not finite.
    """
    global own_progress
    own_progress = True
    send_progress(_finite("done", done), None if total is None else _finite("total", total), str(unit))


def send_progress(done: float, total: float | None, unit: str) -> None:
    """Report progress, whoever found it; nothing happens outside a job."""
    channel.send("progress", done=done, total=total, unit=unit)


def flush() -> None:
    """Wait until values that were still on a GPU are sent."""
    deferred.flush()
    step_times.recorder.flush()


def _note_start(name: str, step: float) -> None:
    """Say once that a step count starts over."""
    global _has_noted_start
    _has_noted_start = True
    channel.note(
        "info",
        f"The steps of {name} restarted at {step:g}, so its curve continues counting after the last step. To set the "
        "numbers yourself, log a step that counts over the whole job.",
        "steps-start-over",
    )


def _step(step: Any) -> float:
    return step if type(step) is int else _finite("step", step)


def _finite(name: str, value: Any) -> float:
    try:
        number = scalar.to_json(name, value)
    except TypeError:
        raise TypeError(f"{name} must be a number, not {value!r:.80}.") from None
    if not isinstance(number, str):
        return number
    raise ValueError(f"{name} must be a finite number, not {number}.")


def _print(step: float, values: dict[str, scalar.Number]) -> None:
    global _next_print
    now = time.monotonic()
    if now < _next_print:
        return
    _next_print = now + PRINT_EVERY
    words = [f"{name} {value if isinstance(value, str) else f'{value:.6g}'}" for name, value in values.items()]
    print(f"step {step:.12g}", *words, sep="  ")  # noqa: T201  the line is for the notebook cell that logs
