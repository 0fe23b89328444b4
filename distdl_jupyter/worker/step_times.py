"""Where the time of each training step of this rank goes, as the hooks of ``watch.step_hooks`` see it.

A step ends where an optimizer has stepped. Until then it consists of:

* ``data``: the wait for batches;
* waits: intervals in which the training thread is blocked until a collective operation is complete. All ranks leave
  such an operation at about the same time, so the one that was blocked shortest came last, and what the others waited
  longer than it they waited for it (``core.step_times``). So no clocks of hosts are compared;
* ``rest``: what came before the forward pass and was no wait, as evaluation, logging and checkpoints;
* compute: what is left.

On a GPU these are times of its stream (``gpu_steps``): a wait is what the stream waits for a collective operation.

Of short steps, after the first ones, only one in ``_EVERY`` is measured (``StepRecorder.detailed``). The others are
known by their whole time; their parts are taken to be those of the next one that is measured.

Records are sent through the rank's channel, at most once a second unless they fill a report. The first ``FULL`` are of
one step each, the next of two, then of four: however long a training is, it leaves some thousand of them.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.gpu_steps import GpuSteps, Measured

P = ParamSpec("P")

#: Records of one size, after which each stands for twice as many steps.
FULL = 2000
#: Waits of a step that are told apart; later ones are added to the last.
MOST_WAITS = 8
#: So many first steps are measured, and later one in so many if they are short: no divisor of what people count by.
_FIRST, _EVERY = 64, 47
#: After so many steps it is decided again whether they are short: in nanoseconds, on a processor and on a GPU. The
#: hooks take less than 1 % of a longer one.
_BLOCK, _SHORT, _SHORT_ON_GPU = 32, 5_000_000, 10_000_000
#: Microseconds by which a step is longer than another one, which make it a pause.
_PAUSE = 50_000
#: Nanoseconds between two reports, and numbers in one: a report is one atomic write to a pipe.
_SEND_EVERY, _MOST_NUMBERS = 1_000_000_000, 350
#: Numbers of a record before its waits: seconds in all, of data, of the rest (in microseconds), samples.
HEAD = 4

#: The time of the hooks: nanoseconds that never go back.
now = time.perf_counter_ns


def steps_per_record(step: int) -> int:
    """Return how many steps the record has in which a step (from 0) stands."""
    return 1 << ((step // FULL + 1).bit_length() - 1)


def _harmless(method: Callable[Concatenate[StepRecorder, P], None]) -> Callable[Concatenate[StepRecorder, P], None]:
    """Let a failure of ours end the measurement, not the training."""

    @functools.wraps(method)
    def guarded(self: StepRecorder, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.on:
            try:
                method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  see above
                self.fail(error)

    return guarded


class StepRecorder:
    """The steps of one process, of the thread that trains. Moments are those of ``now``."""

    def __init__(self) -> None:
        self.on = False
        self._thread = threading.main_thread().ident
        self._records: list[list[int]] = []
        #: The step that runs, and the first one of the records that wait.
        self._step = self._first = 0
        #: When a report was sent last, and one with what is read once a second: how busy the connections were, and the
        #: memory of the GPUs; how many numbers the records have that wait.
        self._sent_at = self._sending_at = self._numbers = 0
        #: The step that is put into a record next: behind ``_step`` where a GPU is yet to say how long it took.
        self._put = 0
        #: How many steps its record has, and the steps from which and below which records have as many.
        self._size, self._size_from, self._size_below = 1, 0, FULL
        self._logs_samples = False
        #: Whether the hooks are to measure now. Where not they only say that a backward pass has run, and for how many
        #: nanoseconds the thread was blocked in it and by collective operations.
        self.detailed, self.passed, self.blocked = True, False, 0
        #: Whether hooks know of ``detailed``, whether the steps are short, and since which moment and step this is
        #: counted.
        self.can_skip, self._is_short, self._block, self._block_step = False, False, 0, 0
        #: How many of the next steps are certainly not to be measured, nor are those behind them.
        self._skips = 0
        self._measures_all = False
        #: Of the steps since the last one that was measured: nanoseconds, in all and blocked.
        self._skipped: list[tuple[int, int]] = []
        self._blocked = 0
        #: The step that was measured last on a processor.
        self._last: Measured | None = None
        self._gpu: GpuSteps | None = None
        #: Whether the process was blocked by a collective operation in any step.
        self.has_waited = False
        self._forget()

    def _forget(self) -> None:
        #: Nanoseconds: the step's begin and its end so far, 0 for none.
        self._begin = self._end = 0
        self.detailed, self.passed, self._skips = True, False, 0
        if self._gpu is not None:
            self._gpu.forget()
        self._begin_step(0)

    def _begin_step(self, begin: int) -> None:
        self._begin, self._end = begin, 0
        self._data = self._rest = self._waited = 0
        self._waits: list[int] = []
        #: Whether the forward or backward pass has begun.
        self._works = False
        self._samples = 0
        #: Nanoseconds of backward passes, with the waits at their ends.
        self._passes = 0
        self._is_skipped, self._on_gpu = False, self._gpu is not None
        if self._gpu is not None and self.detailed and begin:
            self._gpu.begin(len(self._skipped))
            self._skipped.clear()

    @property
    def step(self) -> int:
        """The step that runs, from 0; one that an optimizer has ended runs until something of the next one is seen."""
        return self._step

    def enable(self) -> None:
        """Begin to measure, in a rank."""
        self.on = True

    def fail(self, error: Exception) -> None:
        """Stop measuring and say so once."""
        self.on, self._skips = False, 0
        out = channel.current()
        if out is not None:
            text = f"Step times are no longer measured: {type(error).__name__} was raised ({error!s:.200})."
            out.note("warning", text, "step-times-failed")

    def begin(self, part: str) -> int:
        """Return the moment at which a wait for a batch ("data") or for other ranks ("wait") begins."""
        moment = now()
        if self._gpu is not None:
            self._open(part, moment)
        return moment

    @_harmless
    def _open(self, part: str, moment: int) -> None:
        if self._gpu is not None and not self._is_elsewhere(moment):
            self._gpu.open(part)

    @_harmless
    def data(self, begin: int, samples: int = 0) -> None:
        """Take a wait for a batch that ends now, and the number of its samples."""
        end = now()
        if self._is_elsewhere(begin):
            return
        self._data += end - begin
        if self._gpu is not None:
            self._gpu.close("data")
        if not self._logs_samples:
            self._samples = self._samples + samples if self._works else samples
        self._compute_begins(end)

    @_harmless
    def forward(self) -> None:
        """Take the begin of a forward pass that trains."""
        moment = now()
        if not self._is_elsewhere(moment):
            self._compute_begins(moment)
            self._works = True

    @_harmless
    def backward(self) -> None:
        """Take the begin of a backward pass."""
        if not self._is_elsewhere(now()):
            self._works = True

    @_harmless
    def use_gpu(self, device: Any) -> None:
        """Time the steps from the next one on by the clock of a GPU of torch, on which this one computes."""
        if self._gpu is None and self._thread == threading.get_ident():
            self._gpu = GpuSteps(device)

    @property
    def is_on_gpu(self) -> bool:
        """Whether steps are timed by the clock of a GPU."""
        return self._gpu is not None

    def measure_all(self, *, on: bool) -> None:
        """Measure each step from the next one on, or only as many as needed."""
        self._measures_all = on
        self.detailed, self._skips = self.detailed or on, 0

    def arrived(self) -> int:
        """Return the moment at which this rank's own part of a backward pass is done; any thread may say so."""
        if self._gpu is not None:
            self._gpu.open("wait")
        return now()

    @_harmless
    def backward_ended(self, begin: int, arrival: int) -> None:
        """Take a backward pass that ends now; at ``arrival`` it began to wait for others, 0 if it does not wait."""
        if self._thread != threading.get_ident():
            return
        self._passes += now() - begin
        if arrival:
            self.wait(arrival)

    @_harmless
    def wait(self, begin: int) -> None:
        """Take a time in which the thread was blocked by a collective operation, which ends now."""
        self.has_waited = True
        end = now()
        if self._is_elsewhere(begin):
            return
        if self._gpu is not None:
            self._gpu.close("wait")
        self._add_wait(end - begin)

    @_harmless
    def stepped(self) -> None:
        """Take that an optimizer has stepped. Of several after one backward pass the last one ends the step."""
        if not (self._skips and self.passed and self._thread == threading.get_ident()):
            self._stepped()
            return
        # This is ``_stepped`` for most of the short steps, which takes a few microseconds less.
        duration, moment = self._end - self._begin, now()
        self._skipped.append((duration, self._blocked))
        self._begin, self._end = self._end, moment
        self._step += 1
        self._skips = self._skips - 1 if duration < _SHORT_ON_GPU else 0
        self.passed, self.blocked, self._blocked = False, 0, self.blocked

    @_harmless
    def _stepped(self) -> None:
        if self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            self._forget()
        moment, steps = now(), bool(self._end or (self._begin and self._works))
        if self.passed:  # in a step that is not measured
            if self._end and self._is_skipped:
                self._close_skipped()
            elif self._end:
                self._close()
            self._is_skipped = steps = True
            self.passed, self.blocked, self._blocked = False, 0, self.blocked
        if steps:
            self._end = moment
            self._border()

    def _border(self) -> None:
        """Prepare for the step after the one that has ended."""
        measured = not self._is_skipped
        self.detailed = self._is_detailed(self._step + 1)
        self._skips = 0 if measured or self.detailed else -(self._step + 2) % _EVERY
        if self._gpu is not None:
            if measured:
                self._gpu.stepped()
            elif self.detailed:
                self._gpu.border()

    @_harmless
    def samples(self, number: Any) -> None:
        """Take how many samples the step has, from the training code itself."""
        if type(number) is int and number >= 0:
            self._logs_samples, self._samples = True, number

    @_harmless
    def flush(self) -> None:
        """Send what is known."""
        if self._end:
            self._close()
        if self._gpu is not None:
            for step in self._gpu.wait(len(self._skipped)):
                self._put_measured(step)
        elif self._last is not None:
            self._put_skipped(self._last)
        self._sending_at = 0
        self._send()

    def _is_elsewhere(self, moment: int) -> bool:
        """Say whether this thread is not the one that trains; if it is, close the step that has ended."""
        if self._thread != threading.get_ident():
            return True
        if self._end:
            self._close()
        elif not self._begin:
            self._begin = moment
        return False

    def _add_wait(self, duration: int) -> None:
        self._waited += duration
        if len(self._waits) < MOST_WAITS:
            self._waits.append(duration)
        else:
            self._waits[-1] += duration

    def _compute_begins(self, moment: int) -> None:
        if not self._works:
            self._rest = moment - self._begin - self._data - self._waited
            if self._gpu is not None:
                self._gpu.rest()

    def _close(self) -> None:
        """Put the step that has ended into a record; the next one began at its end."""
        end = self._end
        if self._is_skipped:
            self._close_skipped()
            self._begin_step(end)
            return
        if self._gpu is None or not self._on_gpu:
            self._last = self._measured(end)
            self._put_skipped(self._last)
            self._put_measured(self._last)
        else:
            self._gpu.end(self._samples)
            for step in self._gpu.read():
                self._put_measured(step)
        self._count(end)
        self._begin_step(end)

    def _close_skipped(self) -> None:
        """Keep what is known of a step that has ended and was not measured."""
        self._skipped.append((self._end - self._begin, self._blocked))
        self._begin = self._end
        self._count(self._end)

    def _count(self, end: int) -> None:
        self._step += 1
        if (steps := self._step - self._block_step) >= _BLOCK:
            limit = _SHORT if self._gpu is None else _SHORT_ON_GPU
            self._is_short = self.can_skip and end - self._block < steps * limit
            self._block, self._block_step = end, self._step
        if end - self._sent_at > _SEND_EVERY:
            self._send()

    def _is_detailed(self, step: int) -> bool:
        return step < _FIRST or not self._is_short or step % _EVERY == 0 or self._measures_all

    def _measured(self, end: int) -> Measured:
        return Measured(
            (end - self._begin) // 1000,
            self._data // 1000,
            max(0, self._rest) // 1000,
            self._samples,
            [wait // 1000 for wait in self._waits],
            self._passes // 1000,
        )

    def _put_skipped(self, step: Measured) -> None:
        """Put steps into records that are like one that was measured; a pause is the rank's own, or a wait."""
        skipped, self._skipped = self._skipped, []
        like: list[int] = []
        for nanoseconds, blocked in skipped:
            seconds = nanoseconds // 1000
            if not step.waits or seconds - step.seconds <= _PAUSE:
                like.append(seconds)
                continue
            self._put_like(step, like)
            like.clear()
            rest = max(0, step.rest + seconds - step.seconds)
            waited = max(0, min(rest, blocked // 1000 - step.passes))
            waits = [*step.waits[:-1], step.waits[-1] + waited]
            self._put_record([seconds, step.data, rest - waited, step.samples, *waits])
        self._put_like(step, like)

    def _put_like(self, step: Measured, seconds: list[int]) -> None:
        """Put steps of so many microseconds into records: all that goes into one at once."""
        at = 0
        while at < len(seconds):
            self._begin_record()
            some = seconds[at : at + self._size - (self._put - self._size_from) % self._size]
            at, number = at + len(some), len(some)
            own = step.rest - step.seconds
            rest = sum([own + one for one in some if own + one > 0])
            parts = [sum(some), number * step.data, rest, number * step.samples]
            self._put_record([*parts, *[number * wait for wait in step.waits]], number)

    def _put_measured(self, step: Measured) -> None:
        waits = step.waits[:MOST_WAITS]
        if len(step.waits) > MOST_WAITS:
            waits[-1] += sum(step.waits[MOST_WAITS:])
        self._put_record([step.seconds, step.data, step.rest, step.samples, *waits])

    def _begin_record(self) -> None:
        """Decide how many steps the next record has."""
        if self._put == self._size_below:
            self._send()
            self._size = steps_per_record(self._put)
            self._size_from, self._size_below = self._size_below, FULL * (2 * self._size - 1)

    def _put_record(self, record: list[int], steps: int = 1) -> None:
        self._begin_record()
        if (self._put - self._size_from) % self._size:
            _add(self._records[-1], record)
        else:
            self._records.append(record)
            self._numbers += len(record)
        self._put += steps
        if self._numbers > _MOST_NUMBERS:
            self._send()

    def _send(self) -> None:
        """Send the records that are whole."""
        out = channel.current()
        size = steps_per_record(self._first)
        whole = (self._put - self._first) // size
        records, self._records = self._records[:whole], self._records[whole:]
        self._numbers = sum(map(len, self._records))
        first, self._first, self._sent_at = self._first, self._first + whole * size, now()
        if out is not None and records:
            sending = 0
            due = self._sent_at - self._sending_at > _SEND_EVERY
            more: dict[str, Any] = {}
            if due and any(len(record) > HEAD for record in records):
                from distdl_jupyter.worker import links  # the module socket, which most ranks never import

                self._sending_at, sending = self._sent_at, links.time_sending()
            if due and self._gpu is not None:
                self._sending_at, more["gpu_memory"] = self._sent_at, self._gpu.memory()
            out.send("steps", first=first, size=size, records=records, sending=sending, **more)


def _add(record: list[int], more: list[int]) -> None:
    record.extend([0] * (len(more) - len(record)))
    for at, value in enumerate(more):
        record[at] += value


#: That of this process; only a rank switches it on.
recorder = StepRecorder()


def _disable() -> None:
    recorder.on, recorder._skips = False, 0  # noqa: SLF001


# A process that training code forks, to load data, is no rank.
os.register_at_fork(after_in_child=_disable)
