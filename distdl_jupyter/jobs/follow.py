"""Reading a job while it lives: new events from a cursor on, and the proof that somebody still writes them.

Reading is free of side effects with one exception that the design asks for: whoever finds a job without an end and
without a writer has thereby become its writer. It ends what is left of the job here and appends its end, or hands
the lock to a new supervisor where the job runs on other machines. A writer of another host is never found to be gone:
its lock may not be visible here (see core.locks).
"""

from __future__ import annotations

import contextlib
import errno
import shlex
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import disk_reserve, events, logfile, registry, tracking
from distdl_jupyter.core.errors import DistDLError, JobNotFound, LaunchFailed
from distdl_jupyter.core.events import Event, EventWriter, JobLock
from distdl_jupyter.core.state import State
from distdl_jupyter.core.view import JobView
from distdl_jupyter.node import permissions
from distdl_jupyter.supervisor import control, resume

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from distdl_jupyter.core.locks import Holder
    from distdl_jupyter.core.store import JobFolder

#: Seconds of silence after which the writer's proof of life is asked for.
_SILENCE = 1.0
#: Seconds between two looks at the file.
POLL = 0.1
#: Bytes that are looked through at a time.
_LOOK = 8 * 1024 * 1024
#: Last events, in which several supervisors that died in a row can be told.
_LATEST = 100


class Untrusted(PermissionError):
    """Another user could have written a job's folder: nothing that stands there is started, signaled or ended."""


class _Reader:
    """One reader's place in a job's events and log, with the view up to there. ``_next`` says how it reads."""

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        self.spec = folder.spec()
        self.view = JobView.of(self.spec)
        #: Bytes of the events and of the log that were read.
        self.cursor = self.log_cursor = 0
        self._received_at = 0.0

    def read(self) -> list[Event]:
        """Return the next events (some megabytes at most) and fold them into ``view``; [] when nothing is new."""
        found = self._next()
        return self.read() if self.listen(received=bool(found)) else found

    def listen(self, *, received: bool) -> bool:
        """Note whether something was received; after some silence of a living job ask whether it still has a writer.

        Returns True when this call wrote the job's end, which is there to be read then.
        """
        now = time.monotonic()
        if received:
            if self._received_at:  # what stood there before anybody listened is no sign of life
                self._received_at = now - self._age()
            if self.view.elsewhere is not None:
                self._note_writer()
        elif not self.view.state.ended and now - self._received_at > _SILENCE:
            self._received_at = now
            return self._asked()
        return False

    def _age(self) -> float:
        """Return how many seconds ago the job was written last: who looks once only hears what was said long ago."""
        return max(0.0, time.time() - written) if (written := self.folder.written) else 0.0

    def _asked(self) -> bool:
        if not self.folder.path.exists():
            raise JobNotFound(
                f"Job {self.folder.id} no longer exists: its folder was deleted.",
                code="job-folder-vanished",
                hint="If it was running, its processes were stopped.",
            )
        try:
            ended = finalize_abandoned(self.folder)
        except OSError as error:
            # Where nobody can write, nobody can end it either; it is asked again later.
            if self.folder.supervisor().is_dead and (error.errno == errno.EROFS or isinstance(error, Untrusted)):
                self.fold(_unwritten(error))
            ended = False
        self._note_writer()
        return ended

    def _note_writer(self) -> None:
        """Note in the view where the writer is when it cannot be seen from here."""
        writer = self.folder.supervisor()
        self.view.elsewhere = writer if writer.is_elsewhere and not self.view.state.ended else None

    def _next(self) -> list[Event]:
        raise NotImplementedError

    def fold(self, event: Event) -> None:
        """Take one event into what this reader keeps. Raises JobNotFound for one in an unknown format."""
        try:
            self.view.apply(event)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._unreadable(self.folder.events, error) from error

    def _unreadable(self, file: Path, error: Exception) -> JobNotFound:
        return JobNotFound(
            f"Job {self.folder.id} cannot be loaded: {file.name} has an unknown format "
            f"({type(error).__name__}: {error}).",
            code="job-events-invalid",
            hint="Another version of distdl_jupyter may have written it. Use that version, or delete the job: "
            f"rm -r {shlex.quote(str(self.folder.path))}",
        )

    def catch_up(self) -> JobView:
        """Read all there is now and return the view."""
        while self.read():
            pass
        return self.view

    def follow(self, poll: float = POLL) -> Iterator[list[Event]]:
        """Yield batches of events until the job has ended and everything was read."""
        while True:
            found = self.read()
            if found:
                yield found
            elif self.view.state.ended:
                return
            else:
                time.sleep(poll)


class Follower(_Reader):
    """A reader of all events and of all lines of the log, some megabytes of each at a time, the events first."""

    def _next(self) -> list[Event]:
        while True:
            began = (self.cursor, self.log_cursor)
            found, self.cursor = events.read(self.folder.events, self.cursor)
            lines, self.log_cursor = logfile.read(self.folder.log, self.log_cursor)
            for event in (*found, *lines):
                self.fold(event)
            if found or lines or (self.cursor, self.log_cursor) == began:
                return found + lines


class SummaryReader(_Reader):
    """A reader of the view alone, which only counts the lines of the log; ``read`` and ``follow`` give the events."""

    def _next(self) -> list[Event]:
        while True:
            began = (self.cursor, self.log_cursor)
            found = self.look()
            if found or (self.cursor, self.log_cursor) == began:
                return found

    def look(self, most: int = _LOOK) -> list[Event]:
        """Read about ``most`` bytes once, whatever stands there."""
        found: list[Event] = []
        if events.size(self.folder.events) > self.cursor:
            # Few calls while nothing is new: each lets a busy kernel's main thread go first.
            found, self.cursor = events.read(self.folder.events, self.cursor, most)
        for event in found:
            self.fold(event)
        self.count()
        return found

    def count(self) -> None:
        """Count the lines of the log. Raises JobNotFound where it has an unknown format."""
        try:
            self.log_cursor = logfile.count(self.folder.log, self.log_cursor, self.view)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._unreadable(self.folder.log, error) from error


def finalize_abandoned(folder: JobFolder, *, gone: Holder | None = None) -> bool:
    """End a job that has no writer any more; True when this call wrote its end.

    Nothing happens while a writer lives, or may live on another host: unless that is the one that is known to be
    ``gone``. Raises OSError, Untrusted.
    """
    if not folder.path.exists():
        return False
    if reason := permissions.refusal(folder.path.stat()):
        raise Untrusted(f"{folder.path} {reason}")
    lock = JobLock.acquire(folder.lock, of_other_host=gone is not None)
    if lock is None:
        return False
    try:
        reader = SummaryReader(folder)
        before, latest = -1, list[Event]()
        while reader.cursor != before:
            before = reader.cursor
            latest = (latest + reader.look())[-_LATEST:]
        last, spec = reader.view, reader.spec
        if last.state.ended:
            return False
        if (_far(spec.cluster) or resume.is_waiting(latest)) and not resume.is_hopeless(latest, last.lines):
            # Other machines take seconds to ask; a new supervisor does it, and finds the job again where it can.
            _write(folder, "resume", lines=last.lines)
            with contextlib.suppress(OSError, LaunchFailed):
                control.start_supervisor(folder, lock, {}, python=spec.python)
                return False
        for type_, fields in resume.end_events(folder, last, spec.cluster, gone):
            _write(folder, type_, **fields)
        if tracking.of_job(folder.path):
            from distdl_jupyter.tracking import runs  # imported late: few jobs are lost

            with contextlib.suppress(OSError):
                runs.bring_up_to_date(folder)
        return True
    finally:
        lock.release()


def _unwritten(error: OSError) -> Event:
    """Return the end, which stands nowhere, of a job without a writer in whose folder nothing is written any more."""
    why = f"{error.strerror}: {error.filename}" if error.strerror else str(error)
    reason = (
        f"The job's supervisor is gone, and the end of the job could not be recorded ({why}). The log up to that point "
        "is kept."
    )
    return {"v": events.VERSION, "t": time.time(), "type": "state", "state": State.LOST.value, "reason": reason}


def _write(folder: JobFolder, type_: str, **fields: Any) -> None:
    disk_reserve.give(folder.reserve)
    writer = EventWriter(folder.events)
    try:
        writer.write(type_, **fields)
    finally:
        writer.close()


def _far(kind: str) -> bool:
    try:
        return bool(registry.get("clusters", kind).far)
    except DistDLError:
        return False
