"""Measures how each training step of this rank spends its time. Called by ``hooks.steps``.

A step ends when an optimizer has stepped. It consists of:

* ``data``: the time spent waiting for batches;
* waits: intervals in which the training thread is blocked until a collective operation is complete. All ranks leave
  such an operation at about the same time, so the rank with the shortest wait arrived last, and the other ranks waited
  for it (``core.step_times``). This does not require synchronized clocks;
* ``rest``: the other time before the forward pass, for example for evaluation, logging and checkpoints;
* compute: the remaining time.

On a GPU these are times of its stream (``gpu_steps``): a wait is the time in which the stream waits for a collective
operation.

Measuring all parts of a step takes up to 0.4 ms. So after the first steps, only one in ``_INTERVAL`` short steps is
measured, and later only one every 0.2 s (``StepRecorder.detailed``). All ranks measure the same steps, because the
steps of a longer interval are a subset of those of a shorter one. For skipped steps only the end is recorded. They are
assumed to have the same parts as the next measured step.

Records are sent through the rank's channel at most once per second, or earlier when a report is full. The first
``FULL`` cover one step each, the next ones two, then four, so training of any length produces a few thousand records.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.gpu_steps import GpuSteps, Measured

P = ParamSpec("P")

#: Number of records after which each record covers twice as many steps.
FULL = 2000
#: Maximum number of separate waits in a record. Later waits are added to the last one.
MOST_WAITS = 8
#: The first ``_FIRST`` steps are measured, then one in ``_INTERVAL`` up to step ``_EARLY``. 47 does not divide
#: common intervals of logging or saving.
_FIRST, _INTERVAL, _EARLY = 100, 47, 1000
#: After step ``_EARLY``, the interval doubles until it lasts ``_SPAN`` nanoseconds or has ``_MAX_INTERVAL`` steps.
_SPAN, _MAX_INTERVAL = 200_000_000, 47 << 6
#: Every ``_BLOCK`` steps, steps are classified as short if they take less than ``_SHORT`` nanoseconds on a CPU, or
#: ``_SHORT_ON_GPU`` on a GPU. The hooks take less than 1 % of a longer step.
_BLOCK, _SHORT, _SHORT_ON_GPU = 32, 5_000_000, 10_000_000
#: A step counts as a pause if it takes this many nanoseconds longer than the measured step.
_PAUSE = 50_000_000
#: Minimum nanoseconds between two reports, and maximum count of numbers in one, which is one atomic write to a pipe.
_SEND_EVERY, _MAX_NUMBERS = 1_000_000_000, 350
#: Number of fields of a record before its waits: total time, ``data`` and ``rest`` in microseconds, and samples.
HEAD = 4

#: The clock of the hooks: monotonic, in nanoseconds.
now = time.perf_counter_ns


def steps_per_record(step: int) -> int:
    """Return how many steps the record of a step covers; ``step`` counts from 0."""
    return 1 << ((step // FULL + 1).bit_length() - 1)


def harmless(method: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], None]:
    """Make an Exception in a method stop the measurement (``fail``), not the training. ``Finished`` passes through."""

    @functools.wraps(method)
    def guarded(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.on:
            try:
                method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  our failure must not become the user's
                self.fail(error)

    return guarded


class StepRecorder:
    """Records the steps of the training thread of one process. Times are in nanoseconds, as returned by ``now``."""

    def __init__(self) -> None:
        self.on = False
        self._thread = threading.main_thread().ident
        self._records: list[list[int]] = []
        #: The current step, and the first step of the unsent records.
        self._step = self._first = 0
        #: When the last report was sent, when the memory of GPUs was last sent, and the count of numbers in unsent
        #: records.
        self._sent_at = self._memory_at = self._number_count = 0
        #: The next step to record. It is less than ``_step`` while times of a GPU are pending.
        self._next_step = 0
        #: The number of steps in a record, and how many of them are missing in the last one.
        self._size, self._missing = 1, 0
        self._logs_samples = False
        #: Whether the hooks measure this step. In a skipped step they only set ``passed`` at a backward pass, and add
        #: the time for which backward passes and collective operations block the thread to ``blocked`` (nanoseconds).
        self.detailed, self.passed, self.blocked = True, False, 0
        #: Whether the hooks support skipped steps, whether the steps are short, and the time and step of the last
        #: classification.
        self.can_skip, self._is_short, self._block, self._block_step = False, False, 0, 0
        #: The interval between measured short steps, and the number of steps to skip before the next measured one.
        self._interval, self.skips = _INTERVAL, 0
        #: The end times of the last measured step and of the skipped steps after it, without the latest (``_end``), and
        #: the time that skipped steps were blocked, by index, if longer than ``_PAUSE``.
        self._ends: list[int] = []
        self._blocked: dict[int, int] = {}
        self._measures_all = False
        #: The durations of the skipped steps that are not recorded yet, and the time they were blocked, by index.
        self._skipped: list[int] = []
        self._skipped_blocked: dict[int, int] = {}
        #: The last recorded step that was measured.
        self._last_measured: Measured | None = None
        self.gpu: GpuSteps | None = None
        #: Whether a collective operation has blocked the process in any step.
        self.has_waited = False
        self._reset()

    def _reset(self) -> None:
        #: The start of the step, and its end as far as known; 0 if unknown.
        self._begin = self._end = 0
        self.detailed, self.passed, self.skips = True, False, 0
        self._ends.clear()
        self._blocked.clear()
        if self.gpu is not None:
            self.gpu.forget()
        self._begin_step(0)

    def _begin_step(self, begin: int) -> None:
        self._begin, self._end = begin, 0
        self._data = self._rest = self._wait_time = 0
        self._waits: list[int] = []
        #: Whether a forward or backward pass has begun in this step.
        self._has_computed = False
        self._samples = 0
        #: Total duration of the backward passes, including the waits at their ends.
        self._backward_time = 0
        self._on_gpu = self.gpu is not None
        if self.gpu is not None and self.detailed and begin:
            self.gpu.begin(len(self._skipped))
            self._skipped, self._skipped_blocked = [], {}

    @property
    def step(self) -> int:
        """The number of the current step, from 0. It increases when the next step begins."""
        return self._step + len(self._ends)

    def enable(self) -> None:
        """Start measuring; called only in a rank."""
        self.on = True

    def fail(self, error: Exception) -> None:
        """Stop measuring and send a notice once."""
        self.on, self.skips = False, 0
        text = f"Step times are no longer measured: {type(error).__name__} was raised ({error!s:.200})."
        channel.note("warning", text, "step-times-failed")

    # called by hooks --------------------------------------------------------------------------------

    def begin(self, part: str) -> int:
        """Begin a wait for a batch ("data") or for other ranks ("wait") and return its start time."""
        moment = now()
        if self.gpu is not None:
            self._open(self.gpu, part, moment)
        return moment

    @harmless
    def _open(self, gpu: GpuSteps, part: str, moment: int) -> None:
        if not self._is_other_thread(moment):
            gpu.open(part)

    @harmless
    def data(self, begin: int, samples: int = 0) -> None:
        """Record a wait for a batch since ``begin``, and the batch's sample count."""
        end = now()
        if self._is_other_thread(begin):
            return
        self._data += end - begin
        if self.gpu is not None:
            self.gpu.close("data")
        if not self._logs_samples:
            self._samples = self._samples + samples if self._has_computed else samples
        self._compute_begins(end)

    @harmless
    def forward(self) -> None:
        """Record the start of a forward pass in training."""
        moment = now()
        if not self._is_other_thread(moment):
            self._compute_begins(moment)
            self._has_computed = True

    @harmless
    def backward(self) -> None:
        """Record the start of a backward pass."""
        if not self._is_other_thread(now()):
            self._has_computed = True

    def arrived(self) -> int:
        """Return the current time when this rank has finished its part of a backward pass; callable from any thread."""
        if self.gpu is not None:
            self.gpu.open("wait")
        return now()

    @harmless
    def backward_ended(self, begin: int, arrival: int) -> None:
        """Record the end of a backward pass. At ``arrival`` it began to wait for other ranks (0: no wait)."""
        if self._thread != threading.get_ident():
            return
        self._backward_time += now() - begin
        if arrival:
            self.wait(arrival)

    @harmless
    def wait(self, begin: int) -> None:
        """Record the end of a wait for a collective operation that has blocked the thread since ``begin``."""
        self.has_waited = True
        end = now()
        if self._is_other_thread(begin):
            return
        if self.gpu is not None:
            self.gpu.close("wait")
        self._wait_time += end - begin
        self._waits.append(end - begin)

    def skip(self) -> None:
        """Record an optimizer step in a skipped training step (``skips``)."""
        if self._thread != threading.get_ident():
            self.stepped()
        elif not self.passed:  # a second optimizer
            self._end = now()
            if self.gpu is not None and not self._ends:
                self.gpu.stepped()
        else:
            self._ends.append(self._end)
            if self.blocked > _PAUSE:
                self._blocked[len(self._ends) - 1] = self.blocked
            self.passed, self.blocked, self._end = False, 0, now()
            self.skips -= 1
            if not self.skips or self._end - self._ends[0] > _SEND_EVERY:
                self._resume()

    @harmless
    def _resume(self) -> None:
        """Measure the next step."""
        if self.gpu is not None and not self.detailed:
            self.gpu.border()
        self.detailed, self.skips = True, 0

    @harmless
    def stepped(self) -> None:
        """Record an optimizer step. The last of several after one backward pass ends the training step."""
        if self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            self._reset()
        if self.skips:
            self.skip()
        elif self._ends:  # a second optimizer, just before a measured step
            self._end = now()
            if self.gpu is not None:
                self.gpu.border()
        elif self._end or (self._begin and self._has_computed):
            self._end = now()
            if self.gpu is not None:
                self.gpu.stepped()
            step = self.step + 1
            interval = self._interval if step >= _EARLY else _INTERVAL
            self.detailed = step < _FIRST or not self._is_short or step % interval == 0 or self._measures_all
            self.skips = 0 if self.detailed else interval - step % interval

    @harmless
    def use_gpu(self, device: Any) -> None:
        """Time the steps with events on a torch GPU, from the next step on."""
        if self.gpu is None and self._thread == threading.get_ident():
            self.gpu = GpuSteps(device)

    def measure_all(self, *, on: bool) -> None:
        """Measure every step from the next one on, or return to measuring only some of them."""
        self._measures_all = on
        if on:
            self._resume()

    @harmless
    def samples(self, number: Any) -> None:
        """Set the sample count of the step to the number that the training code logs."""
        if type(number) is int and number >= 0 and not self._ends:
            self._logs_samples, self._samples = True, number

    @harmless
    def flush(self) -> None:
        """Complete the pending steps and send all records."""
        if self._end:
            self._close()
        for measured in self.gpu.wait() if self.gpu is not None else ():
            self._put_measured(measured, {})
        if self._last_measured is not None:
            self._put_skipped(self._last_measured, self._skipped, self._skipped_blocked)
            self._skipped = []
        self._memory_at = 0
        self._send()

    def _is_other_thread(self, moment: int) -> bool:
        """Return whether this is not the training thread. In the training thread, close a step that has ended."""
        if self._thread != threading.get_ident():
            return True
        if self._end:
            self._close()
        elif not self._begin:
            self._begin = moment
        return False

    def _compute_begins(self, moment: int) -> None:
        if not self._has_computed:
            self._rest = moment - self._begin - self._data - self._wait_time
            if self.gpu is not None:
                self.gpu.rest()

    # records ----------------------------------------------------------------------------------------

    def _close(self) -> None:
        """Record the steps that have ended and begin the next one at the last end."""
        ends = [*self._ends, self._end]
        if self.gpu is not None and self._on_gpu:
            self.gpu.end(self._samples)
            for measured in self.gpu.read():
                self._put_measured(measured, {})
        else:
            measured = Measured(
                (ends[0] - self._begin) // 1000,
                self._data // 1000,
                max(0, self._rest) // 1000,
                self._samples,
                [wait // 1000 for wait in self._waits],
                self._backward_time // 1000,
                self._skipped,
            )
            blocked, self._skipped, self._skipped_blocked = self._skipped_blocked, [], {}
            self._put_measured(measured, blocked)
        self._skipped_blocked.update({len(self._skipped) + index: ns for index, ns in self._blocked.items()})
        self._skipped += [end - begin for begin, end in itertools.pairwise(ends)]
        self._ends.clear()
        self._blocked.clear()
        self._step += len(ends)
        if (steps := self._step - self._block_step) >= _BLOCK:
            # Classify the steps as short or long, and choose the interval between measured steps.
            mean = max(1, (ends[-1] - self._block) // steps)
            self._is_short = self.can_skip and mean < (_SHORT if self.gpu is None else _SHORT_ON_GPU)
            self._interval = _INTERVAL
            while self._interval < _MAX_INTERVAL and self._interval * mean < _SPAN:
                self._interval *= 2
            self._block, self._block_step = ends[-1], self._step
        if ends[-1] - self._sent_at > _SEND_EVERY:
            self._send()
        self._begin_step(ends[-1])

    def _put_measured(self, step: Measured, blocked: dict[int, int]) -> None:
        """Record a measured step, and before it the skipped ones."""
        if len(step.waits) > MOST_WAITS:
            step.waits[MOST_WAITS - 1 :] = [sum(step.waits[MOST_WAITS - 1 :])]
        self._put_skipped(step, step.skipped, blocked)
        self._put_record([step.seconds, step.data, step.rest, step.samples, *step.waits])
        self._last_measured = step

    def _put_skipped(self, step: Measured, durations: list[int], blocked: dict[int, int]) -> None:
        """Record skipped steps with the parts of a measured one. A pause counts as rest or, if blocked, as a wait."""
        max_duration, start = 1000 * step.seconds + _PAUSE if step.waits else float("inf"), 0
        for index in [index for index, duration in enumerate(durations) if duration > max_duration]:
            self._put_like(step, durations[start:index])
            start, seconds = index + 1, durations[index] // 1000
            rest = max(0, step.rest + seconds - step.seconds)
            wait_time = max(0, min(rest, blocked.get(index, 0) // 1000 - step.passes))
            waits = [*step.waits[:-1], step.waits[-1] + wait_time]
            self._put_record([seconds, step.data, rest - wait_time, step.samples, *waits])
        self._put_like(step, durations[start:])

    def _put_like(self, step: Measured, durations: list[int]) -> None:
        """Record steps of these durations (nanoseconds), as many at once as fit into one record."""
        index, busy = 0, 1000 * (step.seconds - step.rest)
        while index < len(durations):
            batch = durations[index : index + (self._missing or steps_per_record(self._next_step))]
            index, number = index + len(batch), len(batch)
            rest = sum([duration - busy for duration in batch if duration > busy])
            parts = [sum(batch) // 1000, number * step.data, rest // 1000, number * step.samples]
            self._put_record([*parts, *[number * wait for wait in step.waits]], number)

    def _put_record(self, record: list[int], steps: int = 1) -> None:
        """Add steps to the last record, or begin another one if it is full."""
        if self._missing:
            last = self._records[-1]
            last.extend([0] * (len(record) - len(last)))
            for index, value in enumerate(record):
                last[index] += value
        else:
            if (size := steps_per_record(self._next_step)) != self._size:
                self._send()
                self._size = size
            self._records.append(record)
            self._number_count += len(record)
            self._missing = size
        self._next_step += steps
        self._missing -= steps
        if self._number_count > _MAX_NUMBERS:
            self._send()

    def _send(self) -> None:
        """Send the complete records."""
        out, complete = channel.current(), len(self._records) - (self._missing > 0)
        records, self._records = self._records[:complete], self._records[complete:]
        self._number_count = sum(map(len, self._records))
        first, self._first, self._sent_at = self._first, self._first + complete * self._size, now()
        if out is not None and records:
            fields: dict[str, Any] = {}
            if self.gpu is not None and self._sent_at - self._memory_at > _SEND_EVERY:
                self._memory_at, fields["gpu_memory"] = self._sent_at, self.gpu.memory()
            out.send("steps", first=first, size=self._size, records=records, **fields)


#: The recorder of this process, enabled only in a rank.
recorder = StepRecorder()


def _disable() -> None:
    recorder.on, recorder.skips = False, 0


# A process that training code forks, for example to load data, is not a rank.
os.register_at_fork(after_in_child=_disable)
