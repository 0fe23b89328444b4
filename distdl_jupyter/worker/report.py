"""``log``, ``progress`` and ``display``: the reporting API for training code, in a job and in a plain notebook.

* In a rank, each call is one atomic write to standard output, so nothing is lost when the rank is killed.
* Outside a job, ``log`` prints a line, at most two per second, and ``progress`` does nothing.
* ``display(figure)`` and ``plt.show()`` send an image to the job. Other values are printed. Only PNG and JPEG are sent,
  because a page can show them without running code. The supervisor checks each image again (``supervisor.parts``).
"""

from __future__ import annotations

import binascii
import contextlib
import functools
import io
import itertools
import math
import numbers
import os
import queue
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

from distdl_jupyter.worker import channel, step_times
from distdl_jupyter.worker.channel import Channel
from distdl_jupyter.worker.hooks.frameworks import record_cuda_event
from distdl_jupyter.worker.hooks.imports import HookFinder

#: Minimum seconds between two lines that ``log`` prints outside a job.
PRINT_SECONDS = 0.5

#: Names of metrics that the user's code logs. Automatic logging skips them.
user_names: set[str] = set()
#: Whether the user's code has called ``progress``.
has_user_progress = False

_call_counter = itertools.count()
_next_print = 0.0


def log(step: float | None = None, **metrics: Any) -> None:
    """Report metric values of one step: ``log(step=3, loss=0.1, accuracy=0.9)``.

    Values are Python or numpy numbers, or arrays and tensors with one element; NaN and inf are allowed. Without
    ``step``, the calls of each rank are counted: 0, 1, 2, ... For names that are not Python identifiers, write
    ``log(**{"loss/train": 0.1})``.
    If ``step`` restarts, for example at each epoch, the count continues. If it returns to a step that was logged
    before, for example after loading a checkpoint, the values logged at or after that step are replaced.
    If ``samples`` is an integer, it is also used as the sample count of the step in ``Job.time``.

    Raises TypeError if a value is not a single number, and ValueError if the step is not finite.
    """
    user_names.update(metrics)
    if "samples" in metrics:
        step_times.recorder.set_samples(metrics["samples"])
    if step is None:
        step = next(_call_counter)
    elif type(step) is not int:
        step = _check_finite("step", step)
    send(step, metrics)


def send(step: float, metrics: dict[str, Any]) -> None:
    """Report values from user code or a framework at a step. Raises TypeError if a value is not a single number."""
    out = channel.get_channel()
    values: dict[str, Number] = {}
    gpu_values: dict[str, Any] = {}
    for name, value in metrics.items():
        # The most common case comes first, because this runs in every training step.
        if type(value) is float and math.isfinite(value):
            values[name] = value
        elif out is not None and getattr(value, "is_cuda", False):
            gpu_values[name] = value
        else:
            values[name] = to_json(name, value)
    if out is None:
        _print_line(step, values)
        return
    for (axis_step, replace), names in _axis.assign_steps(step, metrics).items():
        pending = {name: gpu_values[name] for name in names if name in gpu_values}
        ready = {name: values[name] for name in names if name in values}
        if pending:
            _defer(out, axis_step, pending, replace=replace)
        if ready:
            out.add_metric(axis_step, ready, replace=replace)


def progress(done: float, total: float | None = None, unit: str = "") -> None:
    """Report the progress of this rank: ``progress(3, 10, "epochs")``. Omit ``total`` if the end is unknown.

    Raises TypeError if a value is not a number, and ValueError if it is not finite.
    """
    global has_user_progress
    has_user_progress = True
    done, total = _check_finite("done", done), None if total is None else _check_finite("total", total)
    channel.send("progress", done=done, total=total, unit=str(unit))


def flush() -> None:
    """Wait until all GPU values are sent, at most ``_GPU_SECONDS`` seconds, then send the step times."""
    deadline = time.monotonic() + _GPU_SECONDS
    while _queue.unfinished_tasks and time.monotonic() < deadline:
        time.sleep(0.002)
    step_times.recorder.flush()


def _check_finite(name: str, value: Any) -> float:
    try:
        number = to_json(name, value)
    except TypeError:
        raise TypeError(f"{name} must be a number, not {value!r:.80}.") from None
    if not isinstance(number, str):
        return number
    raise ValueError(f"{name} must be a finite number, not {number}.")


def _print_line(step: float, values: dict[str, Number]) -> None:
    global _next_print
    if time.monotonic() >= _next_print:
        _next_print = time.monotonic() + PRINT_SECONDS
        fields = [f"{name} {value if isinstance(value, str) else f'{value:.6g}'}" for name, value in values.items()]
        print(f"step {step:.12g}", *fields, sep="  ")  # noqa: T201  the line is for the notebook cell that logs


#: Integers of larger magnitude are sent as floats, because JavaScript cannot represent them exactly.
_MAX_EXACT_INT = 2**53

Number = float | str


def to_json(name: str, value: Any) -> Number:
    """Return ``value`` as a JSON number, or as "nan", "inf" or "-inf".

    ``value`` is a Python or numpy number, or an array or tensor with one element. Raises TypeError with the metric's
    name if it is not a single real number. Waits for the GPU if the value is stored there.
    """
    if type(value) not in (float, int):
        value = _to_number(name, value)
    if isinstance(value, int) and -_MAX_EXACT_INT <= value <= _MAX_EXACT_INT:
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        return "inf" if value > 0 else "-inf"
    return number if math.isfinite(number) else repr(number)


def _to_number(name: str, value: Any) -> float:
    if not isinstance(value, (numbers.Real, type)) and getattr(value, "shape", None) is not None:
        sizes: tuple[int, ...] = ()
        with contextlib.suppress(TypeError, ValueError):
            sizes = tuple(int(size) for size in value.shape)
        if any(size != 1 for size in sizes):
            shape = " \N{MULTIPLICATION SIGN} ".join(map(str, sizes))
            remedy = "Log its mean, or log each element under its own name."
            raise TypeError(f"The metric {name!r} must be one number, but it has the shape {shape}. {remedy}")
        try:
            if callable(getattr(value, "item", None)):
                value = value.item()
            elif callable(getattr(value, "numpy", None)):
                value = value.numpy().item()
        except Exception as error:
            raise TypeError(f"The metric {name!r} ({type(value).__name__}) has no value yet: {error}") from error
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    raise TypeError(f"The metric {name!r} must be one number, not {None if value is None else type(value).__name__}.")


# step numbers ------------------------------------------------------------------------------------
#
# Steps are counted per metric. If a metric returns to its first step, for example at each epoch, its count continues
# after its last step; metrics logged at the same steps continue together. If it returns to a later step that was logged
# before (because the process loaded a checkpoint), the values logged at or after that step are replaced.

#: Number of recent steps stored per metric, to distinguish a return to an earlier step from a late report.
_MAX_RECENT = 1000


@dataclass(slots=True)
class _StepCount:
    """The step count of one metric: its first and last step since the last restart, and the offset added to them."""

    first: float
    last: float
    offset: float = 0
    stride: float = 1
    #: Whether the metric is logged at the same steps as another one.
    is_shared: bool = False
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT))

    def continues_at(self, step: float) -> bool:
        """Return whether ``step`` is between the last step and the next expected one, inclusive."""
        return self.last <= step <= self.last + self.stride

    def compute_next_offset(self, step: float) -> float:
        """Return the offset that makes ``step`` follow the last step."""
        return self.offset + self.last + self.stride - step

    def restart(self, step: float, offset: float) -> None:
        """Restart the count at ``step``."""
        self.first = self.last = step
        self.offset = offset
        self.recent.clear()

    def follow(self, newest: _StepCount, step: float) -> bool:
        """Restart if ``newest``, the count that was used last, has restarted. Return whether this count restarted."""
        offset = newest.offset
        if newest.continues_at(step):
            has_restarted = offset > self.offset
        else:
            has_restarted = step == self.first == self.last < newest.last and offset == self.offset
            offset = newest.compute_next_offset(step)
            self.is_shared = has_restarted or step == self.last
        if has_restarted:
            self.restart(step, offset)
        return has_restarted

    def go_back(self, step: float) -> bool:
        """Process a step before the last one. Return whether it was logged before."""
        if step in self.recent or (len(self.recent) == _MAX_RECENT and step < self.recent[0]):
            while self.recent and self.recent[-1] >= step:
                self.recent.pop()
            self.last = step
            return True
        if step < self.first:
            self.first = self.last = step  # the code counts down
        return False


class StepAxis:
    """The steps of all metrics of one process."""

    def __init__(self) -> None:
        self._counts: dict[str, _StepCount] = {}
        #: The most recently used count.
        self._newest: _StepCount | None = None

    def assign_steps(self, step: float, names: Iterable[str]) -> dict[tuple[float, bool], list[str]]:
        """Return the metrics by ``(stored_step, replace)``. ``replace`` discards earlier values from this step on."""
        groups: dict[tuple[float, bool], list[str]] = {}
        counts = self._counts
        # A new metric adopts the offset of the others in its call, so process those first.
        for name in sorted(names, key=lambda name: name not in counts):
            count, newest, replace = counts.get(name), self._newest, False
            if count is None:
                count = counts[name] = _StepCount(step, step)
                if newest is not None and newest.continues_at(step):
                    count.offset, count.is_shared, newest.is_shared = newest.offset, True, True
            elif not (newest is not None and newest is not count and count.is_shared and count.follow(newest, step)):
                if step > count.last:
                    count.stride, count.last = step - count.last, step
                elif step <= count.first < count.last:
                    count.restart(step, count.compute_next_offset(step))
                elif step < count.last:
                    replace = count.go_back(step)
            if not count.recent or count.recent[-1] != step:
                count.recent.append(step)
            self._newest = count
            groups.setdefault((count.offset + step, replace), []).append(name)
        return groups


_axis = StepAxis()


# values on a GPU ---------------------------------------------------------------------------------
#
# ``Tensor.item()`` would block the training loop until the GPU has caught up. Instead, the copy to the host is queued
# on the GPU's current stream, an event marks its end, and a thread waits for the event. A single thread with one queue
# preserves the order. Queued values are lost if the process is killed.

#: Timeout of ``flush`` in seconds. A GPU that hangs must not block the exit of the process.
_GPU_SECONDS = 10.0

_queue: queue.Queue[Callable[[], None]] = queue.Queue()
_thread: threading.Thread | None = None


def _defer(out: Channel, step: float, values: dict[str, Any], *, replace: bool) -> None:
    """Send GPU tensors with one element each as soon as they are copied. Raises TypeError for larger tensors."""
    global _thread
    for name, value in values.items():
        if value.numel() != 1:
            to_json(name, value)
    copies = {name: value.detach().to("cpu", non_blocking=True) for name, value in values.items()}
    events = [record_cuda_event(device) for device in {value.device for value in values.values()}]
    logged_at = time.time()

    def send_when_copied() -> None:
        for event in events:
            event.synchronize()
        out.add_metric(step, {name: to_json(name, value) for name, value in copies.items()}, logged_at, replace=replace)

    _queue.put(send_when_copied)
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_send_deferred, name="distdl-metrics", daemon=True)
        _thread.start()


def _send_deferred() -> None:
    while True:
        send_values = _queue.get()
        with contextlib.suppress(Exception):  # a GPU error is also raised in the training code, which reports it
            send_values()
        _queue.task_done()


def _reset_after_fork() -> None:
    """Reset the queue in a forked child, where the thread does not run. The parent sends the queued values."""
    global _queue, _thread
    _queue, _thread = queue.Queue(), None


os.register_at_fork(after_in_child=_reset_after_fork)


#: Our matplotlib backend, and the modules that re-export IPython's ``display``.
_BACKEND = "module://distdl_jupyter.worker.mplbackend"
_DISPLAY_MODULES = ("IPython.display", "IPython.core.display")

#: Maximum number of images, and of bytes and pixels in one (a few bytes can expand to gigabytes in a page).
MAX_IMAGES, MAX_IMAGE_BYTES, _MAX_PIXELS = 100, 2_000_000, 50_000_000
#: The first bytes of each format.
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
#: MIME types of images with IPython's representation methods, in order of preference.
_REPR_METHODS = (("image/png", "_repr_png_"), ("image/jpeg", "_repr_jpeg_"))
_sent_count = 0


class ImageFormat(NamedTuple):
    """The format of an image, ``png`` or ``jpeg``, and its size in pixels."""

    name: str
    width: int
    height: int


def detect_format(data: bytes) -> ImageFormat | None:
    """Return the format and size of an image, or None if it is not a PNG or JPEG or has too many pixels."""
    detected = None
    if data.startswith(_PNG) and data[12:16] == b"IHDR" and len(data) >= 24:
        detected = ImageFormat("png", *struct.unpack(">II", data[16:24]))
    offset = 2
    # The frame header of a JPEG may follow other segments.
    while data.startswith(_JPEG) and detected is None and offset + 9 <= len(data) and data[offset] == 0xFF:
        marker, length = data[offset + 1], int.from_bytes(data[offset + 2 : offset + 4])
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[offset + 5 : offset + 9])
            detected = ImageFormat("jpeg", width, height)
        offset += 1 if marker == 0xFF else 2 + length
    return detected if detected is not None and 0 < detected.width * detected.height <= _MAX_PIXELS else None


def install_hooks(finder: HookFinder) -> None:
    """Make ``plt.show()`` and ``display`` send images, and make rich print as if there were no terminal."""
    if not os.environ.get("MPLBACKEND"):
        os.environ["MPLBACKEND"] = _BACKEND
        if (matplotlib := sys.modules.get("matplotlib")) is not None:  # imported by a template
            matplotlib.rcParams["backend"] = _BACKEND
    # rich would redraw its progress bar for each metric and fill the log. Without a terminal, it prints each bar once.
    os.environ.setdefault("TTY_INTERACTIVE", "0")
    finder.hook("IPython.core.display_functions", _replace_display)


def _replace_display(functions: ModuleType) -> None:
    original = functions.display

    @functools.wraps(original)
    def show(*objects: Any, **options: Any) -> Any:
        shells = sys.modules.get("IPython.core.interactiveshell")
        is_shell = shells is not None and shells.InteractiveShell.initialized()
        return (original if is_shell else display)(*objects, **options)

    for module in (functions, *filter(None, map(sys.modules.get, _DISPLAY_MODULES))):
        if vars(module).get("display") is original:
            module.display = show  # type: ignore[attr-defined]


def display(*objects: Any, raw: bool = False, **_options: Any) -> None:
    """Show each object as an image if it has an image representation, else as text, like ``display`` in a notebook."""
    for value in objects:
        images: list[bytes] = []
        if channel.get_channel() is not None and not isinstance(value, type):
            with contextlib.suppress(Exception):  # a user-defined method; the text is shown instead
                images = [data for data in _find_images(value, raw=raw) if detect_format(data)]
        if images:
            _send(images)
        else:
            print(value.get("text/plain", "") if raw and isinstance(value, dict) else value)  # noqa: T201


def show_figure(figure: Any) -> None:
    """Send a matplotlib figure to the job as a PNG."""
    _send(list(_find_images(figure, raw=False)))


def _find_images(value: Any, *, raw: bool) -> Iterator[bytes]:
    """Yield the images of a value, in order of preference. ``raw`` values are MIME bundles."""
    figures = sys.modules.get("matplotlib.figure")
    if figures is not None and isinstance(value, figures.Figure):
        file = io.BytesIO()
        value.savefig(file, format="png")
        yield file.getvalue()
        return

    def represent(method: str) -> Any:
        call = None if raw else getattr(type(value), method, None)
        result = None if call is None else call(value)
        return result[0] if isinstance(result, tuple) else result  # data and metadata

    bundle = value if raw else represent("_repr_mimebundle_")
    for mime, method in _REPR_METHODS:
        data = bundle.get(mime) if isinstance(bundle, dict) else None
        data = represent(method) if data is None else data
        data = binascii.a2b_base64(data) if isinstance(data, str) else data
        if isinstance(data, bytes):
            yield data


def _send(images: list[bytes]) -> None:
    global _sent_count
    current = channel.get_channel()
    image = next((data for data in images if len(data) <= MAX_IMAGE_BYTES), None)
    if image is None:
        size, limit = min(map(len, images)) / 1e6, MAX_IMAGE_BYTES / 1e6
        remedy = "use a smaller figure or a lower dpi"
        print(f"[image omitted: its size is {size:.1f} MB, but the limit is {limit:.0f} MB; {remedy}]")  # noqa: T201
        return
    _sent_count += 1
    if current is not None and _sent_count <= MAX_IMAGES:
        current.send_picture(image)
    elif _sent_count == MAX_IMAGES + 1:
        print(f"[This rank has shown {MAX_IMAGES} images; later ones are omitted.]")  # noqa: T201
