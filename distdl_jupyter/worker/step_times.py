"""Where the time of each training step of this rank goes, as the hooks of ``watch.step_hooks`` see it.

A step ends where an optimizer has stepped. Until then it consists of:

* ``data``: the wait for batches;
* waits: intervals in which the training thread is blocked until a collective operation is complete. All ranks leave
  such an operation at about the same time, so the one that was blocked shortest came last, and what the others waited
  longer than it they waited for it (``core.step_times``). So no clocks of hosts are compared;
* ``rest``: what came before the forward pass and was no wait, as evaluation, logging and checkpoints;
* compute: what is left.

Records are sent through the rank's channel, at most once a second unless they fill a report. The first ``FULL`` are of
one step each, the next of two, then of four: however long a training is, it leaves some thousand of them.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec

from distdl_jupyter.worker import channel

P = ParamSpec("P")

#: Records of one size, after which each stands for twice as many steps.
FULL = 2000
#: Waits of a step that are told apart; later ones are added to the last.
MOST_WAITS = 8
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
        self._sent_at = 0
        self._logs_samples = False
        #: Whether the process was blocked by a collective operation in any step.
        self.has_waited = False
        #: Bytes of the gradients that a step averages, and nanoseconds of backward passes since the last report.
        self._gradients = self._backward = 0
        self._forget()

    def _forget(self) -> None:
        #: Nanoseconds: the step's begin and its end so far, 0 for none.
        self._begin = self._end = 0
        self._begin_step(0)

    def _begin_step(self, begin: int) -> None:
        self._begin, self._end = begin, 0
        self._data = self._rest = self._waited = 0
        self._waits: list[int] = []
        #: Whether the forward or backward pass has begun.
        self._works = False
        self._samples = 0

    @property
    def step(self) -> int:
        """The step that runs, from 0; one that an optimizer has ended runs until something of the next one is seen."""
        return self._step

    def enable(self) -> None:
        """Begin to measure, in a rank."""
        self.on = True

    def fail(self, error: Exception) -> None:
        """Stop measuring and say so once."""
        self.on = False
        out = channel.current()
        if out is not None:
            text = f"Step times are no longer measured: {type(error).__name__} was raised ({error!s:.200})."
            out.note("warning", text, "hook")

    @_harmless
    def data(self, begin: int, samples: int = 0) -> None:
        """Take a wait for a batch that ends now, and the number of its samples."""
        end = now()
        if self._is_elsewhere(begin):
            return
        self._data += end - begin
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
    def gradients(self, parameters: Iterable[Any]) -> None:
        """Take the parameters whose gradients each step averages over the ranks."""
        self._gradients = sum(one.numel() * one.element_size() for one in parameters if one.requires_grad)

    @_harmless
    def backward_took(self, nanoseconds: int) -> None:
        """Take for how long a backward pass computed, until it waited for others or was complete."""
        if self._thread == threading.get_ident():
            self._backward += nanoseconds

    @_harmless
    def wait(self, begin: int) -> None:
        """Take a time in which the thread was blocked by a collective operation, which ends now."""
        self.has_waited = True
        end = now()
        if self._is_elsewhere(begin):
            return
        self._add_wait(end - begin)

    @_harmless
    def measured(self, data: int, samples: int, waits: Sequence[int]) -> None:
        """Take nanoseconds that a graph has measured in itself, of data and of each wait, and the number of samples."""
        if self._is_elsewhere(now()):
            return
        self._data += data
        if samples and not self._logs_samples:
            self._samples = samples
        for wait in waits:
            self._add_wait(wait)

    @_harmless
    def stepped(self) -> None:
        """Take that an optimizer has stepped. Of several after one backward pass the last one ends the step."""
        if self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            self._forget()
        if self._begin and self._works:
            self._end = now()

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

    def _close(self) -> None:
        """Put the step that has ended into a record; the next one began at its end."""
        end = self._end
        parts = (end - self._begin, self._data, max(0, self._rest))
        record = [*[part // 1000 for part in parts], self._samples, *[wait // 1000 for wait in self._waits]]
        size = steps_per_record(self._step)
        if (self._step - steps_before(self._step)) % size:
            _add(self._records[-1], record)
        else:
            if size != steps_per_record(self._first):
                self._send()
            self._records.append(record)
        self._step += 1
        self._begin_step(end)
        if end - self._sent_at > _SEND_EVERY or sum(map(len, self._records)) > _MOST_NUMBERS:
            self._send()

    def _send(self) -> None:
        """Send the records that are whole."""
        out = channel.current()
        size = steps_per_record(self._first)
        whole = (self._step - self._first) // size
        records, self._records = self._records[:whole], self._records[whole:]
        first, self._first, self._sent_at = self._first, self._first + whole * size, now()
        if out is not None and records:
            sending = 0
            if any(len(record) > HEAD for record in records):
                from distdl_jupyter.worker import links  # the module socket, which most ranks never import

                sending = links.time_sending()
            more = {"gradients": self._gradients, "backward": self._backward // 1000} if self._gradients else {}
            self._backward = 0
            out.send("steps", first=first, size=size, records=records, sending=sending, **more)


def steps_before(step: int) -> int:
    """Return the first step whose record is as large as that of ``step``."""
    return FULL * (steps_per_record(step) - 1)


def _add(record: list[int], more: list[int]) -> None:
    record.extend([0] * (len(more) - len(record)))
    for at, value in enumerate(more):
        record[at] += value


#: That of this process; only a rank switches it on.
recorder = StepRecorder()


def _disable() -> None:
    recorder.on = False


# A process that training code forks, to load data, is no rank.
os.register_at_fork(after_in_child=_disable)
