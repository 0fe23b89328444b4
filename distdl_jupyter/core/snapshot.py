"""The fold of a job's log up to some byte, kept beside it in ``view.json``, so that a reader begins there.

It is a cache and nothing else: the truth stays ``events.jsonl``. It may be missing, old or deleted at any moment, and
anybody who has folded all of a log up to ``cursor`` may write it, with or without the job's lock: the file is replaced
whole, and whichever of two writers comes last, what stands there is true. A reader folds what stands behind the cursor
itself, so a log that grew afterwards needs no other treatment.

The supervisor writes it: ``snapshot.write(folder, view, cursor)`` in ``supervisor.recorder``, with the size of the file
as ``cursor`` (its view holds all that it wrote), when the job has ended and before that at most every few seconds or
megabytes. A reader that met an ended job without one writes it when it has folded *all* of the log (one that left the
log lines out has no view for others).

What stands in it, as JSON of one line (``NaN`` and ``Infinity`` as Python's json writes them)::

    {"v": rules and shape of the fold, "cursor": bytes folded, "identity": inode of events.jsonl, "view": ...}
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import zlib
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from distdl_jupyter.core import parts, whole
from distdl_jupyter.core.rank import RankView
from distdl_jupyter.core.state import State
from distdl_jupyter.core.trail import Trail
from distdl_jupyter.core.view import (
    JobView,
    MetricView,
    PhaseView,
    PictureView,
    RestartView,
    StacksView,
    StagingView,
    StallView,
    StopView,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from distdl_jupyter.core.store import JobFolder

V = TypeVar("V")

#: To be raised when ``core.view`` folds the same events to something else than before.
RULES = 2


def _fields(of: type) -> tuple[str, ...]:
    return tuple(of.__dataclass_fields__)  # type: ignore[attr-defined]


#: A view with other fields is another version by itself.
_PARTS = (
    JobView, RankView, PhaseView, MetricView, Trail, StagingView, StopView, RestartView, StallView, StacksView,
    PictureView,
)  # fmt: skip
_SHAPE = repr([_fields(one) for one in _PARTS])
VERSION = f"{RULES}-{zlib.crc32(_SHAPE.encode()):08x}"


def write(folder: JobFolder, view: JobView, cursor: int) -> None:
    """Keep the view of all events in the first ``cursor`` bytes. Where it cannot be kept nothing happens."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        known = {"v": VERSION, "cursor": cursor, "identity": folder.events.stat().st_ino, "view": to_json(view)}
        whole.keep(folder.snapshot, json.dumps(known, separators=(",", ":")))


def read(folder: JobFolder) -> tuple[JobView, int] | None:
    """Return a view and the cursor up to which it was folded; None where none fits to the log that stands there."""
    try:
        known = json.loads(folder.snapshot.read_bytes())
        if known["v"] != VERSION or not fits(folder.events, known["identity"], known["cursor"]):
            return None
        return from_json(known["view"]), known["cursor"]
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None


def fits(events: Path, identity: int, cursor: int) -> bool:
    """Say whether the file is the one that was folded, and not shorter than what was folded of it."""
    return identity == events.stat().st_ino and 0 <= cursor <= parts.size(events)


def to_json(view: JobView) -> dict[str, Any]:
    """Return all that a view holds as JSON data; ``from_json`` makes an equal view of it.

    Ranks and the like are lists of values without the names, because a job may have thousands.
    """
    stop = view.stop
    return {
        **{name: getattr(view, name) for name in _fields(JobView)},
        "state": view.state.value,
        "phases": _rows(PhaseView, view.phases),
        "ranks": _rows(RankView, view.ranks),
        "metrics": [
            (m.name, m.step, list(m.values), list(m.values.values()), m.count, m.stale, *_row_of(Trail)(m.trail))
            for m in view.metrics.values()
        ],
        "stop": None if stop is None else dataclasses.asdict(stop),
        "staging": _rows(StagingView, view.staging),
        "restarts": _rows(RestartView, view.restarts),
        "stall": None if view.stall is None else dataclasses.asdict(view.stall),
        "stacks": _rows(StacksView, view.stacks),
        "pictures": _rows(PictureView, view.pictures),
        "elsewhere": None,
    }


def from_json(data: dict[str, Any]) -> JobView:
    """Return the view of ``to_json`` data. Raises ValueError, TypeError or LookupError when it is damaged."""
    since = data["progress_from"]
    made = {
        "state": State(data["state"]),
        "phases": [PhaseView(*one) for one in data["phases"]],
        "ranks": [RankView(*one) for one in data["ranks"]],
        "progress_from": None if since is None else (since[0], since[1]),
        "metrics": {one[0]: _metric(*one) for one in data["metrics"]},
        "stop": None if data["stop"] is None else StopView(**data["stop"]),
        "staging": [StagingView(*one) for one in data["staging"]],
        "restarts": [RestartView(*one) for one in data["restarts"]],
        "stall": None if data["stall"] is None else StallView(**data["stall"]),
        "stacks": [StacksView(*one) for one in data["stacks"]],
        "pictures": [PictureView(*one) for one in data["pictures"]],
    }
    view = JobView(**{**data, **made})
    if len(view.ranks) != view.process_count:
        raise ValueError("A view has one entry for each rank.")
    return view


def _metric(name: str, step: float, ranks: list[int], values: list[float], count: int, *more: Any) -> MetricView:
    return MetricView(name, step, dict(zip(ranks, values, strict=True)), count, Trail(*more[1:]), more[0])


def _rows(of: type[V], all_: Sequence[V]) -> list[tuple[Any, ...]]:
    return list(map(_row_of(of), all_))


def _row_of(of: type[V]) -> Callable[[V], tuple[Any, ...]]:
    return attrgetter(*_fields(of))
