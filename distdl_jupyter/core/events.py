"""The events of a job in ``events.jsonl`` and its log lines in ``log.jsonl``; one writer appends to both.

* One writer: the process that holds the job's lock (core.files). It appends whole lines; nothing is deleted when a job
  ends. Only the log is split into parts if it is long (core.logfile).
* A cursor is the byte offset after the last complete line: ``read(path, after) -> (events, cursor)``. Bytes after the
  last newline (a torn line), unknown types and unknown fields are ignored.
* Only the events define the state of a job. They are not ordered relative to log lines, except that the end of a job is
  written after all of its log: a reader that reads the log after it has read the end gets the complete log.
* Essential events (``logfile._SYNCED``, final states) are synced before the next write; a power cut may lose others.
* Strict JSON in UTF-8. A metric that is not finite is the string ``"nan"``, ``"inf"`` or ``"-inf"``.

Types of events and their fields; all have ``v``, ``t`` (epoch seconds) and ``type``, those from a stored output also
``at``, the byte offset in that output (see ``clusters.base.Stream``):

=========  ==================================================================================================
state      ``state``, ``reason`` (a sentence, may be "")
phase      ``phase`` (one of core.events.PHASES), ``detail``; the start of a phase ends the previous one
queue      while the job is queued: the fields of core.plan.QueueView
handle     ``cluster``, ``data``, ``nonce``: needed to attach to the job after its supervisor died
resume     a new supervisor was started because the previous one had died; ``lines``: log lines so far
rank       ``rank``, ``status`` (waiting, started, ready, ended), and when known ``node``, ``host``, ``local_rank``,
           ``pid``, ``gpu``, ``compiling`` (whether torch.compile is running); at the end ``code`` (exit code) or
           ``signal`` (a name such as "KILL"), ``evidence``; a rank that returns to ``waiting`` has no process
metric     ``rank``, ``step``, ``values`` {name: number}; an event for several ``reports`` stores the values of
           the last one; with ``replace`` it replaces the rank's earlier reports of this and later steps
metric_source  ``names`` of metrics, ``from_output``: true if they are now parsed from the output of the ranks,
           false if ranks report them (reported values replace parsed ones)
progress   ``rank``, ``done`` (None: no longer known), ``total`` (None: unknown), ``unit`` (may be "")
note       ``level`` (info, warning, error), ``text``, ``code`` (for programs, may be "")
result     ``rank``, ``ok``, ``repr``, ``error`` (see worker.failure), ``problem`` (why the value is missing),
           ``collectives`` (worker.streams.collect_operations); a second one, after a rank has ended, contains details
           of its failure from the log (supervisor.postmortem)
averaged   all ranks use a wrapper that averages gradients, and have equal weights
staging    the fields of core.view.StagingView
world      ``node_count``, ``process_count``: size of the job from this start onwards, if it has changed
restart    all ranks are restarted: the fields of core.view.Restart, and ``queued`` if the job is queued again
stall      the fields of core.view.Stall; ``since`` is None if progress has resumed
stacks     the fields of core.view.StacksView
profile    the fields of core.view.ProfileView
picture    ``rank`` and the fields of core.view.Picture; the next log line names the file in its field ``picture``
stop       ``signal`` ("" if none was sent yet), ``by`` (user, failure, time, hang, end), ``next``, ``next_in``,
           ``kill_in`` (seconds), ``remaining`` (list of ranks)
=========  ==================================================================================================

Types of lines of the log:

=========  ==================================================================================================
log        ``rank`` (None: a line of the system), ``stream`` (out, err, sys), ``text``: whole lines, <= 64 kB; with
           ``redraws`` = n > 0 the text is one line that was redrawn n times with a carriage return and replaces the
           rank's open redrawn line of that stream; ``closed`` true ends that line
mark       ``rank``, ``stream``, ``cell`` (a number), ``label``, ``ended``: begin or end of a cell in the output of a
           persistent rank (see worker.serving), in order with the lines of that stream
position   ``rank``, ``stream``: a rank has sent many reports in its output without printing anything
attempt    all ranks are restarted; each attempt has a ``restart`` event
count      the number of ``lines`` before it and ``counts`` {rank: [lines, lines on stderr]}, at intervals of
           logfile.COUNT_INTERVAL_BYTES; also the first line of each part, with ``first``: lines of the first file
=========  ==================================================================================================
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

Event = dict[str, Any]
VERSION = 1
#: Longest text of one log event, in bytes before JSON escaping.
MAX_LOG_TEXT = 64 * 1024
#: Types that are written to the log rather than to the events.
LOG_TYPES = frozenset(("log", "mark", "position", "attempt", "count"))
#: Bytes of events that are read at a time.
_READ_CHUNK = 8 * 1024 * 1024


def read(path: Path, after: int = 0, limit: int = _READ_CHUNK) -> tuple[list[Event], int]:
    """Return the complete events from byte ``after`` onwards, and the cursor after the last of them.

    Read about ``limit`` bytes, and at least one complete line if there is one; call it until the cursor no longer
    changes. A missing file counts as empty. A line that is not a JSON object is skipped.
    """
    data = read_lines(path, after, limit)
    return decode(data), after + len(data)


def read_lines(path: Path, after: int, limit: int) -> bytes:
    """Return about ``limit`` bytes of complete lines from byte ``after`` onwards, or b"" if there are none."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(after)
            data = file.read(limit)
            while data and b"\n" not in data and (chunk := file.read(limit)):
                data += chunk
    except FileNotFoundError:
        return b""
    return data[: data.rfind(b"\n") + 1]


def get_size(path: Path) -> int:
    """Return the size of the events in bytes, or 0 if there are none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def read_batches(
    path: Path, after: int = 0, reader: Callable[[Path, int], tuple[list[Event], int]] = read
) -> Iterator[tuple[list[Event], int]]:
    """Yield (events, cursor) in batches of some megabytes until the end of the file."""
    while (batch := reader(path, after))[1] != after:
        yield batch
        after = batch[1]


def read_all(path: Path, after: int = 0) -> tuple[list[Event], int]:
    """Return all events from byte ``after`` onwards, and the cursor after the last of them."""
    batches = list(read_batches(path, after))
    return [event for batch, _ in batches for event in batch], batches[-1][1] if batches else after


_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode
_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder()


def encode(event: Event) -> bytes:
    """Return the event as one line of strict JSON. Raises ValueError for a non-finite number that is not a metric."""
    if event.get("type") == "metric":
        values = {name: v if math.isfinite(v) else repr(v) for name, v in event["values"].items()}
        event = {**event, "values": values}
        # Metrics are frequent, and msgspec is faster, but writes a number that is not finite as null.
        if math.isfinite(event["step"]):
            with contextlib.suppress(TypeError, UnicodeEncodeError):  # a subclass of float, a lone surrogate
                return _encoder.encode(event) + b"\n"
    # A lone surrogate cannot be encoded, but Python strings can contain it; its escape is also one in JSON.
    return _dumps(event).encode(errors="backslashreplace") + b"\n"


def decode(data: bytes) -> list[Event]:
    """Return the events of complete lines; a line that is not a JSON object with a type is skipped."""
    try:
        events = _decoder.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        events = []
        for line in data.splitlines():
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))  # accepts a lone surrogate
    return [event for event in events if type(event) is dict and type(event.get("type")) is str]


class Clock:
    """Epoch seconds of at least ``after`` that never decrease, so that a job cannot end before it began.

    After the system clock was set back, time follows the monotonic clock until the system clock is ahead again.
    """

    def __init__(self, after: float = 0.0) -> None:
        self._last_time, self._last_ticks = after, time.monotonic()

    def now(self) -> float:
        """Return the current time, rounded to a tenth of a millisecond."""
        ticks = time.monotonic()
        self._last_time, self._last_ticks = max(time.time(), self._last_time + ticks - self._last_ticks), ticks
        return round(self._last_time, 4)


class State(StrEnum):
    """The state of a job, in the order in which it may change; its value is used in events, views and JSON."""

    QUEUED = "queued"
    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    CANCELING = "canceling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    LOST = "lost"

    @property
    def ended(self) -> bool:
        """Whether this is a final state."""
        return self in ENDED


ENDED = frozenset({State.COMPLETED, State.FAILED, State.CANCELED, State.LOST})
#: The phases of a job in the order in which a panel shows them.
PHASES = ("capture", "stage", "start", "rendezvous", "train", "collect", "clean")
