"""``log`` and ``progress``: what training code calls to report, the same on one rank, on many and in a plain notebook.

* In a rank each call is one atomic write to its standard output, so nothing is lost when the rank is killed.
* Values that are on a GPU are copied without waiting and sent by a thread as soon as they arrive.
* Outside a job ``log`` prints a line, at most two a second, and ``progress`` does nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import numbers
import os
import queue
import threading
import time
from typing import Any, NamedTuple

from distdl_jupyter.worker import channel, step_times
from distdl_jupyter.worker.channel import Channel
from distdl_jupyter.worker.hooks.tensors import cuda_event
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
    """Report values at a step, of the code or of a framework. Raises TypeError for a value that is not one number."""
    out = channel.current()
    values: dict[str, Number] = {}
    later: dict[str, Any] = {}
    for name, value in metrics.items():
        # The common case first: this runs for each value of each training step.
        if type(value) is float and math.isfinite(value):
            values[name] = value
        elif out is not None and getattr(value, "is_cuda", False):
            later[name] = value
        else:
            values[name] = to_json(name, value)
    if out is None:
        _print(step, values)
        return
    for placed in _axis.assign_steps(step, metrics):
        waiting = {name: later[name] for name in placed.names if name in later}
        ready = {name: values[name] for name in placed.names if name in values}
        if waiting:
            _defer(out, placed.step, waiting, replace=placed.replace)
        if ready:
            out.metric(placed.step, ready, replace=placed.replace)
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
    """Report progress, of the code or of a framework; nothing happens outside a job."""
    channel.send("progress", done=done, total=total, unit=unit)


def flush() -> None:
    """Wait until values that were still on a GPU are sent."""
    _flush_deferred()
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
        number = to_json(name, value)
    except TypeError:
        raise TypeError(f"{name} must be a number, not {value!r:.80}.") from None
    if not isinstance(number, str):
        return number
    raise ValueError(f"{name} must be a finite number, not {number}.")


def _print(step: float, values: dict[str, Number]) -> None:
    global _next_print
    now = time.monotonic()
    if now < _next_print:
        return
    _next_print = now + PRINT_EVERY
    fields = [f"{name} {value if isinstance(value, str) else f'{value:.6g}'}" for name, value in values.items()]
    print(f"step {step:.12g}", *fields, sep="  ")  # noqa: T201  the line is for the notebook cell that logs


# numbers -----------------------------------------------------------------------------------------

#: Larger integers are sent as floats: JSON readers in browsers hold no more.
_EXACT = 2**53

Number = float | str


def to_json(name: str, value: Any) -> Number:
    """Return ``value`` as a JSON number, or as "nan", "inf" or "-inf".

    It is a Python or numpy number, or an array or tensor of one element; only what every array library has (``shape``,
    ``item``, ``numpy``) is used. Raises TypeError that names the metric when ``value`` is not one real number. Waits
    for the GPU where the value is on one.
    """
    kind = type(value)
    if kind is not float and kind is not int:
        value = _plain(name, value)
    if isinstance(value, int) and -_EXACT <= value <= _EXACT:
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        return "inf" if value > 0 else "-inf"
    return number if math.isfinite(number) else repr(number)


def _plain(name: str, value: Any) -> float:
    """Return the Python number inside an object. Raises TypeError."""
    if not isinstance(value, numbers.Real):
        value = _element(name, value)
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    raise TypeError(f"The metric {name!r} is {_article(value)}, but a metric must be one number.")


def _element(name: str, value: Any) -> Any:
    if isinstance(value, type) or getattr(value, "shape", None) is None:
        return value
    sizes = _sizes(value.shape)
    if any(size != 1 for size in sizes):
        shape = " \N{MULTIPLICATION SIGN} ".join(map(str, sizes))
        raise TypeError(
            f"The metric {name!r} has the shape {shape}, but a metric must be one number. Log its mean, or log each "
            "element under its own name."
        )
    for method in ("item", "numpy"):
        if callable(getattr(value, method, None)):
            return _taken(name, value, method)
    return value


def _taken(name: str, value: Any, method: str) -> Any:
    try:
        inner = getattr(value, method)()
    except Exception as error:
        raise TypeError(f"The metric {name!r} is {_article(value)} that has no value yet: {error}") from error
    return inner.item() if method == "numpy" else inner


def _sizes(shape: Any) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in shape)
    except (TypeError, ValueError):
        return ()


def _article(value: Any) -> str:
    name = "None" if value is None else type(value).__name__
    return name if name == "None" else f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


# values on a GPU ---------------------------------------------------------------------------------
#
# ``Tensor.item()`` would stop the training loop until the GPU has caught up. So the copy to the host is queued on the
# GPU's current stream behind the work that makes the value, an event marks its end, and a thread waits for the event.
# One thread and one queue keep the order. What is in the queue is lost when the process is killed.

#: Seconds that ``flush`` waits for a GPU at most: a GPU that hangs must not hold the end of the process for ever.
_GPU_TIMEOUT = 10.0


class _Waiting(NamedTuple):
    """The values of one call: copies on the host that are valid once every event has passed."""

    out: Channel
    step: float
    t: float
    values: dict[str, Any]
    events: list[Any]
    replace: bool


_queue: queue.Queue[_Waiting] = queue.Queue()
_thread: threading.Thread | None = None


def _defer(out: Channel, step: float, tensors: dict[str, Any], *, replace: bool = False) -> None:
    """Send GPU tensors of one element each as soon as their values have arrived.

    Raises TypeError for a tensor of more elements.
    """
    global _thread
    for name, tensor in tensors.items():
        if tensor.numel() != 1:
            to_json(name, tensor)
    values = {name: tensor.detach().to("cpu", non_blocking=True) for name, tensor in tensors.items()}
    events = [cuda_event(device) for device in {tensor.device for tensor in tensors.values()}]
    _queue.put(_Waiting(out, step, time.time(), values, events, replace))
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_send_deferred, name="distdl-metrics", daemon=True)
        _thread.start()


def _flush_deferred() -> None:
    """Wait until the queue is empty, _GPU_TIMEOUT seconds at most."""
    until = time.monotonic() + _GPU_TIMEOUT
    while _queue.unfinished_tasks and time.monotonic() < until:
        time.sleep(0.002)


def _send_deferred() -> None:
    while True:
        waiting = _queue.get()
        # An error of the GPU is raised to the training code as well, which reports it.
        with contextlib.suppress(Exception):
            for event in waiting.events:
                event.synchronize()
            values = {name: to_json(name, value) for name, value in waiting.values.items()}
            waiting.out.metric(waiting.step, values, waiting.t, replace=waiting.replace)
        _queue.task_done()


def _renew() -> None:
    """Start again in a forked child: it has no thread, and the values are the parent's to send."""
    global _queue, _thread
    _queue, _thread = queue.Queue(), None


os.register_at_fork(after_in_child=_renew)
