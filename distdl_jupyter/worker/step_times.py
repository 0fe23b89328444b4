"""Measures how each training step of this rank spends its time. Called by ``hooks.steps``.

A step ends when an optimizer has stepped. It consists of:

* ``data``: the time spent waiting for batches;
* waits: intervals in which the training thread (on a GPU, its stream) is blocked until a collective operation is
  complete. All ranks leave such an operation at about the same time, so the rank with the shortest wait arrived last,
  and the other ranks waited for it (``core.step_times``). This does not require synchronized clocks;
* ``rest``: the other time before the forward pass, for example for evaluation, logging and checkpoints;
* compute: the remaining time.

Measuring all parts of a step takes up to 0.4 ms. So after the first steps, of short steps only one in ``_INTERVAL`` is
measured, or fewer, so that they are at least 0.2 s apart. All ranks measure the same steps, because the steps of a
longer interval are a subset of those of a shorter one. Skipped steps are only counted, and are assumed to have the same
parts as the next measured step. The step after a pause is measured.

Records are sent at most once per second, or earlier when a report is full. The first ``RECORDS_PER_SIZE`` cover one
step each, the next ones two, then four, so training of any length produces a few thousand records.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Concatenate, NamedTuple, ParamSpec

from distdl_jupyter.worker import channel

P = ParamSpec("P")

#: Number of records after which each record covers twice as many steps.
RECORDS_PER_SIZE = 2000
#: Maximum number of separate waits in a record. Later waits are added to the last one.
_MAX_WAITS = 8
#: The first ``_FIRST_STEPS`` steps are measured. Later, the interval between measured short steps is the first of 7,
#: 14, 28, ... that lasts ``_SPAN_NS``. None of them divides common intervals of logging or saving (10, 50, 100).
_FIRST_STEPS, _INTERVAL, _MAX_INTERVAL, _SPAN_NS = 100, 7, 7 << 9, 200_000_000
#: Every ``_BLOCK_STEPS`` steps, steps are classified as short if they take less than ``_SHORT_NS``. The hooks take less
#: than 1 % of a longer step.
_BLOCK_STEPS, _SHORT_NS = 32, 50_000_000
#: A skipped step contains a pause if it takes more than ``_PAUSE_NS``, and more than ``_PAUSE_FACTOR`` mean steps.
_PAUSE_NS, _PAUSE_FACTOR = 50_000_000, 4
#: Minimum nanoseconds between two reports, and maximum count of numbers in one, which is one atomic write to a pipe.
_SEND_NS, _MAX_NUMBERS = 1_000_000_000, 350
#: Timeout in seconds for the last steps on a GPU. A GPU that hangs must not block the exit of the process.
_GPU_SECONDS = 2.0
#: Maximum number of equal records for skipped steps, so that rounding changes none by more than 16 microseconds.
_MAX_EQUAL = 16
#: Number of fields of a record before its waits: total time, ``data`` and ``rest`` in microseconds, and samples.
HEAD_SIZE = 4

#: The clock of the hooks: monotonic, in nanoseconds.
read_clock = time.perf_counter_ns


def get_steps_per_record(step: int) -> int:
    """Return how many steps the record of a step covers; ``step`` counts from 0."""
    return 1 << ((step // RECORDS_PER_SIZE + 1).bit_length() - 1)


def guard_method(method: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], None]:
    """Make an Exception in a method stop the measurement (``fail``), not the training. ``CheckExit`` passes through."""

    @functools.wraps(method)
    def guarded(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.is_enabled:
            try:
                method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  our failure must not become the user's
                self.fail(error)

    return guarded


class SkippedSteps(NamedTuple):
    """Steps that were not measured, in microseconds. ``total`` is the time of all steps without the pause.

    If the last one contains a pause, it took ``pause``; for ``blocked_time`` of it, the thread waited for other ranks.
    """

    steps: int = 0
    total: int = 0
    pause: int = 0
    blocked_time: int = 0


class MeasuredStep(NamedTuple):
    """The times of one step in microseconds, and the ``skipped`` steps before it. ``backward`` includes its waits."""

    total: int
    data: int
    rest: int
    samples: int
    waits: list[int]
    skipped: SkippedSteps
    backward: int = 0


# times of a GPU ----------------------------------------------------------------------------------
#
# GPU calls only queue a kernel, so the CPU clock does not show where a step spends its time. A CUDA event is queued
# like a kernel, and the GPU records the time when its stream reaches the event. The times of a step are read only after
# ``query()`` has reported that the GPU has completed the step, so the training never waits for them.


@dataclass(slots=True)
class _GpuStep:
    """The events of a measured step. Between ``previous_end`` and ``begin`` are ``skipped`` steps without events."""

    begin: Any
    previous_end: Any
    skipped: int
    #: Names and events in order: "data" and "wait" begin intervals and "data ends" and "wait ends" end them. The time
    #: before "rest" is rest, except for the intervals. The last "end" ends the step.
    events: list[tuple[str, Any]] = field(default_factory=list)
    samples: int = 0

    def measure(self) -> MeasuredStep:
        """Return the times between the events when the GPU has completed the step."""
        begins, rest, total = {}, 0, 0
        intervals: dict[str, list[int]] = {"data": [], "wait": []}
        for name, event in self.events:
            part = name.removesuffix(" ends")
            if name in intervals:
                begins[part] = event
            elif part in begins:
                intervals[part].append(_measure_microseconds(begins.pop(part), event))
            elif name == "rest":
                rest = max(0, _measure_microseconds(self.begin, event) - sum(map(sum, intervals.values())))
            elif name == "end":
                total = _measure_microseconds(self.begin, event)
        skipped = self.skipped * total
        if self.skipped and self.previous_end is not None:
            skipped = _measure_microseconds(self.previous_end, self.begin)
        data, waits = sum(intervals["data"]), intervals["wait"]
        return MeasuredStep(total, data, rest, self.samples, waits, SkippedSteps(self.skipped, skipped))


def _measure_microseconds(begin: Any, end: Any) -> int:
    return int(1000 * begin.elapsed_time(end) + 0.5)


class GpuSteps:
    """Times the steps of one thread on one device."""

    def __init__(self, device: Any) -> None:
        self._cuda = sys.modules["torch"].cuda
        self._device = device
        self._ended: deque[tuple[Any, _GpuStep]] = deque()
        #: The measured step whose events are recorded, or None. Set it to None to discard the step.
        self.step: _GpuStep | None = None
        #: The end event of the last measured step, and the number of later steps whose events could not be recorded.
        self._last_end: Any = None
        self._unrecorded_count = 0
        #: The end event of the last skipped step, where the next measured step begins.
        self.skipped_end: Any = None

    def read_memory(self) -> tuple[int, int]:
        """Return the bytes that torch has allocated and reserved on all GPUs of this process."""
        # ``memory_allocated`` and ``memory_reserved`` are slower: each flattens and sorts all statistics.
        gpus = [self._cuda.memory_stats_as_nested_dict(gpu) for gpu in range(self._cuda.device_count())]
        allocated, reserved = (
            sum(stats[name]["all"]["current"] for stats in gpus if stats)
            for name in ("allocated_bytes", "reserved_bytes")
        )
        return allocated, reserved

    def begin(self, skipped: int) -> None:
        """Begin a measured step after ``skipped`` steps without events, or at the end event of the previous step."""
        skipped, self._unrecorded_count = skipped + self._unrecorded_count, 0
        is_next = self._last_end is not None and not skipped
        begin, self.skipped_end = (self._last_end if is_next else self.skipped_end or self.record()), None
        if begin is None:
            self._unrecorded_count = skipped
        else:
            self.step = _GpuStep(begin, self._last_end, skipped)

    def mark(self, name: str) -> None:
        """Record an event of the current step (see ``_GpuStep.events``), unless a CUDA graph is captured."""
        if self.step is not None and (event := self.record()) is not None:
            self.step.events.append((name, event))

    def end(self, samples: int) -> None:
        """End the step. It has no end event if it was captured into a CUDA graph."""
        step, self.step = self.step, None
        ends = [] if step is None else [event for name, event in step.events if name == "end"]
        if step is None or not ends:
            self._unrecorded_count += 1 if step is None else step.skipped + 1
        else:
            step.samples, self._last_end = samples, ends[-1]
            self._ended.append((ends[-1], step))

    def read(self, timeout: float = 0.0) -> Iterator[MeasuredStep]:
        """Yield the steps that the GPU has completed or completes within the timeout in seconds, in order."""
        deadline = time.monotonic() + timeout
        while self._ended:
            # While a CUDA graph is captured, an event would become part of the graph.
            if not self._cuda.is_current_stream_capturing() and self._ended[0][0].query():
                yield self._ended.popleft()[1].measure()
            elif time.monotonic() < deadline:
                time.sleep(0.001)
            else:
                return

    def record(self) -> Any:
        """Record an event on the stream and return it, or None while a CUDA graph is captured."""
        if self._cuda.is_current_stream_capturing():
            return None
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._device))
        return event


class StepRecorder:
    """Records the steps of the training thread of one process. Times are in nanoseconds (``read_clock``)."""

    #: The attributes that are used in skipped steps. Slots are faster than the dictionary with the others.
    __slots__ = (
        "__dict__",
        "backward_end",
        "blocked_time",
        "pause_limit",
        "resume_at",
        "skip_end",
        "skip_limit",
        "skipped",
    )

    def __init__(self) -> None:
        #: Whether steps are recorded, which only a rank sets.
        self.is_enabled = False
        self._thread = threading.main_thread().ident
        self.gpu: GpuSteps | None = None
        #: Whether a collective operation has blocked the process in any step.
        self.has_waited = False
        #: Whether the code logs the sample counts, and whether a profile needs all steps.
        self._logs_samples = self._measures_all = False
        #: The number of the last measured step while the steps after it are skipped, else of the current step.
        self._step = 0
        #: The next step to record. It is less than the current step while times of a GPU are pending.
        self._next_step = 0
        #: Whether the hooks support skipped steps.
        self.can_skip = False
        #: The time and step of the last classification of steps as short or long.
        self._block_begin = self._block_step = 0
        #: The interval between measured steps, and the time above which a skipped step contains a pause.
        self._interval, self.pause_limit = 1, _PAUSE_NS
        #: The skipped steps before the current measured one, and the last measured step that is recorded.
        self._before = SkippedSteps()
        self._last_measured: MeasuredStep | None = None
        #: The unsent records, the first step of them, and their count of numbers.
        self._records: list[list[int]] = []
        self._first = self._number_count = 0
        #: The number of steps that a record covers, and how many of them the last one lacks.
        self._size, self._missing_count = 1, 0
        #: The time of the last report.
        self._sent_at = 0
        self._reset()

    def _reset(self) -> None:
        """Begin with an unknown step."""
        #: In a skipped step (``skip_limit``), the hooks only set the end of the last backward pass (0: none yet),
        #: and the time for which backward passes and collective operations have blocked the thread.
        self.backward_end = self.blocked_time = 0
        #: The number of steps to skip after a measured one (0: none), and the time at which skipping ends anyway.
        self.skip_limit = self.resume_at = 0
        #: The number of steps that were skipped so far, and the end of the last backward pass in them.
        self.skipped = self.skip_end = 0
        #: The end of the last measured step.
        self._measured_end = 0
        #: If the last skipped step contains a pause: its duration, and the time that it was blocked.
        self._pause = self._pause_blocked = 0
        if self.gpu is not None:
            self.gpu.step = None
        self._begin_step(0)

    def _begin_step(self, begin: int) -> None:
        #: The start of the step, and its end if it has ended; 0 if unknown.
        self._begin, self._end = begin, 0
        self._data = self._rest = self._samples = self._arrival = 0
        self._waits: list[int] = []
        #: Whether a forward or backward pass has begun in this step.
        self._has_computed = False
        #: Total duration of the backward passes, including the waits at their ends.
        self._backward_time = 0
        self._on_gpu = self.gpu is not None
        if self.gpu is not None and begin:
            self.gpu.begin(self._before.steps)
            self._before = SkippedSteps()

    @property
    def step(self) -> int:
        """The number of the current step, from 0. It increases when the next step begins."""
        return self._step + self.skipped

    @property
    def is_detailed(self) -> bool:
        """Whether the current step is measured."""
        return not self.skip_limit

    def fail(self, error: Exception) -> None:
        """Stop measuring and send a notice once. Later steps are only counted (``record_step``)."""
        if not self._end:  # the current step is counted when it ends
            self._step -= 1
            self.backward_end = self.backward_end or self._has_computed
        self.is_enabled, self.skip_limit = False, 0
        text = f"Step times are no longer measured: {type(error).__name__} was raised ({error!s:.200})."
        channel.notify("warning", text, "step-times-failed")

    @guard_method
    def mark_part(self, part: str, begin: int) -> None:
        """Mark the start of a wait for a batch ("data") or for other ranks ("wait") on the GPU."""
        if self.gpu is not None and self._enter_step(begin):
            self.gpu.mark(part)

    @guard_method
    def record_data(self, begin: int, samples: int = 0) -> None:
        """Record a wait for a batch since ``begin``, and the batch's sample count."""
        end = read_clock()
        if self._enter_step(begin):
            self._data += end - begin
            if self.gpu is not None:
                self.gpu.mark("data ends")
            if not self._logs_samples:
                self._samples = self._samples + samples if self._has_computed else samples
            self._begin_compute(end)

    @guard_method
    def record_pass(self, *, is_forward: bool) -> None:
        """Record the start of a forward or backward pass in training."""
        moment = read_clock()
        if self._enter_step(moment):
            if is_forward:
                self._begin_compute(moment)
            self._has_computed = True

    @guard_method
    def record_arrival(self) -> None:
        """Record that the rank has done its part of a backward pass and begins to wait. Callable from any thread."""
        if self.gpu is not None:
            self.gpu.mark("wait")
        self._arrival = read_clock()

    @guard_method
    def end_backward(self, begin: int) -> None:
        """Record the end of a backward pass."""
        arrival, self._arrival = self._arrival, 0
        if self._thread == threading.get_ident():
            self._backward_time += read_clock() - begin
            if arrival:
                self.record_wait(arrival)

    @guard_method
    def record_wait(self, begin: int) -> None:
        """Record the end of a wait for a collective operation that has blocked the thread since ``begin``."""
        self.has_waited = True
        end = read_clock()
        if self._enter_step(begin):
            if self.gpu is not None:
                self.gpu.mark("wait ends")
            self._waits.append(end - begin)

    def _enter_step(self, moment: int) -> bool:
        """Return whether this is the training thread. If so, close a step that has ended."""
        if self._thread != threading.get_ident():
            return False
        if self._end:
            self._close_step()
        elif not self._begin:
            self._begin = moment
        return True

    def _begin_compute(self, moment: int) -> None:
        if not self._has_computed:
            self._rest = moment - self._begin - self._data - sum(self._waits)
            if self.gpu is not None:
                self.gpu.mark("rest")

    def skip(self) -> None:
        """Record an optimizer step in a skipped training step (``skip_limit``)."""
        if end := self.backward_end:
            self.backward_end = 0
            self.skipped += 1
            if end - self.skip_end > self.pause_limit or end > self.resume_at or self.skipped >= self.skip_limit:
                self._end = read_clock()
                if self._end - self.skip_end > self.pause_limit:
                    self._pause, self._pause_blocked = self._end - self.skip_end, self.blocked_time
                self._resume()
            else:
                self.skip_end, self.blocked_time = end, 0
        elif not self.skipped:  # a second optimizer in the measured step before
            self._end_measured()

    @guard_method
    def _resume(self) -> None:
        if self.gpu is not None and self.skip_limit:
            self.gpu.skipped_end = self.gpu.record()
        self.skip_limit = self.blocked_time = 0

    def record_step(self) -> None:
        """Record an optimizer step. The last of several after one backward pass ends the training step."""
        if self.is_enabled:
            self._end_step()
        elif self.backward_end:
            self.backward_end = 0
            self.skipped += 1

    @guard_method
    def _end_step(self) -> None:
        if self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            self._reset()
        if self.skip_limit:
            self.skip()
        elif self.skipped:  # a second optimizer in the last skipped step
            self._end = read_clock()
            if self.gpu is not None:
                self.gpu.skipped_end = self.gpu.record()
        elif self._end or (self._begin and self._has_computed):
            self._end_measured()
            step = self._step + 1
            is_detailed = step < _FIRST_STEPS or step % self._interval == 0 or self._measures_all
            self.skip_limit = 0 if is_detailed else self._interval - step % self._interval
            self.resume_at = self._end + _SEND_NS

    def _end_measured(self) -> None:
        self._end = self._measured_end = self.skip_end = read_clock()
        if self.gpu is not None:
            self.gpu.mark("end")

    @guard_method
    def use_gpu(self, device: Any) -> None:
        """Time the steps with events on a torch GPU, from the next step onwards."""
        if self.gpu is None and self._thread == threading.get_ident():
            self.gpu = GpuSteps(device)

    def measure_all(self, *, is_on: bool) -> None:
        """Measure every step from the next one onwards, or return to measuring only some of them."""
        self._measures_all = is_on
        if is_on:
            self._resume()

    @guard_method
    def set_samples(self, count: Any) -> None:
        """Set the sample count of the step to the number that the training code logs."""
        if type(count) is int and count >= 0 and not self.skipped:
            self._logs_samples, self._samples = True, count

    @guard_method
    def flush(self) -> None:
        """Complete the pending steps and send all records. The next step is measured."""
        if self.skip_limit and self.skipped:
            self._end = self.skip_end
        self.skip_limit = self.backward_end = self.blocked_time = 0
        if self._end:
            self._close_step()
        for measured in self.gpu.read(_GPU_SECONDS) if self.gpu is not None else ():
            self._put_measured(measured)
        if self._last_measured is not None:
            self._put_skipped(self._last_measured, self._before)
            self._before = SkippedSteps()
        self._send()

    def _close_step(self) -> None:
        """Record the measured step that has ended, and begin the next one after the skipped steps."""
        end, measured_end = self._end, self._measured_end
        if self.gpu is not None and self._on_gpu:
            self.gpu.end(self._samples)
            for measured in self.gpu.read():
                self._put_measured(measured)
        else:
            total, data, rest = (measured_end - self._begin) // 1000, self._data // 1000, max(0, self._rest) // 1000
            waits, backward = [wait // 1000 for wait in self._waits], self._backward_time // 1000
            self._put_measured(MeasuredStep(total, data, rest, self._samples, waits, self._before, backward))
        skipped_time = (end - measured_end - self._pause) // 1000
        self._before = SkippedSteps(self.skipped, skipped_time, self._pause // 1000, self._pause_blocked // 1000)
        self._step, self._end = self._step + 1 + self.skipped, 0
        self.skipped = self._pause = 0
        if (steps := self._step - self._block_step) >= _BLOCK_STEPS:
            # Classify the steps as short or long, and choose the interval between measured steps.
            mean = max(1, (end - self._block_begin) // steps)
            interval = _INTERVAL
            while interval < _MAX_INTERVAL and interval * mean < _SPAN_NS:
                interval *= 2
            self._interval = interval if self.can_skip and mean < _SHORT_NS else 1
            self.pause_limit = max(_PAUSE_NS, _PAUSE_FACTOR * mean)
            self._block_begin, self._block_step = end, self._step
        if end - self._sent_at > _SEND_NS:
            self._send()
        self._begin_step(end)

    def _put_measured(self, step: MeasuredStep) -> None:
        """Record a measured step, and before it the skipped ones."""
        if len(step.waits) > _MAX_WAITS:
            step.waits[_MAX_WAITS - 1 :] = [sum(step.waits[_MAX_WAITS - 1 :])]
        self._put_skipped(step, step.skipped)
        self._put_record([step.total, step.data, step.rest, step.samples, *step.waits])
        self._last_measured = step

    def _put_skipped(self, step: MeasuredStep, skipped: SkippedSteps) -> None:
        """Record skipped steps with the parts of a measured one, and as many at once as fit into one record.

        If they are shorter than the measured step, which the measurement itself slows down, their parts are shorter by
        the same factor. If they are longer, the difference counts as rest or, if they were blocked in a pause, as a
        wait.
        """
        busy, count, total = step.total - step.rest, skipped.steps - bool(skipped.pause), skipped.total
        while count > 0:
            number = min(count, self._missing_count or get_steps_per_record(self._next_step))
            part = total * number // count
            scale = min(number, part / max(1, step.total))
            rest = max(0, part - int(busy * scale))
            head = [part, int(step.data * scale), rest, number * step.samples]
            record = [*head, *[int(wait * scale) for wait in step.waits]]
            repeat = 1 if self._missing_count else min(_MAX_EQUAL, count // number, self._count_free(number, record))
            self._put_record(record, number, repeat)
            count, total = count - repeat * number, total - repeat * part
        if skipped.pause:
            rest, waits = max(0, skipped.pause - busy), step.waits.copy()
            if waits:
                wait = max(0, min(rest, skipped.blocked_time - step.backward))
                rest, waits[-1] = rest - wait, waits[-1] + wait
            self._put_record([skipped.pause, step.data, rest, step.samples, *waits])

    def _count_free(self, size: int, record: list[int]) -> int:
        """Return how many records like this one fit before larger ones begin or the report is full, at least 1."""
        before_larger = (RECORDS_PER_SIZE * (2 * size - 1) - self._next_step) // size
        return max(1, min(before_larger, (_MAX_NUMBERS - self._number_count) // len(record) + 1))

    def _put_record(self, record: list[int], steps: int = 1, repeat: int = 1) -> None:
        """Add steps to the last record or, if it is full, begin one or more equal ones (``repeat``)."""
        if self._missing_count:
            sums = itertools.zip_longest(self._records[-1], record, fillvalue=0)
            self._records[-1] = [previous + value for previous, value in sums]
        else:
            if (size := get_steps_per_record(self._next_step)) != self._size:
                self._send()
                self._size = size
            self._records += [record] * repeat
            self._number_count += repeat * len(record)
            self._missing_count = size
        self._next_step += repeat * steps
        self._missing_count -= steps
        if self._number_count > _MAX_NUMBERS:
            self._send()

    def _send(self) -> None:
        current, complete = channel.get_channel(), len(self._records) - (self._missing_count > 0)
        records, self._records = self._records[:complete], self._records[complete:]
        self._number_count = sum(map(len, self._records))
        first, self._first, self._sent_at = self._first, self._first + complete * self._size, read_clock()
        if current is not None and records:
            fields: dict[str, Any] = {} if self.gpu is None else {"gpu_memory": self.gpu.read_memory()}
            current.send("steps", first=first, size=self._size, records=records, **fields)


#: The recorder of this process, enabled only in a rank.
recorder = StepRecorder()
# A process that training code forks, for example to load data, is not a rank.
os.register_at_fork(after_in_child=recorder.__init__)  # type: ignore[misc]
