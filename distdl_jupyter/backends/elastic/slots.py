"""The slots of an elastic job, and which rank the process in each gets: pure rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horovod.runner.common.util.hosts import SlotInfo


@dataclass(slots=True)
class Slot:
    """A place for one process: the job's rank ``number``, always at the same local rank of the same host."""

    number: int
    host: str
    local_rank: int
    #: Whether its host may run it now.
    offered: bool = False
    #: Whether a process runs in it, and whether that waits at the rendezvous.
    alive: bool = False
    ready: bool = False
    #: Horovod's rank since the last rendezvous, None for a process that has taken part in none yet.
    rank: int | None = None
    #: When its process is killed, on the monotonic clock; None unless it was asked to end.
    kill_at: float | None = None

    @property
    def key(self) -> str:
        """The name under which Horovod's processes ask for their rank."""
        return f"{self.host}:{self.local_rank}"

    def clear(self) -> None:
        """Forget the process that ran in it."""
        self.alive = self.ready = False
        self.rank = self.kill_at = None


def assign(slots: Sequence[Slot]) -> dict[int, SlotInfo]:
    """Return the rank and the sizes for each slot's process, by the slot's own number.

    Processes that have the training's state come first, in the order of their ranks: rank 0 gives it to all others.
    """
    order = sorted(slots, key=lambda slot: (slot.rank is None, slot.rank or 0, slot.number))
    hosts = list(dict.fromkeys(slot.host for slot in order))
    found = {}
    for rank, slot in enumerate(order):
        across = [host for host in hosts if any((one.host, one.local_rank) == (host, slot.local_rank) for one in order)]
        found[slot.number] = SlotInfo(
            hostname=slot.host,
            rank=rank,
            local_rank=slot.local_rank,
            cross_rank=across.index(slot.host),
            size=len(order),
            local_size=sum(one.host == slot.host for one in order),
            cross_size=len(across),
        )
    return found


def offer(slots: Sequence[Slot], hosts: Mapping[str, int]) -> list[Slot]:
    """Mark the slots that the hosts offer now, at most so many on each; return those for which that has changed."""
    changed = []
    for slot in slots:
        offered = slot.local_rank < hosts.get(slot.host, 0)
        if offered is not slot.offered:
            slot.offered = offered
            changed.append(slot)
    return changed


def can_meet(slots: Sequence[Slot], min_size: int) -> bool:
    """Say whether the rendezvous is complete: every living process waits at it, and they are enough.

    Those on a host that is gone have to wait too: they are in the middle of a step with the others until then.
    """
    running = [slot for slot in slots if slot.alive]
    staying = [slot for slot in running if slot.offered]
    return len(staying) >= min_size and all(slot.ready for slot in running)


def has_state(slots: Sequence[Slot]) -> bool:
    """Say whether a living process has taken part in a rendezvous, and so holds the training's state."""
    return any(slot.alive and slot.rank is not None for slot in slots)
