"""One job as a row of a list. It stands apart from the other shapes, because a list of jobs needs none of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StateName = Literal[
    "queued", "preparing", "starting", "running", "canceling", "completed", "failed", "canceled", "lost"
]


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job in a list. ``spark`` are up to 40 means of ``metric`` over time; ``says`` why it failed or is lost."""

    id: str
    name: str
    state: StateName
    says: str
    compute_target: str
    backend: str
    node_count: int
    process_count_per_node: int
    created: float
    ended: float | None
    last_sign: float
    done: float | None
    total: float | None
    left: float | None
    metric: str
    value: float | None
    spark: tuple[float | None, ...]
    #: Rank that failed first.
    failed_rank: int | None
    notebook: str
    can_rerun: bool
    #: It has ended and left checkpoints.
    can_resume: bool
    #: How often its ranks were started anew.
    restarts: int
    #: It makes no progress; ``says`` tells which rank differs.
    stalled: bool
