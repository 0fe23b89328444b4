"""Metrics of quick succession as one event: a training loop that reports thousands a second would fill the disk.

``{"type": "metrics", "rank", "names", "rows": [[step, number, ...], ...]}`` stands for as many ``metric`` events of one
rank, one moment and one set of names. Only ``core.events`` writes and reads it; nobody else meets it.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Most rows of one event.
MAX_ROWS = 500


def number_to_json(value: float) -> float | str:
    """Return a finite number as it is, any other as ``"nan"``, ``"inf"`` or ``"-inf"``."""
    if not math.isfinite(value):
        return repr(value)
    return value


def pack(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield events of one moment in their order, metrics that follow each other as one wherever they can be."""
    alike: list[dict[str, Any]] = []
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


def _are_alike(metric: dict[str, Any], event: dict[str, Any]) -> bool:
    if event["type"] != "metric" or "folded" in event or "folded" in metric:
        return False
    return bool(event["rank"] == metric["rank"] and event["values"].keys() == metric["values"].keys())


def _packed(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Return metrics that are alike as one event; where the last one carries more than the others, its own counts."""
    last = metrics[-1]
    if len(metrics) == 1:
        return last
    names = list(last["values"])
    rows = [[one["step"], *[number_to_json(one["values"][name]) for name in names]] for one in metrics]
    kept = {name: value for name, value in last.items() if name not in ("step", "values")}
    return {**kept, "type": "metrics", "names": names, "rows": rows}


def unpack(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield events in their order, packed metrics one by one; what is no proper one is left out."""
    for event in events:
        if event["type"] == "metrics":
            with contextlib.suppress(KeyError, TypeError, ValueError):
                yield from _single(event)
        else:
            yield event


def _single(packed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    names = packed["names"]
    kept = {name: value for name, value in packed.items() if name not in ("names", "rows")}
    for step, *numbers in packed["rows"]:
        yield {**kept, "type": "metric", "step": step, "values": dict(zip(names, numbers, strict=True))}
