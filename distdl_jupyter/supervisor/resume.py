"""The state that a new supervisor of a job needs: how the job was started, and the read positions of its output.

It is read from the events; ``build_end_events`` ends a job that no supervisor can resume.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.events import LOG_TYPES, Event, State
from distdl_jupyter.core.files import Holder
from distdl_jupyter.core.humanize import date_and_clock, plural, short_id
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.view import JobView

#: Number of supervisors that may die in a row without a new event or log line of the job.
_MAX_TRIES = 3
#: Code of the note that a supervisor has reattached to the job.
REATTACHED = "reattached"
#: Frequent events; only the last of several in a row is stored.
_FREQUENT = ("metric", "progress")
#: A rank and one of its streams; output without a rank, such as a launcher's, is (-1, "sys").
StreamKey = tuple[int, str]


def get_stream_key(event: Event) -> StreamKey:
    """Return the stream of an event or a log line. Reports are on the stream "out"."""
    rank = event.get("rank")
    stream = str(event.get("stream")) if event["type"] in LOG_TYPES else "out"
    return rank if isinstance(rank, int) else -1, stream


class History:
    """The state from the events and the log so far.

    Both files contain the read positions of the ranks' stored output. When a supervisor dies, the events may be ahead
    of the log, because they are written first. So the new supervisor resumes at the position of the log; reports that
    are read again are already in the events.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        #: Read positions of each stream in bytes, according to the events of this attempt and to the log.
        self.event_positions: dict[StreamKey, int] = {}
        self._log_positions: dict[StreamKey, int] = {}
        #: Number of restarts that are in the events but not in the log, because the supervisor died in between.
        self.unlogged_restarts = 0

    def add(self, event: Event) -> None:
        """Add the next event or log line; the events come before the lines."""
        is_line = event["type"] in LOG_TYPES
        if not is_line:
            if self.events and event["type"] in _FREQUENT and self.events[-1]["type"] in _FREQUENT:
                self.events.pop()
            self.events.append(event)
        positions = self._log_positions if is_line else self.event_positions
        if event["type"] in ("restart", "attempt"):
            positions.clear()  # each attempt has its own output files
            self.unlogged_restarts = max(0, self.unlogged_restarts + (-1 if is_line else 1))
        if isinstance(position := event.get("at"), int):
            positions[get_stream_key(event)] = max(position, positions.get(get_stream_key(event), 0))

    @property
    def positions(self) -> dict[StreamKey, int]:
        """Read position of each stream of this attempt, in bytes."""
        return {} if self.unlogged_restarts else self._log_positions


def find_last_start(history: Sequence[Event]) -> Event | None:
    """Return the last ``handle`` or ``restart`` event, or None if the job was not started.

    After a ``restart``, no rank has been started yet. The ``begun`` of a ``handle`` is False if it was recorded during
    placement, before any rank was started.
    """
    return next((event for event in reversed(history) if event["type"] in ("handle", "restart")), None)


def is_waiting(history: Sequence[Event]) -> bool:
    """Return whether the job was still queued: nothing was started, so it can start over."""
    types = {event["type"] for event in history}
    is_queued = all(event.get("state") == State.QUEUED for event in history if event["type"] == "state")
    return "queue" in types and is_queued and not types & {"handle", "rank", "restart"}


def is_unrecoverable(history: Sequence[Event], lines: int) -> bool:
    """Return whether several supervisors died in a row without any event or log line of the job between them.

    ``lines`` is the current number of log lines.
    """
    others = (event for event in reversed(history) if event.get("code") != REATTACHED)
    tries = takewhile(lambda event: event["type"] == "resume" and event.get("lines") == lines, others)
    return sum(1 for _ in tries) >= _MAX_TRIES


def can_attach(folder: JobFolder) -> bool:
    """Return whether the job survives its supervisor, so that a new one can reattach."""
    try:
        return bool(registry.get("clusters", folder.read_spec().cluster).can_attach)
    except DistDLError:
        return False


def build_end_events(
    folder: JobFolder, view: JobView, cluster: str, lost_supervisor: Holder | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Stop the remaining processes of a job whose supervisor died, and yield type and fields of the events to write.

    A job is completed if all its ranks have delivered results, even if a power cut has truncated its log; otherwise it
    is lost. With ``lost_supervisor``, a user has confirmed that the host of this supervisor no longer exists, so there
    is no process to stop.
    """
    if lost_supervisor is None:
        code, reason = "supervisor-killed", "The job's supervisor process was killed or crashed."
        try:
            killed = registry.get("clusters", cluster).sweep(view.id, (view.handle or {}).get("data") or {})
            stopped = f"{plural(len(killed), 'process')} of the job {'was' if len(killed) == 1 else 'were'} stopped."
            reason += f" {stopped if killed else 'No process of the job is running.'}"
        except DistDLError as error:
            reason += f" Its ranks could not be checked: {str(error).rstrip('.')}."
        with contextlib.suppress(OSError):
            lines = folder.supervisor_log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            reason += f' Its last log line: "{lines[-1][:160].rstrip(".")}".' if lines else ""
    else:
        code, host = "supervisor-host-gone", lost_supervisor.host
        reason = f"The job was marked as lost because {host}, the host of its supervisor, is gone for good."
        reason += f" The supervisor's last heartbeat was at {date_and_clock(lost_supervisor.last_heartbeat)}."
    values = [folder.get_result_path(rank.rank) for rank in view.ranks]
    if view.state is State.CANCELING or not all(value.exists() for value in values):
        yield "state", {"state": State.LOST.value, "reason": f"{reason}{_build_rerun_hint(folder)}", "code": code}
        return
    for rank, value in zip(view.ranks, values, strict=True):
        if rank.ok is None:
            yield "result", {"rank": rank.rank, "ok": True, "repr": "", "bytes": value.stat().st_size}
    text = "The supervisor ended before it could record the end of the job, but all ranks have returned their values."
    yield "note", {"level": "info", "text": f"{text} The job is completed.", "code": "done-without-supervisor"}
    yield "state", {"state": State.COMPLETED.value, "reason": ""}


def _build_rerun_hint(folder: JobFolder) -> str:
    """Return the command that reruns the job; persistent ranks and runs of a study have other commands."""
    spec, id_ = folder.read_spec(), short_id(folder.id)
    if spec.kind == "ranks" or spec.group is not None:
        return ""
    remedy = f"continue from its checkpoints, run distdl resume {id_}"
    return f" To {remedy if folder.has_checkpoints else f'start it again, run distdl rerun {id_}'}"
