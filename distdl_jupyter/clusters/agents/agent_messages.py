"""What an agent may send: its events and the replies that a running job waits for, each with bounds.

An agent runs where training code runs, so what it sends is checked before anything here acts on it. A message that does
not fit raises BrokenWire, which ends the connection to that host and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from distdl_jupyter.node.frames import BrokenWire

Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]
#: As many processes as Linux has numbers for.
Count = Annotated[int, Meta(ge=0, le=2**22)]
Text = Annotated[str, Meta(max_length=4096)]
Amount = Annotated[float, Meta(ge=-1e18, le=1e18)]
_NumberText = Annotated[str, Meta(pattern=r"^[0-9]{1,9}\Z")]


class ExitEvent(msgspec.Struct, tag_field="type", tag="exit"):
    """A process has ended, with a code or by a signal."""

    process: Number
    code: Annotated[int, Meta(ge=-(2**31), le=2**32 - 1)] | None
    signal: Annotated[str, Meta(pattern=r"^[A-Z0-9+]{1,20}\Z")] | None
    evidence: Text | None = None


class ShellEvent(msgspec.Struct, tag_field="type", tag="shell"):
    """The launcher wants a command to be run on another host of the job."""

    shell: Number
    host: Annotated[str, Meta(max_length=300)]
    command: Annotated[str, Meta(max_length=2**20)]


class ShellClosedEvent(msgspec.Struct, tag_field="type", tag="shell-closed"):
    """The launcher no longer waits for such a command."""

    shell: Number


class WarnedEvent(msgspec.Struct, tag_field="type", tag="warned"):
    """The scheduler has announced the end of the job."""


class ResourcesEvent(msgspec.Struct, tag_field="type", tag="resources"):
    """What ranks and the machine have used."""

    samples: Annotated[list[Sample], Meta(max_length=4096)]


class Sample(msgspec.Struct):
    """One moment (see ``node.resources``). What it holds of each rank is checked where it is read."""

    t: Amount
    node: Any
    ranks: dict[_NumberText, Any]
    gpus: Any = None


class _Started(msgspec.Struct):
    pids: dict[_NumberText, Number]


class _Alive(msgspec.Struct):
    alive: Count
    workers: Count = 0


class _Stuck(msgspec.Struct):
    pids: Annotated[list[Number], Meta(max_length=4096)]


class _Drained(msgspec.Struct):
    evidence: Text | None = None


class _Stack(msgspec.Struct):
    text: str = ""
    missing: str = ""
    state: str = ""
    about: dict[str, Any] | None = None


class _Stacks(msgspec.Struct):
    answers: dict[_NumberText, _Stack]


_EVENTS = ExitEvent | ShellEvent | ShellClosedEvent | WarnedEvent | ResourcesEvent
_REPLIES: Mapping[str, type[msgspec.Struct]] = {
    "start": _Started,
    "alive": _Alive,
    "stuck": _Stuck,
    "drain": _Drained,
    "stacks": _Stacks,
}


def check_event(data: Mapping[str, Any]) -> None:
    """Raise BrokenWire for what is not an event of an agent."""
    _check(data, _EVENTS)


def check_reply(request: str, data: Mapping[str, Any]) -> None:
    """Raise BrokenWire for what cannot be the reply to this request."""
    if request in _REPLIES:
        _check(data, _REPLIES[request])


def _check(data: Mapping[str, Any], shape: Any) -> None:
    try:
        msgspec.convert(data, shape)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BrokenWire(f"Invalid message {str(data.get('type'))[:20]!r}: {error}.") from None
