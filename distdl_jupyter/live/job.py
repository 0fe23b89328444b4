"""A job that pages subscribe to, read once for all of them.

* Its files are read in small steps by one thread at a time: state and metrics first, then the end of the log. If the
  log grows faster than it can be read, the reader skips ahead to its end (see ``core.log``).
* A message is created once for all pages with the same subscription. ``live.subscriber`` tracks the sent messages.
* This module does not depend on HTTP and never waits.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.events import State
from distdl_jupyter.core.log import FoldedRow
from distdl_jupyter.core.store import JobStore, is_id
from distdl_jupyter.jobs.reader import PageReader
from distdl_jupyter.live.messages import CurveMessage, CurveRequest, JobMessage, LogMessage, ResourcesMessage
from distdl_jupyter.views import card, curve, job_page, resources, steps
from distdl_jupyter.views.job_table import choose_metric
from distdl_jupyter.views.wire import encode, from_fields

#: Maximum number of log rows in memory.
MAX_LOG_ROWS = 100_000
#: Maximum number of rows in the first message about a log.
_MAX_FIRST_ROWS = 1000
#: Maximum number of rows in a later message about a log.
_MAX_ROWS = 2000
#: A page that is more rows behind than this skips to the newest rows, because older rows would delay these by seconds.
MAX_LAG_ROWS = 4000
#: Number of rows that a page gets after it has skipped rows.
SKIP_TO_ROWS = 300
#: Maximum duration of a poll in seconds before the state is known.
_FIRST_POLL_SECONDS = 0.2
#: Maximum duration of a later poll in seconds.
_POLL_SECONDS = 0.05
#: Seconds for which a message that contains the time is reused.
_REUSE_SECONDS = 0.2
#: Maximum number of cached messages.
_MAX_CACHED_MESSAGES = 16


@dataclass(frozen=True, slots=True)
class WireMessage:
    """A message as JSON. ``key`` changes with the content, except for the time.

    ``mark`` is the revision of the log in a log message, or the time of a job message in ms.
    """

    data: bytes
    key: str
    mark: int = 0
    has_more: bool = False


class LiveJob:
    """A job and the messages about it. Thread-safe. ``is_deleted`` is also true if the job never existed."""

    def __init__(self, id_: str, capacity: int = MAX_LOG_ROWS) -> None:
        self.id = id_
        self.is_deleted = not is_id(id_)
        self._capacity = capacity
        self._lock = threading.Lock()
        self._reader: PageReader | None = None
        #: Messages by subject, each with the version of the data that it was created from.
        self._cache: dict[object, tuple[object, WireMessage]] = {}

    # ---- reading ----

    def poll(self) -> bool:
        """Read new data for a short time; return whether there was any. Raises OSError."""
        try:
            if self._reader is None and not self.is_deleted:
                self._reader = PageReader(JobStore().find(self.id), tail=self._capacity)
            if self.is_deleted or not self._open_reader.folder.spec_file.exists():
                self.is_deleted = True
                return False
            seconds = _POLL_SECONDS if self.has_first_events else _FIRST_POLL_SECONDS
            return not self.is_settled and self._open_reader.advance(seconds, self._lock)
        except JobNotFound:
            self.is_deleted = True
            return False

    @property
    def _open_reader(self) -> PageReader:
        assert self._reader is not None, "the job was polled"
        return self._reader

    @property
    def version(self) -> int:
        """A number that increases with each read of new data."""
        return 0 if self._reader is None else self._reader.version

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended."""
        return self._reader is not None and self._reader.view.state.ended

    @property
    def has_first_events(self) -> bool:
        """Whether the state and the curves have been read completely at least once."""
        return self._reader is not None and self._reader.has_first_events

    @property
    def has_first_log(self) -> bool:
        """Whether the log has been read up to its end at least once, so that it can be sent to pages."""
        return self._reader is not None and self._reader.has_first_log

    @property
    def is_settled(self) -> bool:
        """Whether the job has ended and all its data was read."""
        return self.has_ended and self._open_reader.is_idle

    def call_with_reader(self, function: Callable[[PageReader], Any]) -> Any:
        """Call a function with the reader while reading is paused, and return its result."""
        with self._lock:
            return function(self._open_reader)

    # ---- messages ----

    def encode_state(self) -> WireMessage:
        """Return the message about the job itself."""
        with self._lock:
            cached = self._cache.get("job")
            if cached and cached[0] == self.version and time.time() < cached[1].mark / 1000 + _REUSE_SECONDS:
                return cached[1]
            message = self._encode_state(time.time())
            self._cache["job"] = (self.version, message)
            return message

    def _encode_state(self, now: float) -> WireMessage:
        view = self._open_reader.view
        job_card = card.make_card(view, now, has_checkpoints=self._open_reader.has_checkpoints)
        ranks = tuple(job_page.make_rank_row(rank) for rank in view.ranks)
        timeless_card = replace(job_card, now=0.0, remaining=None)
        timeless = JobMessage(self.id, timeless_card, curve.list_metrics(view), ranks, "", "job")
        key = hashlib.blake2b(encode(timeless), digest_size=8).hexdigest()
        return WireMessage(encode(replace(timeless, card=job_card, key=key)), key, mark=int(now * 1000))

    @property
    def log_revision(self) -> int:
        """The current revision of the log."""
        return self._open_reader.log.revision

    def encode_log(self, revision: int) -> WireMessage:
        """Return the message with the log rows changed after a revision.

        The message starts with the newest rows if the revision is 0, unknown or far behind.
        """
        with self._lock:
            return self._get_cached(("log", revision), self.log_revision, lambda: self._encode_log(revision))

    def _encode_log(self, revision: int) -> WireMessage:
        log = self._open_reader.log
        if not log.has_revision(revision):
            return self._encode_newest_rows(SKIP_TO_ROWS if revision else _MAX_FIRST_ROWS)
        rows, revision, remaining = log.get_changes(revision, _MAX_ROWS)
        if remaining > MAX_LAG_ROWS:
            return self._encode_newest_rows(SKIP_TO_ROWS)
        return self._encode_rows(rows, revision, whole=False, has_more=remaining > 0)

    def _encode_newest_rows(self, count: int) -> WireMessage:
        log = self._open_reader.log
        return self._encode_rows(log.get_rows(log.next_number - count, log.next_number), log.revision, whole=True)

    def _encode_rows(self, rows: list[FoldedRow], revision: int, *, whole: bool, has_more: bool = False) -> WireMessage:
        changes = job_page.make_log_changes(self._open_reader.view, self._open_reader.log, rows)
        message = from_fields(LogMessage, changes, id=self.id, mark=revision, whole=whole, type="log")
        return WireMessage(encode(message), str(revision), revision, has_more)

    def get_curve_key(self, request: CurveRequest) -> str:
        """Return the key of the current curve, or "" if no value was reported yet."""
        with self._lock:
            store = self._open_reader.curves
            metric = request.metric or choose_metric(list(store.metrics))
            count = store.get(metric).count
        return f"{metric} {count}" if count else ""

    def encode_curve(self, request: CurveRequest, key: str) -> WireMessage:
        """Return the message about a curve; ``key`` is the result of ``get_curve_key``."""
        request = msgspec.structs.replace(request, key="")
        with self._lock:
            return self._get_cached(request, key, lambda: self._encode_curve(request, key))

    def _encode_curve(self, request: CurveRequest, key: str) -> WireMessage:
        reader, metric = self._open_reader, key.rpartition(" ")[0]
        is_parsed, source_job = metric in reader.view.output_metrics, reader.source_job
        view = curve.make_curve(reader.curves, metric, mode=request.mode, source_job=source_job, from_output=is_parsed)
        message = from_fields(CurveMessage, view, id=self.id, requested=request.metric, key=key, type="curve")
        return WireMessage(encode(message), key)

    def get_resources_key(self) -> str:
        """Return the key of the current resource usage and step times, or "" if there are none."""
        with self._lock:
            samples, steps = self._open_reader.resources.cursor, self._open_reader.steps.cursor
        return f"{samples} {steps} {self.has_ended}" if samples or steps else ""

    def encode_resources(self, key: str) -> WireMessage:
        """Return the message about resource usage and step times."""
        with self._lock:
            return self._get_cached("resources", key, lambda: self._encode_resources(key))

    def _encode_resources(self, key: str) -> WireMessage:
        reader = self._open_reader
        usage = resources.make_resources(reader.resources, running=reader.view.state is State.RUNNING)
        hosts = {rank.rank: rank.host or "" for rank in reader.view.ranks}
        times = reader.steps.get_times(hosts, ended=self.has_ended)
        step_time = steps.make_job_time(times, 0) if times.rows else None
        return WireMessage(
            encode(from_fields(ResourcesMessage, usage, id=self.id, key=key, type="resources", time=step_time)), key
        )

    def _get_cached(self, subject: object, version: object, create: Callable[[], WireMessage]) -> WireMessage:
        """Return the message about a subject, cached while ``version`` is unchanged. The caller holds the lock."""
        cached = self._cache.get(subject)
        if cached is None or cached[0] != version:
            if len(self._cache) > _MAX_CACHED_MESSAGES:
                self._cache.clear()
            cached = self._cache[subject] = (version, create())
        return cached[1]
