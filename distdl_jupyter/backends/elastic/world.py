"""Who belongs to the world of an elastic job, and which rank each gets when all meet: pure rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Seat:
    """A place for one process: the job's rank ``number``, always at the same local rank of the same host."""

    number: int
    host: str
    local_rank: int
    #: Whether its host is there and offers it.
    offered: bool = False
    #: Whether a process sits here, and whether it waits to meet the others.
    alive: bool = False
    asks: bool = False
    #: Horovod's rank since the last meeting, None for a process that has not met anybody yet.
    rank: int | None = None

    @property
    def key(self) -> str:
        """The name under which Horovod's processes ask for their rank."""
        return f"{self.host}:{self.local_rank}"

    def leave(self) -> None:
        """Forget the process that sat here."""
        self.alive = self.asks = False
        self.rank = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """What Horovod tells a process of itself and its world."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def answer(self) -> bytes:
        """Return the numbers as Horovod's processes read them."""
        listed = (self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size)
        return ",".join(map(str, listed)).encode()


def numbered(seats: Sequence[Seat]) -> dict[int, Numbers]:
    """Return the numbers of each seat's process, by the seat's own number.

    Processes that have met before come first, in the order of their ranks: rank 0 gives its state to all others.
    """
    order = sorted(seats, key=lambda seat: (seat.rank is None, seat.rank or 0, seat.number))
    hosts = list(dict.fromkeys(seat.host for seat in order))
    found = {}
    for rank, seat in enumerate(order):
        across = [host for host in hosts if any((one.host, one.local_rank) == (host, seat.local_rank) for one in order)]
        found[seat.number] = Numbers(
            rank=rank,
            size=len(order),
            local_rank=seat.local_rank,
            local_size=sum(one.host == seat.host for one in order),
            cross_rank=across.index(seat.host),
            cross_size=len(across),
        )
    return found


def offer(seats: Sequence[Seat], hosts: Mapping[str, int]) -> list[Seat]:
    """Note which seats the hosts offer now, at most so many on each; return those for which that has changed."""
    changed = []
    for seat in seats:
        offered = seat.local_rank < hosts.get(seat.host, 0)
        if offered is not seat.offered:
            seat.offered = offered
            changed.append(seat)
    return changed


def may_meet(seats: Sequence[Seat], least: int) -> bool:
    """Say whether the processes can meet now: every one of them waits for it, and they are enough.

    Those on a host that has gone have to wait too: they are in the middle of a step with the others until then.
    """
    living = [seat for seat in seats if seat.alive]
    coming = [seat for seat in living if seat.offered]
    return len(coming) >= least and all(seat.asks for seat in living)


def has_state(seats: Sequence[Seat], without: Collection[int] = ()) -> bool:
    """Say whether a living process has met others and so holds the training's state."""
    return any(seat.alive and seat.rank is not None and seat.number not in without for seat in seats)
