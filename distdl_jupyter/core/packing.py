"""How events stand in a file: each a line of strict JSON in UTF-8, metrics of quick succession as one.

``{"type": "metrics", "rank", "names", "rows": [[step, number, ...], ...]}`` stands for as many ``metric`` events of one
rank, one moment and one set of names: a training loop that reports thousands a second would fill the disk. Only this
module writes and reads it. A metric that is not finite is the string ``"nan"``, ``"inf"`` or ``"-inf"``.
"""

from __future__ import annotations

import contextlib
import json
import math
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Event = dict[str, Any]
#: Most rows of one event.
MAX_ROWS = 500

_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode
_dumps_ascii = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_decoder = msgspec.json.Decoder()


def encode(event: Event) -> bytes:
    """Return the event as one line of strict JSON (no newline inside, one at its end).

    Raises ValueError when a number that is not finite stands outside a metric's ``values``.
    """
    if event.get("type") == "metric":
        event = {**event, "values": {k: number_to_json(v) for k, v in event["values"].items()}}
    try:
        return _dumps(event).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair is no character, but Python's strings can hold it
        return _dumps_ascii(event).encode() + b"\n"


def decode(data: bytes) -> list[Event]:
    """Return the events of whole lines; a line that is no JSON object with a type is left out."""
    try:
        found = _decoder.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = list(map(_decode_line, data.splitlines()))
    return [event for event in found if type(event) is dict and type(event.get("type")) is str]


def _decode_line(line: bytes) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(line)  # which accepts half a surrogate pair
    return None


def number_to_json(value: float) -> float | str:
    """Return a finite number as it is, any other as ``"nan"``, ``"inf"`` or ``"-inf"``."""
    if not math.isfinite(value):
        return repr(value)
    return value


def pack(events: Iterable[Event]) -> Iterator[Event]:
    """Yield events of one moment in their order, metrics that follow each other as one wherever they can be."""
    alike: list[Event] = []
    for event in events:
        if alike and not (len(alike) < MAX_ROWS and _are_alike(alike[0], event)):
            yield _packed(alike)
            alike = []
        if event["type"] == "metric":
            alike.append(event)
        else:
            yield event
    if alike:
        yield _packed(alike)


def _are_alike(metric: Event, event: Event) -> bool:
    if event["type"] != "metric" or any(name in one for name in ("folded", "again") for one in (event, metric)):
        return False
    return bool(event["rank"] == metric["rank"] and event["values"].keys() == metric["values"].keys())


def _packed(metrics: list[Event]) -> Event:
    """Return metrics that are alike as one event; where the last one carries more than the others, its own counts."""
    last = metrics[-1]
    if len(metrics) == 1:
        return last
    names = list(last["values"])
    rows = [[one["step"], *[number_to_json(one["values"][name]) for name in names]] for one in metrics]
    kept = {name: value for name, value in last.items() if name not in ("step", "values")}
    return {**kept, "type": "metrics", "names": names, "rows": rows}


def unpack(events: Iterable[Event]) -> Iterator[Event]:
    """Yield events in their order, packed metrics one by one; what is no proper one is left out."""
    for event in events:
        if event["type"] == "metrics":
            with contextlib.suppress(KeyError, TypeError, ValueError):
                yield from _single(event)
        else:
            yield event


def _single(packed: Event) -> Iterator[Event]:
    names = packed["names"]
    kept = {name: value for name, value in packed.items() if name not in ("names", "rows")}
    for step, *numbers in packed["rows"]:
        yield {**kept, "type": "metric", "step": step, "values": dict(zip(names, numbers, strict=True))}
