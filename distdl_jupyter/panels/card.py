"""A job as its panel is told of it: the view, boiled down to plain JSON data (``Card`` in labextension/src/card.ts).

Pure. Times are epoch seconds of this machine's clock; ``now`` goes along, because a browser's clock may be another.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

from distdl_jupyter.core.failure import has_failed
from distdl_jupyter.core.rank import RankView
from distdl_jupyter.core.state import State
from distdl_jupyter.core.view import JobView
from distdl_jupyter.panels.story import failure_card

#: Up to so many ranks are dots; above that each node is one count.
MAX_DOTS = 64
#: Ranks that still run are named one by one up to here.
_NAMED = 3
_LEVELS = {"warning": 1, "error": 2}


def card(view: JobView, now: float, *, can_rerun: bool = False) -> dict[str, Any]:
    """Return everything that the head of a panel shows."""
    return {
        "id": view.id,
        "name": view.name,
        "state": view.state.value,
        "reason": view.reason,
        "compute_target": view.compute_target,
        "backend": view.distributed_backend,
        "node_count": view.node_count,
        "process_count_per_node": view.process_count_per_node,
        "created": view.created,
        "ended": view.ended,
        "last_sign": view.last_sign,
        "now": now,
        "phases": [dataclasses.asdict(phase) for phase in view.phases],
        "hosts": hosts(view),
        "done": _finite(view.done),
        "total": _finite(view.total),
        "unit": view.unit,
        "left": view.remaining(now),
        "step": _step(view),
        "stop": _stop(view),
        "lines": view.lines,
        "failure": failure_card(view),
        "can_rerun": can_rerun,
        **foot(view),
    }


def foot(view: JobView) -> dict[str, Any]:
    """Return the part of the card that the line at the panel's foot depends on."""
    return {
        "state": view.state.value,
        "reason": view.reason,
        "notice": _notice(view),
        "result": _result(view),
        "has_metrics": bool(view.metrics),
    }


def hosts(view: JobView) -> list[dict[str, Any]]:
    """Return each node with its ranks' status; jobs above ``MAX_DOTS`` ranks get counts only."""
    nodes: dict[int, list[RankView]] = {}
    for rank in view.ranks:
        nodes.setdefault(rank.node, []).append(rank)
    dots = view.process_count <= MAX_DOTS
    return [
        {
            "name": next((rank.host for rank in ranks if rank.host), ""),
            "ranks": [[rank.rank, status(rank)] for rank in ranks] if dots else [],
            "counts": Counter(status(rank) for rank in ranks),
        }
        for _, ranks in sorted(nodes.items())
    ]


def status(rank: RankView) -> str:
    """Return waiting, started, ready, ended or failed."""
    return "failed" if has_failed(rank) else rank.status


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _step(view: JobView) -> float | None:
    steps = [rank.last_step for rank in view.ranks if _finite(rank.last_step) is not None]
    return max((step for step in steps if step is not None), default=None)


def _stop(view: JobView) -> dict[str, Any] | None:
    if view.stop is None:
        return None
    living = [rank for rank in view.ranks if rank.status != "ended"]
    return {
        **{key: value for key, value in dataclasses.asdict(view.stop).items() if key != "remaining"},
        "remaining": len(living),
        "places": [_place(rank) for rank in living[:_NAMED]] if len(living) <= _NAMED else [],
    }


def _place(rank: RankView) -> str:
    parts = [f"rank {rank.rank}", rank.host, f"pid {rank.pid}" if rank.pid is not None else ""]
    return ", ".join(part for part in parts if part)


def _notice(view: JobView) -> dict[str, Any] | None:
    """Return the gravest note, the newest of equals; information stays in the log."""
    graded = [note for note in view.notes if note["level"] in _LEVELS]
    if not graded or view.state is State.FAILED:
        return None
    worst = max(reversed(graded), key=lambda note: _LEVELS[note["level"]])
    return {"level": worst["level"], "text": worst["text"]}


def _result(view: JobView) -> str:
    first = view.ranks[0]
    return first.result if first.ok and first.result and first.result != "None" else ""
