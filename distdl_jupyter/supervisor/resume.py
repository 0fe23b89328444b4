"""The state that a second supervisor of a job needs: how the first one started it, how far it read, and what is left.

All of it is read from the events; ``end_events`` ends a job that no supervisor can resume.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.events import LOG_TYPES
from distdl_jupyter.core.humanize import date_and_clock, plural, short_id
from distdl_jupyter.core.state import State

if TYPE_CHECKING:
    from distdl_jupyter.core.events import Event
    from distdl_jupyter.core.locks import Holder
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.core.view import JobView

#: Supervisors that may die one after another without anything new from the job.
_TRIES = 3
#: The code of the note that a supervisor writes when it has reattached to the job.
REATTACHED = "found-again"


class Handle(NamedTuple):
    """What ``Run.handle`` gave, and the nonce that marks the ranks' reports.

    ``begun`` is False for what was recorded while the job was placed: no rank was started then.
    """

    data: dict[str, Any]
    nonce: str
    begun: bool = True


#: What a job writes without end; of such events in a row the last is enough.
_MANY = ("metric", "progress")
#: A rank and one of its streams; output of no particular rank, such as a launcher's, is (-1, "sys").
Key = tuple[int, str]


def key_of(event: Event) -> Key:
    """Return the stream of an event or a log line. Reports are on the stream "out"."""
    rank = event.get("rank")
    stream = str(event.get("stream")) if event["type"] in LOG_TYPES else "out"
    return rank if isinstance(rank, int) else -1, stream


class History:
    """The state from the events and the log so far.

    Both files hold the read positions of the ranks' kept output, and when a supervisor dies one file may be ahead.
    The new supervisor resumes at the position of the log, because events are written first: none is missing before it.
    Reports that are read twice are in the events already.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        #: How many bytes of each stream are in the events of this attempt, and in the log.
        self.in_events: dict[Key, int] = {}
        self._in_log: dict[Key, int] = {}
        self._attempts = self._log_attempts = 0

    def add(self, event: Event) -> None:
        """Take the next event."""
        if self.events and event["type"] in _MANY and self.events[-1]["type"] in _MANY:
            self.events[-1] = event
        else:
            self.events.append(event)
        if event["type"] == "restart":
            self.in_events.clear()  # this attempt writes its output to files of its own
            self._attempts += 1
        _advance(self.in_events, event)

    def add_line(self, line: Event) -> None:
        """Take the next line of the log."""
        if line["type"] == "attempt":
            self._in_log.clear()
            self._log_attempts += 1
        _advance(self._in_log, line)

    @property
    def positions(self) -> dict[Key, int]:
        """How many bytes of each stream of this attempt were read."""
        return self._in_log if self.missing_attempts == 0 else {}

    @property
    def missing_attempts(self) -> int:
        """How many restarts of all ranks the log does not have because the supervisor died."""
        return max(0, self._attempts - self._log_attempts)


def _advance(positions: dict[Key, int], event: Event) -> None:
    at = event.get("at")
    if isinstance(at, int):
        key = key_of(event)
        positions[key] = max(at, positions.get(key, 0))


def is_between_attempts(history: Sequence[Event]) -> bool:
    """Return whether all ranks were to begin anew and none has been started."""
    last = next((event for event in reversed(history) if event["type"] in ("handle", "restart")), None)
    return last is not None and last["type"] == "restart"


def last_handle(history: Sequence[Event]) -> Handle | None:
    """Return the handle that was written after the last start, None when the job was not started."""
    for event in reversed(history):
        if event["type"] == "handle":
            return Handle(event.get("data") or {}, str(event.get("nonce") or ""), event.get("begun") is not False)
    return None


def is_takeover(history: Sequence[Event]) -> bool:
    """Return whether this supervisor was started for a job that had lost its writer."""
    return bool(history) and history[-1]["type"] == "resume"


def is_waiting(history: Sequence[Event]) -> bool:
    """Return whether the job still waited for its turn: nothing of it was started, and it may begin anew."""
    kinds = {event["type"] for event in history}
    queued = all(event.get("state") == State.QUEUED for event in history if event["type"] == "state")
    return "queue" in kinds and queued and not kinds & {"handle", "rank", "restart"}


def is_hopeless(history: Sequence[Event], lines: int) -> bool:
    """Return whether several supervisors died in a row without any event or line of the job between them.

    ``lines`` are those of the log now.
    """
    tries = 0
    for event in reversed(history):
        if event["type"] == "resume" and event.get("lines") == lines:
            tries += 1
        elif event.get("code") != REATTACHED:
            break
    return tries >= _TRIES


def left_queue_at(history: Sequence[Event]) -> float | None:
    """Return when the job left its queue (seconds since the epoch), None when it has not."""
    states = (event for event in history if event["type"] == "state")
    return next((float(event["t"]) for event in states if event.get("state") != State.QUEUED), None)


def can_attach(folder: JobFolder) -> bool:
    """Return whether the job continues without its supervisor, where a later one reattaches to it."""
    try:
        return bool(registry.get("clusters", folder.spec().cluster).can_attach)
    except DistDLError:
        return False


def end_events(
    folder: JobFolder, view: JobView, kind: str, gone: Holder | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """End what is left of a job whose supervisor died and yield the type and the fields of the events to write.

    A job all of whose ranks have delivered is done, whatever of its log a power cut has taken; else it is lost.
    ``gone`` is its supervisor if a user has confirmed that its other host is gone: nothing is left here.
    """
    reason = _lost_reason(folder, view, kind) if gone is None else _declared_lost_reason(gone)
    code = "supervisor-killed" if gone is None else "supervisor-host-gone"
    values = [folder.result(rank.rank) for rank in view.ranks]
    if view.state is State.CANCELING or not all(value.exists() for value in values):
        yield "state", {"state": State.LOST.value, "reason": f"{reason}{_restart_remedy(folder)}", "code": code}
        return
    for rank, value in zip(view.ranks, values, strict=True):
        if rank.ok is None:
            yield "result", {"rank": rank.rank, "ok": True, "repr": "", "bytes": value.stat().st_size}
    text = (
        "The supervisor ended before it could record the end of the job. All ranks have returned their values, so "
        "the job is completed."
    )
    yield "note", {"level": "info", "text": text, "code": "done-without-supervisor"}
    yield "state", {"state": State.COMPLETED.value, "reason": ""}


def _lost_reason(folder: JobFolder, view: JobView, kind: str) -> str:
    known = view.handle or {}
    try:
        left = registry.get("clusters", kind).sweep(view.id, known.get("data") or {})
    except DistDLError as error:
        cleanup = f"Its ranks could not be checked: {error}"
    else:
        stopped = f"{plural(len(left), 'process')} of the job {'was' if len(left) == 1 else 'were'} stopped."
        cleanup = stopped if left else "No process of the job is left."
    return f"The job's supervisor process was killed or crashed. {cleanup}{_last_line(folder)}"


def _restart_remedy(folder: JobFolder) -> str:
    """Return the command that starts the job again; persistent ranks and parts of a study are started in other ways."""
    spec = folder.spec()
    if spec.kind == "ranks" or spec.group is not None:
        return ""
    if folder.has_checkpoints:
        return f" To continue from its checkpoints, run distdl resume {short_id(folder.id)}"
    return f" To start it again, run distdl rerun {short_id(folder.id)}"


def _declared_lost_reason(gone: Holder) -> str:
    return (
        f"The job was marked as lost because {gone.host}, the host of its supervisor, is gone for good. Its last "
        f"heartbeat was at {date_and_clock(gone.heard)}."
    )


def _last_line(folder: JobFolder) -> str:
    try:
        lines = folder.supervisor_log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f' Its last log line: "{lines[-1][:160]}".' if lines else ""
