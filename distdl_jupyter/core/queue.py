"""A job that waits for its turn: its place, what it waits for, and which jobs hold it. Values and texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from distdl_jupyter.core.errors import JobNotRunning
from distdl_jupyter.core.humanize import count, listing, plural, size
from distdl_jupyter.core.state import State

#: The word of what is lacking: all is free, but kept for jobs that come before.
ORDER = "order"
#: The word of what is lacking where a job waits for the end of another.
AFTER = "after"


@dataclass(frozen=True, slots=True)
class Holding:
    """What one running job holds of a machine. ``user`` is "" for one's own."""

    job: str
    name: str
    user: str = ""
    gpus: tuple[str, ...] = ()
    cores: float = 0
    memory: float = 0

    @property
    def called(self) -> str:
        """Its name, and whose it is where it is another user's."""
        return f"{self.name} of {self.user}" if self.user else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job of any user in a cluster's own queue, as ``id`` there; ``user`` is "" for one's own.

    One that waits says ``why``. ``nodes``, ``cores`` and ``gpus`` are those of the whole job, or of each of the
    ``tasks`` of an array that wait as one, from the task ``first`` on.
    """

    id: str
    name: str
    user: str = ""
    runs: bool = False
    why: str = ""
    priority: int = 0
    nodes: int = 0
    cores: int = 0
    gpus: int = 0
    partition: str = ""
    tasks: int = 1
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """A waiting job's place, from 1, among ``of`` that wait.

    ``needs``, ``free`` and ``total`` are amounts by name (gpus, cores, memory in bytes), those that the job asks for.
    ``lacks`` says what of it is not free ("gpus", ...), ``ORDER``, or ``AFTER``; ``names`` who has it, who is before
    it, or who has to complete; ``why`` all of that in words. ``holding`` is what runs on the machine, ``host`` its name
    where it is another one, ``number`` the job's own by time. An order that ``is_fixed`` cannot be changed from here.
    """

    place: int = 1
    of: int = 1
    why: str = ""
    priority: int = 0
    needs: dict[str, float] = field(default_factory=dict)
    free: dict[str, float] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    holding: tuple[Holding, ...] = ()
    host: str = ""
    number: int | None = None
    is_fixed: bool = False


def amount(name: str, value: float) -> str:
    """Return an amount in words: "2 GPUs", "4 cores", "24 GB of memory"."""
    if name == "gpus":
        return plural(value, "GPU")
    if name == "cores":
        return plural(value, "core")
    return f"{size(value)} of memory" if name == "memory" else f"{count(value)} {name}"


def reason(needs: Mapping[str, float], lacks: Iterable[str], names: Iterable[str]) -> str:
    """Return why a job waits: "waiting for 2 GPUs, held by digits"."""
    lacks, who = tuple(lacks), list(names)
    if lacks == (ORDER,):
        return f"waiting for its turn, after {listing(who)}" if who else "waiting for its turn"
    if lacks == (AFTER,):
        return f"waiting for {listing(who)} to complete"
    what = listing([amount(name, needs[name]) for name in lacks if name in needs] or ["a slot"])
    return f"waiting for {what}" + (f", held by {listing(who)}" if who else "")


def moved_to(target: str) -> str:
    """Return the reason of the end of a job that gave its place to one on another cluster."""
    return f"The job was moved to {target}."


def was_moved(reason: str) -> bool:
    """Say whether a reason is one of ``moved_to``."""
    return reason.startswith(moved_to("").rstrip("."))


def waits_no_more(id_: str, state: State) -> JobNotRunning:
    """Return the exception for a job that was asked to do what only one that waits can."""
    return JobNotRunning(f"Job {id_} is not waiting: it is {state.value}.", code="job-not-queued")
