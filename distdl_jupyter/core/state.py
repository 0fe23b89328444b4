"""The states of a job and their transitions.

A state applies to the whole job; the status of a single rank is in ``core.view.RankView.status``.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The state of a job, in the order in which it may change; its value is used in events, views and JSON."""

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
        """Whether this is a final state."""
        return self in ENDED


ENDED = frozenset({State.COMPLETED, State.FAILED, State.CANCELED, State.LOST})
_ORDER = tuple(State)


def can_follow(current: State, new: State) -> bool:
    """Return whether a job may change from ``current`` to ``new``.

    An active job only moves forward (queued, preparing, starting, running, canceling) and may enter any final state at
    any time; a final state never changes.
    """
    return not current.ended and _ORDER.index(new) > _ORDER.index(current)


#: The phases of a job in the order in which a panel shows them.
PHASES = ("capture", "stage", "start", "rendezvous", "train", "collect", "clean")
