"""What the hosts' facts mean for a job: one finding for each thing on each host, with a remedy where it is wrong.

Pure: facts (``node.facts``) in, ``Check`` rows out. What is alike on all hosts is said in the same words on each, so
that a table can say it once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.base import Check, CheckLevel
from distdl_jupyter.core import humanize, limits

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import HostTrouble

#: Clocks that differ by more make times in logs and curves misleading (seconds).
_CLOCK_SECONDS = 2.0
_GIGABYTE = 10**9
#: Below the first no job should begin, below the second it may not end (bytes).
_LEAST_DISK, _LITTLE_DISK = _GIGABYTE, 5 * _GIGABYTE
_STEPS = tuple(step * _GIGABYTE for step in (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000))
#: What of a host's troubles on the way there has a row of its own.
_ROWS = {"unknown-key": "Host key", "changed-key": "Host key", "python": "Python", "old-python": "Python"}


@dataclass(frozen=True, slots=True)
class HostReport:
    """What one host reports: its facts, this machine's clock before asking and after the answer, and how to reach it.

    ``ssh`` is how a user would run a command there ("ssh gpu1"), ``slots`` how many processes fit (0: not said),
    ``shares`` whether it sees this machine's folders.
    """

    host: str
    facts: Mapping[str, Any]
    asked: float = 0.0
    answered: float = 0.0
    ssh: str = ""
    slots: int = 0
    shares: bool = False

    @property
    def python(self) -> str:
        """The path of Python there."""
        return str(self.facts["python"]["executable"])


def unreachable(trouble: HostTrouble) -> Check:
    """Return the row of a host that could not be reached or that stopped answering."""
    what = _ROWS.get(getattr(trouble, "kind", ""), "Reachable")
    return Check(trouble.host, what, "error", trouble.says, trouble.remedy, code=trouble.code)


def reached(reports: Sequence[HostReport]) -> Iterator[Check]:
    """Yield that hosts answered, over a connection whose host key was known."""
    for one in reports:
        yield Check(one.host, "Reachable", "ok", "answers")
        yield Check(one.host, "Host key", "ok", "known")


def twins(reports: Sequence[HostReport]) -> dict[str, str]:
    """Return the hosts that are a machine already named, each with that machine's first name."""
    first: dict[tuple[object, ...], str] = {}
    found = {}
    for one in reports:
        addresses = sorted(each["address"] for each in one.facts["interfaces"] if not each["loopback"])
        name = first.setdefault((one.facts["host"], *addresses), one.host)
        if addresses and name != one.host:
            found[one.host] = name
    return found


def twice(reports: Sequence[HostReport]) -> Iterator[Check]:
    """Yield the hosts that are one machine under several names."""
    for host, name in twins(reports).items():
        yield Check(
            host,
            "Reachable",
            "error",
            f"is the same machine as {name}",
            f"List the machine once, with the number of its processes: {name}:2.",
            code="host-reachable",
        )


def code(reports: Sequence[HostReport], declared: bool | None) -> Iterator[Check]:  # noqa: FBT001 - the option's own value
    """Yield whether hosts see this machine's folders or get a copy; ``declared`` is what the user says of it."""
    for one in reports:
        if declared and not one.shares:
            yield Check(
                one.host,
                "Code",
                "error",
                "does not see this machine's folders, although the option shared is set",
                "Mount the folder on the host, or remove the option shared.",
                code="host-code",
            )
        elif one.shares and declared is not False:
            yield Check(one.host, "Code", "info", "sees this machine's folders")
        else:
            yield Check(one.host, "Code", "info", "code and data are copied there, results are copied back")


def gpus(reports: Sequence[HostReport]) -> Iterator[Check]:
    """Yield the GPUs of each host, with a warning where they are not those of the others."""
    owned = {one.host: _gpus_in_words(one.facts) for one in reports}
    usual = Counter(owned.values()).most_common(1)[0][0] if owned else ""
    for one in reports:
        if "gpus" in one.facts["problems"]:
            yield Check(
                one.host,
                "GPUs",
                "warning",
                "nvidia-smi does not respond",
                f"Run it on the host: {one.ssh} nvidia-smi",
                code="host-gpus",
            )
        elif owned[one.host] == usual:
            yield Check(one.host, "GPUs", "ok" if one.facts["gpus"] else "info", usual, code="host-gpus")
        else:
            yield Check(
                one.host,
                "GPUs",
                "warning",
                f"{owned[one.host]}, but the other hosts have {usual}",
                "Use no more processes per node than the smallest host has GPUs, or remove this host.",
                code="host-gpus-differ",
            )


def _gpus_in_words(facts: Mapping[str, Any]) -> str:
    """Return "8 × NVIDIA A100, driver 550.54"; "no GPU"."""
    models = Counter(str(one["name"]) for one in facts["gpus"] or ())
    if not models:
        return "no GPU"
    driver = f", driver {facts['driver']}" if facts["driver"] else ""
    return humanize.listing([f"{count} {humanize.TIMES} {name}" for name, count in models.items()]) + driver


def infiniband(reports: Sequence[HostReport]) -> Iterator[Check]:
    """Yield the active InfiniBand devices, with a warning for a host that lacks what others have."""
    somewhere = any(one.facts["infiniband"] for one in reports)
    for one in reports:
        devices = one.facts["infiniband"] or ()
        if devices:
            yield Check(one.host, "InfiniBand", "ok", f"{humanize.listing(devices)} active")
        elif somewhere:
            yield Check(
                one.host,
                "InfiniBand",
                "warning",
                "not active here but on other hosts, so all ranks would use Ethernet",
                f"Check the cable and the port state: {one.ssh} ibstat",
                code="host-infiniband",
            )
        else:
            yield Check(one.host, "InfiniBand", "info", "none")


def disk(reports: Sequence[HostReport]) -> Iterator[Check]:
    """Yield the room where jobs keep files: the fuller of the home and temp folders."""
    for one in reports:
        for place in sorted((one.facts["disk"] or {}).values(), key=lambda place: int(place["free"]))[:1]:
            yield _disk(one, int(place["free"]), str(place["path"]))


def _disk(one: HostReport, free: int, path: str) -> Check:
    if free >= _LITTLE_DISK:
        over = max(step for step in _STEPS if step <= free)
        return Check(one.host, "Disk", "ok", f"over {humanize.size(over)} free")
    level: CheckLevel = "error" if free < _LEAST_DISK else "warning"
    return Check(
        one.host,
        "Disk",
        level,
        f"{humanize.size(free)} free in {path}",
        f"Free disk space. See what uses it: {one.ssh} du -xhd1 {path}",
        code="host-disk",
    )


def clock(reports: Sequence[HostReport]) -> Iterator[Check]:
    """Yield how far each clock is off by at least, whatever the time that question and answer took."""
    for one in reports:
        off = _off(one)
        if abs(off) <= _CLOCK_SECONDS:
            yield Check(one.host, "Clock", "ok", "in sync with this machine")
        else:
            way = "ahead of" if off > 0 else "behind"
            says = f"{humanize.duration(abs(off))} {way} this machine's"
            yield Check(
                one.host,
                "Clock",
                "warning",
                says,
                f"Synchronize the clock: {one.ssh} sudo timedatectl set-ntp true",
                code="host-clock",
            )


def _off(one: HostReport) -> float:
    """Return the seconds that a clock is surely off: its moments lie between asking and answer, if it is right.

    It said ``time`` after ``asked`` and ``until`` before ``answered``, so it is ahead by between
    ``until - answered`` and ``time - asked``.
    """
    least, most = float(one.facts["until"]) - one.answered, float(one.facts["time"]) - one.asked
    return least if least > 0 else min(most, 0.0)


def slots(reports: Sequence[HostReport], processes: int) -> Iterator[Check]:
    """Yield the hosts on which fewer processes fit than are asked for on each."""
    for one in reports:
        if 0 < one.slots < processes:
            yield Check(
                one.host,
                "Slots",
                "warning",
                f"{processes} processes requested, but only {one.slots} fit",
                f"Use {one.slots} processes per node, or list the host as {one.host}:{processes}.",
                code="host-slots",
            )


def room(reports: Sequence[HostReport], processes: int, *, oversubscribe: bool) -> Iterator[Check]:
    """Yield the hosts that have too little for so many processes: cores, open files, processes, memory."""
    for one in reports:
        cores = int(one.facts.get("cores") or 0)
        crowd = limits.crowd(processes, cores, oversubscribe=oversubscribe, slots=one.slots) if cores else None
        for short in (*((crowd,) if crowd else ()), *limits.shortages(processes, one.facts.get("room") or {})):
            yield Check(one.host, "Room", short.level, short.says, short.remedy, code="host-room")
