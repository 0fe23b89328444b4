"""Reads a job while it runs: new events after a cursor, and whether a supervisor is still writing them.

Reading has one side effect: a reader that detects an unfinished job without a writer becomes its writer. It stops the
job's remaining processes on this machine and appends the final state, or passes the lock to a new supervisor if the job
runs on other machines. A writer on another host is never considered dead, because its lock may not be visible here (see
``core.files``).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import shlex
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter import permissions
from distdl_jupyter.core import events, files, logfile, registry, tracking
from distdl_jupyter.core.errors import DistDLError, JobNotFound, LaunchFailed
from distdl_jupyter.core.events import Event, State
from distdl_jupyter.core.files import JobLock, get_last_write
from distdl_jupyter.core.humanize import short_id
from distdl_jupyter.core.log import MAX_ROWS, FoldedLog, LogWindow
from distdl_jupyter.core.logfile import EventWriter
from distdl_jupyter.core.resources import ResourceHistory
from distdl_jupyter.core.series import MetricStore, SourceJob
from distdl_jupyter.core.step_times import StepTimesReader
from distdl_jupyter.core.store import JobFolder, is_id
from distdl_jupyter.core.view import JobView
from distdl_jupyter.supervisor import control, resume

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from distdl_jupyter.core.files import Holder

#: Seconds without events after which a reader checks that the writer is alive.
_WRITER_TIMEOUT_SECONDS = 1.0
#: Seconds between two polls of the file.
POLL_SECONDS = 0.1
#: Maximum bytes of events in one read.
_BATCH_BYTES = 8 * 1024 * 1024
#: Maximum bytes of events in one read for pages.
_PAGE_BATCH_BYTES = 512 * 1024
#: Maximum bytes of samples in one read for pages. Samples are slower to decode.
_PAGE_SAMPLE_BYTES = 128 * 1024
#: Number of newest events that are checked for several supervisors that died in a row.
_MAX_LATEST_EVENTS = 100
#: Numbers of step records whose mean is shown while a job runs: for few ranks and for many ranks. The records of all
#: ranks are compared for each message, so they are limited to ``_MAX_STEP_TIMES`` in total.
_MAX_RECORDS, _MIN_RECORDS, _MAX_STEP_TIMES = 100, 20, 20_000


class UntrustedError(PermissionError):
    """Another user could have written to a job's folder, so none of its processes is started, signaled or ended."""


class JobReader:
    """Reads a job's events and folds them into ``view``, up to ``cursor``.

    With ``curves=True``, it folds metrics into ``self.curves``. With ``lines``, it returns the log lines as events,
    after the other events; otherwise it only counts them.
    """

    def __init__(self, folder: JobFolder, *, curves: bool = False, lines: bool = False) -> None:
        self.folder = folder
        self.spec = folder.read_spec()
        self.view = JobView.from_spec(self.spec)
        self.curves = MetricStore()
        self._has_curves, self._lines = curves, lines
        #: Read positions in the events and in the log, in bytes.
        self.cursor = self.log_cursor = 0
        self._received_at = 0.0

    def read(self) -> list[Event]:
        """Return the next events (a few megabytes at most, [] if there are none) and fold them into ``view``."""
        batch = self._read_next()
        return self.read() if self.check_writer(received=bool(batch)) else batch

    def _read_next(self) -> list[Event]:
        while True:
            previous = (self.cursor, self.log_cursor)
            batch = self.read_once()
            if batch or (self.cursor, self.log_cursor) == previous:
                return batch

    def read_once(self, max_bytes: int = _BATCH_BYTES) -> list[Event]:
        """Read about ``max_bytes`` bytes of events and the new log lines, which are only counted without ``lines``."""
        batch: list[Event] = []
        if events.get_size(self.folder.events) > self.cursor:
            # Make few calls while there are no new events: each one yields to the main thread of a busy kernel.
            batch, self.cursor = events.read(self.folder.events, self.cursor, max_bytes)
        if self._lines:
            lines, self.log_cursor = logfile.read(self.folder.log, self.log_cursor)
            batch += lines
        for event in batch:
            self.fold(event)
        if not self._lines:
            self.count()
        return batch

    def fold(self, event: Event) -> None:
        """Apply an event to the view and the curves. Raises JobNotFound if its format is unknown."""
        try:
            self.view.apply(event)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._make_unreadable_error(self.folder.events, error) from error
        if self._has_curves:
            self.curves.apply(event)

    def count(self) -> None:
        """Count the lines of the log. Raises JobNotFound if it has an unknown format."""
        try:
            self.log_cursor = logfile.count_lines(self.folder.log, self.log_cursor, self.view)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._make_unreadable_error(self.folder.log, error) from error

    def _make_unreadable_error(self, file: Path, error: Exception) -> JobNotFound:
        return JobNotFound(
            f"Job {self.folder.id} cannot be loaded: {file.name} has an unknown format "
            f"({type(error).__name__}: {error}).",
            code="job-events-invalid",
            hint="Another version of distdl_jupyter may have written it. Use that version, or delete the job: "
            f"rm -r {shlex.quote(str(self.folder.path))}",
        )

    def check_writer(self, *, received: bool) -> bool:
        """Check that a running job has a writer if there were no events for ``_WRITER_TIMEOUT_SECONDS``.

        ``received`` says whether there are new events. Return True if this call recorded the final state, which can
        then be read.
        """
        now = time.monotonic()
        if received:
            if self._received_at:  # old events do not prove that the writer is alive
                written = get_last_write(self.folder.events, self.folder.log)
                self._received_at = now - (max(0.0, time.time() - written) if written else 0.0)
            if self.view.remote_writer is not None:
                self._record_writer()
        elif not self.view.state.ended and now - self._received_at > _WRITER_TIMEOUT_SECONDS:
            self._received_at = now
            return self._finalize()
        return False

    def _finalize(self) -> bool:
        if not self.folder.path.exists():
            raise JobNotFound(
                f"Job {self.folder.id} no longer exists: its folder was deleted.",
                code="job-folder-vanished",
                hint="If it was running, its processes were stopped.",
            )
        try:
            ended = finalize_abandoned(self.folder)
        except OSError as error:
            # A reader without write access cannot end the job; try again after the next timeout.
            if self.folder.read_supervisor().is_dead and (
                error.errno == errno.EROFS or isinstance(error, UntrustedError)
            ):
                self.fold(_make_unsaved_end(error))
            ended = False
        self._record_writer()
        return ended

    def _record_writer(self) -> None:
        """Record the writer in the view if it runs on a host where it cannot be checked from here."""
        writer = self.folder.read_supervisor()
        self.view.remote_writer = writer if writer.is_on_other_host and not self.view.state.ended else None

    def catch_up(self) -> JobView:
        """Read everything written so far and return the view."""
        while self.read():
            pass
        return self.view

    def follow(self, interval: float = POLL_SECONDS) -> Iterator[list[Event]]:
        """Yield batches of events until the job has ended and all of them were read."""
        while True:
            batch = self.read()
            if batch:
                yield batch
            elif self.view.state.ended:
                return
            else:
                time.sleep(interval)

    @functools.cached_property
    def source_job(self) -> SourceJob | None:
        """The job that this one was resumed from, with its curves, or None."""
        if not is_id(self.spec.resumed_from):
            return None
        try:
            reader = JobReader(JobFolder(self.folder.path.with_name(self.spec.resumed_from)), curves=True)
            reader.catch_up()
        except DistDLError:
            return None
        return SourceJob(reader.curves, short_id(self.spec.resumed_from), self.spec.forked_at)


class PageReader(JobReader):
    """Reads a job in small steps for pages: first the events, then the newest log rows, then new data.

    State and metrics never wait for the log, because ``step`` reads them first. ``log`` holds the newest ``tail``
    rows, and ``window`` reads earlier ones. ``resources`` is the usage of ranks and machines. ``steps`` are the newest
    steps.
    """

    def __init__(self, folder: JobFolder, *, tail: int = MAX_ROWS) -> None:
        super().__init__(folder, curves=True)
        self.window = LogWindow(folder.log, self.view.process_count, tail)
        #: Whether all initial events and the initial log were read.
        self.has_first_events = self.has_first_log = False
        #: ``version`` increases with every step that reads data; ``is_idle`` is true after a step that read none.
        self.version, self.is_idle = 0, False
        self.resources = ResourceHistory(folder.resources)
        max_records = _MAX_STEP_TIMES // max(1, self.view.process_count)
        self.steps = StepTimesReader(folder.steps, max(_MIN_RECORDS, min(_MAX_RECORDS, max_records)))
        self._first_log_size = 0

    @property
    def log(self) -> FoldedLog:
        """The newest log rows. It is replaced when the reader skips ahead."""
        return self.window.log

    @property
    def has_checkpoints(self) -> bool:
        """Whether the job has ended and left checkpoints to resume from."""
        return self.view.state.ended and self.folder.has_checkpoints

    def advance(self, seconds: float, lock: AbstractContextManager[object] | None = None) -> bool:
        """Read new data for about ``seconds`` seconds; return whether there was any. Raises JobNotFound.

        ``lock`` is held during each step and released between steps.
        """
        previous_version, deadline = self.version, time.monotonic() + seconds
        while True:
            with lock or contextlib.nullcontext():
                self.is_idle = not self.step()
                self.version += not self.is_idle
            if self.is_idle or time.monotonic() > deadline:
                break
            if lock is not None:
                time.sleep(0.0005)
        ended = self.check_writer(received=self.version > previous_version)
        return ended or self.version > previous_version

    def step(self) -> bool:
        """Read one batch of new data; return whether there was any."""
        previous = self.cursor
        self.read_once(_PAGE_BATCH_BYTES)
        if not self.has_first_events and self.cursor > previous:
            return True
        if not self.has_first_events:
            self.has_first_events, self._first_log_size = True, logfile.get_size(self.folder.log)
        has_new_rows = self.window.read_more(self.view)
        self.has_first_log = self.has_first_log or not has_new_rows or self.window.cursor >= self._first_log_size
        samples = self.resources.read(_PAGE_SAMPLE_BYTES)
        has_steps = self.steps.read()
        return has_new_rows or self.cursor > previous or bool(samples) or has_steps

    def count(self) -> None:
        """Do nothing: the log window counts the lines that it reads."""

    def catch_up(self) -> JobView:
        """Read everything written so far and return the view."""
        while self.step():
            pass
        if self.check_writer(received=False):
            self.catch_up()
        return self.view


def finalize_abandoned(folder: JobFolder, *, lost_supervisor: Holder | None = None) -> bool:
    """End a job that no longer has a writer; return True if this call recorded its final state.

    Do nothing while a writer is alive, or may be alive on a host other than ``lost_supervisor.host``. Raises OSError,
    UntrustedError.
    """
    if not folder.path.exists():
        return False
    if reason := permissions.find_refusal(folder.path.stat()):
        raise UntrustedError(f"{folder.path} {reason}")
    lock = JobLock.acquire(folder.lock, of_other_host=lost_supervisor is not None)
    if lock is None:
        return False
    try:
        reader = JobReader(folder)
        previous, latest = -1, list[Event]()
        while reader.cursor != previous:
            previous = reader.cursor
            latest = (latest + reader.read_once())[-_MAX_LATEST_EVENTS:]
        view, spec = reader.view, reader.spec
        if view.state.ended:
            return False
        if (_is_remote(spec.cluster) or resume.is_waiting(latest)) and not resume.is_unrecoverable(latest, view.lines):
            # Contacting other machines takes seconds; a new supervisor does that and reattaches to the job if possible.
            _write(folder, "resume", lines=view.lines)
            with contextlib.suppress(OSError, LaunchFailed):
                control.start_supervisor(folder, lock, {}, python=spec.python)
                return False
        for type_, fields in resume.build_end_events(folder, view, spec.cluster, lost_supervisor):
            _write(folder, type_, **fields)
        with contextlib.suppress(OSError):
            names = [record.tracker for record in tracking.read_records(folder.path)]
            control.start_trackers(folder, names, detached=True)
        return True
    finally:
        lock.release()


def _make_unsaved_end(error: OSError) -> Event:
    """Return the unsaved final state of a job without a writer whose folder is read-only."""
    reason = f"{error.strerror}: {error.filename}" if error.strerror else str(error)
    text = (
        f"The job's supervisor is gone, and the end of the job could not be recorded ({reason}). The log up to that "
        "point is kept."
    )
    return {"v": events.VERSION, "t": time.time(), "type": "state", "state": State.LOST.value, "reason": text}


def _write(folder: JobFolder, type_: str, **fields: Any) -> None:
    files.free_reserve(folder.reserve)
    writer = EventWriter(folder.events)
    try:
        writer.write(type_, **fields)
    finally:
        writer.close()


def _is_remote(kind: str) -> bool:
    try:
        return bool(registry.get("clusters", kind).is_remote)
    except DistDLError:
        return False
