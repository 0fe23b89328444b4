"""The states of a job and which may follow which.

States are facts about the whole job; what a single rank does is in ``core.view.RankView.status``.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """State of a job; the value is the word in events, views and JSON."""

    QUEUED = "queued"
    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    CANCELING = "canceling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    LOST = "lost"

    @property
    def ended(self) -> bool:
        """True for the states that nothing follows."""
        return self in ENDED


ENDED = frozenset({State.COMPLETED, State.FAILED, State.CANCELED, State.LOST})

_ORDER = (State.QUEUED, State.PREPARING, State.STARTING, State.RUNNING, State.CANCELING)


def may_follow(now: State, after: State) -> bool:
    """Say whether ``after`` may come directly after ``now``.

    A living job only moves forward (queued, preparing, starting, running, canceling); any living state may end in
    any end state; an ended job stays as it is.
    """
    if now.ended:
        return False
    return after.ended or _ORDER.index(after) > _ORDER.index(now)


#: The phases of a job in order, as a panel shows them while it sets up.
PHASES = ("capture", "stage", "start", "rendezvous", "train", "collect", "clean")
