"""Where the threads of a job's ranks stood at one moment: read, named as people name code, and compared.

A job's folder keeps what was taken as ``stacks/<number>.json``::

    {"t", "why", "ranks": {"0": {"text", "host", "pid", "state", "step", "silent", "about"}}, "missing": {"3": "why"},
     "sources": {file: {line: text}}, "collectives": {"0": {...}}, "ended": {"3": "finished"}}

``text`` is what ``faulthandler`` writes, ``silent`` the seconds since the rank's last sign, ``about`` what the rank
said of itself (see ``worker.stacks``), ``sources`` the lines of the user's own files as they were then,
``collectives`` the last collective operations of each rank and ``ended`` how ranks ended (see ``core.collectives``).
Pure but for ``read``; it does not know how stacks are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import collectives
from distdl_jupyter.core.collectives import Collective, Finding
from distdl_jupyter.core.humanize import ranks as ranks_in_words
from distdl_jupyter.core.threads import Frame, Names, Thread, parse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from distdl_jupyter.core.store import JobFolder

FOLDER = "stacks"


@dataclass(frozen=True, slots=True)
class RankStacks:
    """The threads of one rank. ``step`` is the last one that it reported; ``silent`` counts seconds."""

    rank: int
    threads: tuple[Thread, ...]
    host: str = ""
    pid: int | None = None
    state: str = ""
    step: float | None = None
    silent: float | None = None
    text: str = ""

    @property
    def main(self) -> Thread:
        """The thread that runs the user's code."""
        return next((thread for thread in self.threads if thread.main), Thread("", main=True))

    @property
    def others(self) -> tuple[Thread, ...]:
        """The other threads that run code of the user or of libraries, without the worker's own."""
        return tuple(one for one in self.threads if not one.main and (one.own is not None or not one.is_workers))


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks whose main threads stand at the same place; ``thread`` is the main thread of the first of them."""

    ranks: tuple[int, ...]
    thread: Thread

    @property
    def says(self) -> str:
        """Where they are: "In [7], line 12", "hvd.allreduce (In [7], line 20)"."""
        own, waits = self.thread.own, self.thread.waits_in
        frame = own or next(iter(self.thread.frames), None)
        if own is None and self.thread.frames and all(one.kind == "worker" for one in self.thread.frames):
            return "code outside the job"
        place = "native code" if frame is None else frame.place
        return f"{waits} ({place})" if waits else place

    @property
    def sentence(self) -> str:
        """Return it as a clause: "rank 2 is in In [7], line 12"."""
        return self.clause()

    def clause(self, awaited: str = "") -> str:
        """Return the sentence, with whom the ranks wait for: "rank 0 waits for it in hvd.allreduce (In [7])"."""
        one = len(self.ranks) == 1
        if self.thread.waits_in:
            whom = f" for {awaited}" if awaited else ""
            return f"{ranks_in_words(list(self.ranks))} {'waits' if one else 'wait'}{whom} in {self.says}"
        return f"{ranks_in_words(list(self.ranks))} {'is' if one else 'are'} in {self.says}"


@dataclass(frozen=True)
class Taken:
    """The stacks of all ranks of a job at one moment ``t`` (epoch seconds).

    ``why`` is asked, stall, hang, time or failure; ``missing`` says for each rank that gave none why. ``collectives``
    is the last collective operation of each rank, ``finding`` what it tells.
    """

    number: int
    t: float
    why: str
    ranks: dict[int, RankStacks] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    collectives: tuple[Collective, ...] = ()
    finding: Finding | None = None

    @property
    def explanation(self) -> str:
        """Return why the ranks wait and the remedy, as sentences; "" when the operations do not tell."""
        return f"{self.finding.text} {self.finding.remedy}" if self.finding is not None else ""

    def groups(self) -> tuple[Group, ...]:
        """Return the ranks that stand at the same place together, fewest first; of equal ones who waits comes last."""
        found: dict[tuple[object, ...], list[int]] = {}
        for rank in sorted(self.ranks):
            found.setdefault(self.ranks[rank].main.key, []).append(rank)
        groups = [Group(tuple(ranks), self.ranks[ranks[0]].main) for ranks in found.values()]
        # Of two that are alike in everything else the one of the lower ranks is what others differ from.
        return tuple(sorted(groups, key=lambda one: (len(one.ranks), bool(one.thread.waits_in), -one.ranks[0])))

    @property
    def differ(self) -> tuple[int, ...]:
        """The ranks that do not stand where most do, or gave no stacks."""
        return tuple(sorted({rank for group in self.groups()[:-1] for rank in group.ranks} | self.missing.keys()))

    @property
    def _awaited(self) -> str:
        """For whom the ranks wait that wait in a collective operation: "it", "them", "" where that is not known."""
        others = self.groups()[:-1]
        if any(group.thread.waits_in for group in others):
            return ""
        late = sum(len(group.ranks) for group in others) + len(self.missing)
        return ("", "it")[late] if late < 2 else "them"

    @property
    def sentence(self) -> str:
        """Say who stands where and who waits for whom, as a clause without its full stop; "" when nobody answered."""
        groups = self.groups()
        clauses = [group.clause(self._awaited if group is groups[-1] else "") for group in groups]
        if self.missing:
            silent = sorted(self.missing)
            clauses.insert(0, f"{ranks_in_words(silent)} sent no stacks")
        if len(clauses) < 2:
            return "".join(clauses)
        return f"{', '.join(clauses[:-1][:3])}{', ...' if len(clauses) > 4 else ''}, while {clauses[-1]}"


def path(folder: JobFolder, number: int) -> Path:
    """Return where stacks are kept."""
    return folder.path / FOLDER / f"{number}.json"


def numbers(folder: JobFolder) -> list[int]:
    """Return the numbers of all that are kept, the oldest first."""
    names = (one.stem for one in (folder.path / FOLDER).glob("*.json"))
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii())


def read(folder: JobFolder, number: int | None = None) -> Taken | None:
    """Return kept stacks of a job, the newest by default; None when there are none, or none that can be read."""
    if number is None:
        number = max(numbers(folder), default=None)
    if number is None:
        return None
    try:
        data = json.loads(path(folder, number).read_text(encoding="utf-8"))
        return taken(number, data, payload(folder))
    except (OSError, ValueError, TypeError, AttributeError, LookupError):
        return None


def taken(number: int, data: Mapping[str, Any], code: Mapping[str, Any]) -> Taken:
    """Return the content of a file of stacks. Raises LookupError, TypeError, ValueError, AttributeError."""
    lines = data.get("sources") or {}
    found = {int(rank): collectives.read(one) for rank, one in (data.get("collectives") or {}).items()}
    reports = {rank: operations for rank, (operations, _) in found.items()}
    ended = {int(rank): str(how) for rank, how in (data.get("ended") or {}).items()}
    ranks = {int(rank): _rank(int(rank), one, code, lines) for rank, one in data["ranks"].items()}
    missing = {int(rank): str(why) for rank, why in (data.get("missing") or {}).items()}
    states = {rank: ended.get(rank, "") for rank in sorted({*ranks, *missing, *reports, *ended})}
    places = {rank: _place_in(Names(code, about, lines)) for rank, (_, about) in found.items()}
    table = collectives.rows(reports, states, places)
    for row in table:
        for rank in row.ranks:
            if row.state == "waiting" and rank in ranks:
                ranks[rank] = _with_collective(ranks[rank], row.title)
    stands = {rank: _stand_of(one.main) for rank, one in ranks.items()}
    finding = None if "raised" in ended.values() else collectives.explain(table, reports, stands)
    why = str(data.get("why", "asked"))
    return Taken(number, float(data["t"]), why, dict(sorted(ranks.items())), missing, table, finding)


def _place_in(names: Names) -> collectives.Place:
    def place(frames: Sequence[Frame]) -> str:
        own = names.thread(Thread("", tuple(frames)), main=True).own
        return "" if own is None else own.place

    return place


def _with_collective(rank: RankStacks, title: str) -> RankStacks:
    """Return the rank with what its main thread waits for, where that thread is inside torch."""
    main = rank.main
    if not any("/torch/" in frame.file for frame in main.inside):
        return rank
    changed = replace(main, collective=title)
    return replace(rank, threads=tuple(changed if one is main else one for one in rank.threads))


def _stand_of(main: Thread) -> str:
    """Return where the user's code is: "In [7], line 9 (time.sleep(10))"; "" where that is not known."""
    own = main.own
    if own is None or main.waits_in:
        return ""
    return f"{own.place} ({own.source})" if own.source else own.place


def _rank(
    rank: int, data: Mapping[str, Any], code: Mapping[str, Any], lines: Mapping[str, Mapping[str, str]]
) -> RankStacks:
    about = data.get("about") or {}
    names, threads = Names(code, about, lines), parse(str(data["text"]))
    main = str(about.get("main") or "")
    if all(one.ident != main for one in threads):
        # CPython lists the newest thread first, so the one that began the program comes last.
        main = threads[-1].ident if threads else ""
    named = tuple(names.thread(one, main=one.ident == main) for one in threads)
    return RankStacks(rank, tuple(sorted(named, key=lambda one: not one.main)), str(data.get("host") or ""),
                      data.get("pid"), str(data.get("state") or ""), data.get("step"), data.get("silent"),
                      str(data["text"]))  # fmt: skip


def payload(folder: JobFolder) -> dict[str, Any]:
    """Return what the job's payload.json says of its code, {} when it cannot be read."""
    try:
        found = json.loads((folder.path / "payload.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
