"""Times the parts of training steps on a GPU, with CUDA events on the stream used for training.

GPU calls only queue a kernel, so the CPU clock does not show where a step spends its time. An event is queued like a
kernel, and the GPU records the time when its stream reaches the event. The times of a step are read only after
``query()`` has reported that the GPU has completed the step, so the training never waits for them.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

#: Timeout of ``GpuSteps.wait`` in seconds. A GPU that hangs must not block the exit of the process.
TIMEOUT = 2.0


@dataclass(slots=True)
class Measured:
    """The times of one step in microseconds. ``seconds`` is the total, ``passes`` that of the backward passes.

    ``skipped`` has the durations (nanoseconds) of the steps before it that were not measured.
    """

    seconds: int
    data: int
    rest: int
    samples: int
    waits: list[int]
    passes: int = 0
    skipped: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    """The events of a measured step. Between ``previous_end`` and ``begin`` are ``skipped`` steps without events."""

    begin: Any
    previous_end: Any
    skipped: int
    end: Any = None
    #: Tuples ("data" or "wait", begin event, end event).
    intervals: list[tuple[str, Any, Any]] = field(default_factory=list)
    #: The event up to which the step counts as rest, and the number of earlier intervals, which do not.
    rest: tuple[Any, int] | None = None
    samples: int = 0


class GpuSteps:
    """Times the steps of one thread on one device."""

    def __init__(self, device: Any) -> None:
        self._cuda = sys.modules["torch"].cuda
        self._device = device
        self._ended: deque[_Step] = deque()
        self._step: _Step | None = None
        self._open_intervals: dict[str, Any] = {}
        #: The end event of the last measured step, and the number of later steps whose events could not be recorded.
        self._last_end: Any = None
        self._captured_count = 0
        #: The end event of the last skipped step, where the next measured step begins.
        self._skipped_end: Any = None

    def memory(self) -> tuple[int, int]:
        """Return the bytes that torch has allocated and reserved on all GPUs of this process."""
        # ``memory_allocated`` and ``memory_reserved`` are slower: each flattens and sorts all statistics.
        per_gpu = [self._cuda.memory_stats_as_nested_dict(gpu) for gpu in range(self._cuda.device_count())]
        allocated, reserved = (
            sum(stats[name]["all"]["current"] for stats in per_gpu if stats)
            for name in ("allocated_bytes", "reserved_bytes")
        )
        return allocated, reserved

    def border(self) -> None:
        """Record the end of the last skipped step, where the next measured step begins."""
        self._skipped_end = self._record()

    def begin(self, skipped: int) -> None:
        """Begin a measured step after ``skipped`` steps without events, or at the end event of the previous step."""
        skipped, self._captured_count = skipped + self._captured_count, 0
        is_next = self._last_end is not None and not skipped
        begin, self._skipped_end = (self._last_end if is_next else self._skipped_end or self._record()), None
        if begin is None:
            self._captured_count = skipped
        else:
            self._step, self._open_intervals = _Step(begin, self._last_end, skipped), {}

    def open(self, part: str) -> None:
        """Begin an interval of the step, "data" or "wait"."""
        if self._step is not None:
            self._open_intervals[part] = self._record()

    def close(self, part: str) -> None:
        """End an interval."""
        begin = self._open_intervals.pop(part, None)
        if begin is not None and (end := self._record()) is not None and self._step is not None:
            self._step.intervals.append((part, begin, end))

    def rest(self) -> None:
        """Count the step up to now, without its intervals, as rest."""
        if self._step is not None and (event := self._record()) is not None:
            self._step.rest = (event, len(self._step.intervals))

    def stepped(self) -> None:
        """Record an optimizer step. The last of several ends the training step."""
        if self._step is not None:
            self._step.end = self._record()

    def end(self, samples: int) -> None:
        """End the step."""
        step, self._step = self._step, None
        if step is None:
            self._captured_count += 1
        elif step.end is None:  # it was captured into a CUDA graph
            self._captured_count += step.skipped + 1
        else:
            step.samples, self._last_end = samples, step.end
            self._ended.append(step)

    def forget(self) -> None:
        """Discard the current step, because training has moved to another thread."""
        self._step = None

    def read(self) -> Iterator[Measured]:
        """Yield the steps that the GPU has completed, in order."""
        while self._ended and not self._is_capturing() and self._ended[0].end.query():
            yield _measure(self._ended.popleft())

    def wait(self) -> Iterator[Measured]:
        """Yield the steps that the GPU completes within ``TIMEOUT``."""
        deadline = time.monotonic() + TIMEOUT
        yield from self.read()
        while self._ended and time.monotonic() < deadline:
            time.sleep(0.001)
            yield from self.read()

    def _is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured. An event would become part of the graph."""
        return bool(self._cuda.is_current_stream_capturing())

    def _record(self) -> Any:
        """Record an event on the stream and return it; None during a capture."""
        if self._is_capturing():
            return None
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._device))
        return event


def _measure(step: _Step) -> Measured:
    """Return the times between the events of a completed step, and the mean time of the skipped steps before it."""
    parts: dict[str, list[int]] = {"data": [], "wait": []}
    inside_rest = 0
    for index, (part, begin, end) in enumerate(step.intervals):
        duration = _microseconds(begin, end)
        parts[part].append(duration)
        if step.rest is not None and index < step.rest[1]:
            inside_rest += duration
    rest = 0 if step.rest is None else max(0, _microseconds(step.begin, step.rest[0]) - inside_rest)
    seconds = mean = _microseconds(step.begin, step.end)
    if step.skipped and step.previous_end is not None:
        mean = _microseconds(step.previous_end, step.begin) // step.skipped
    return Measured(
        seconds, sum(parts["data"]), rest, step.samples, parts["wait"], skipped=[1000 * mean] * step.skipped
    )


def _microseconds(begin: Any, end: Any) -> int:
    return int(1000 * begin.elapsed_time(end) + 0.5)
