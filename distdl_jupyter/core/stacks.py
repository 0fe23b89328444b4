"""Stacks of the threads of a job's ranks at one moment: read, named like code, and compared.

A job's folder keeps a dump as ``stacks/<number>.json``::

    {"t", "why", "ranks": {"0": {"text", "host", "pid", "state", "step", "silent", "about"}}, "missing": {"3": "why"},
     "sources": {file: {line: text}}, "collectives": {"0": {...}}, "ended": {"3": "finished"}}

``text`` is what ``faulthandler`` writes, ``silent`` the seconds since the rank's last sign, ``about`` the rank's
description of itself (see ``worker.stacks``), ``sources`` the lines of the user's own files at that time,
``collectives`` the last collective operations of each rank and ``ended`` how ranks ended (see ``core.collectives``).
Pure except for ``read``; it does not know how stacks are requested.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distdl_jupyter.core import collectives
from distdl_jupyter.core.collectives import Collective, Finding
from distdl_jupyter.core.humanize import ranks as ranks_in_words
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.threads import Frame, Names, Thread, parse

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
        return tuple(item for item in self.threads if not item.main and (item.own is not None or not item.is_workers))


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks whose main threads are at the same position; ``thread`` is the main thread of the first of them."""

    ranks: tuple[int, ...]
    thread: Thread

    @property
    def position(self) -> str:
        """Return their position: "In [7], line 12", "hvd.allreduce (In [7], line 20)"."""
        own_frame, waits = self.thread.own, self.thread.waits_in
        frame = own_frame or next(iter(self.thread.frames), None)
        if own_frame is None and self.thread.frames and all(entry.kind == "worker" for entry in self.thread.frames):
            return "code outside the job"
        location = "native code" if frame is None else frame.place
        return f"{waits} ({location})" if waits else location

    @property
    def sentence(self) -> str:
        """Return it as a clause: "rank 2 is in In [7], line 12"."""
        return self.clause()

    def clause(self, awaited: str = "") -> str:
        """Return the sentence, with whom the ranks wait for: "rank 0 waits for it in hvd.allreduce (In [7])"."""
        is_single = len(self.ranks) == 1
        if self.thread.waits_in:
            whom = f" for {awaited}" if awaited else ""
            return f"{ranks_in_words(list(self.ranks))} {'waits' if is_single else 'wait'}{whom} in {self.position}"
        return f"{ranks_in_words(list(self.ranks))} {'is' if is_single else 'are'} in {self.position}"


@dataclass(frozen=True)
class Taken:
    """The stacks of all ranks of a job at one moment ``t`` (epoch seconds).

    ``why`` is asked, stall, hang, time or failure; ``missing`` has the reason of each rank that sent none.
    ``collectives`` is the last collective operation of each rank, ``finding`` the conclusion from them.
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
        """Return why the ranks wait and the remedy, as sentences; "" if the operations do not explain it."""
        return f"{self.finding.text} {self.finding.remedy}" if self.finding is not None else ""

    def groups(self) -> tuple[RankGroup, ...]:
        """Return groups of ranks at the same position, fewest ranks first; of equal groups a waiting one comes last."""
        ranks_by_key: dict[tuple[object, ...], list[int]] = {}
        for rank in sorted(self.ranks):
            ranks_by_key.setdefault(self.ranks[rank].main.key, []).append(rank)
        groups = [RankGroup(tuple(ranks), self.ranks[ranks[0]].main) for ranks in ranks_by_key.values()]
        # Of two groups that are otherwise alike, the one with the lower ranks is the reference.
        return tuple(sorted(groups, key=lambda group: (len(group.ranks), bool(group.thread.waits_in), -group.ranks[0])))

    @property
    def differ(self) -> tuple[int, ...]:
        """Return the ranks that are not where most ranks are, or sent no stacks."""
        return tuple(sorted({rank for group in self.groups()[:-1] for rank in group.ranks} | self.missing.keys()))

    @property
    def _awaited(self) -> str:
        """Return whom the ranks in a collective operation wait for: "it", "them", or "" if unknown."""
        others = self.groups()[:-1]
        if any(group.thread.waits_in for group in others):
            return ""
        late = sum(len(group.ranks) for group in others) + len(self.missing)
        return ("", "it")[late] if late < 2 else "them"

    @property
    def sentence(self) -> str:
        """Return where the ranks are and whom they wait for, as a clause without a full stop; "" without any stacks."""
        groups = self.groups()
        clauses = [group.clause(self._awaited if group is groups[-1] else "") for group in groups]
        if self.missing:
            silent = sorted(self.missing)
            clauses.insert(0, f"{ranks_in_words(silent)} sent no stacks")
        if len(clauses) < 2:
            return "".join(clauses)
        return f"{', '.join(clauses[:-1][:3])}{', ...' if len(clauses) > 4 else ''}, while {clauses[-1]}"


def path(folder: JobFolder, number: int) -> Path:
    """Return the path of a dump."""
    return folder.path / FOLDER / f"{number}.json"


def numbers(folder: JobFolder) -> list[int]:
    """Return the numbers of all dumps, the oldest first."""
    names = (file.stem for file in (folder.path / FOLDER).glob("*.json"))
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii())


def read(folder: JobFolder, number: int | None = None) -> Taken | None:
    """Return a dump of a job, the newest by default; None if there is none or it cannot be read."""
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
    reported = {int(rank): collectives.read(entry) for rank, entry in (data.get("collectives") or {}).items()}
    reports = {rank: operations for rank, (operations, _) in reported.items()}
    ended = {int(rank): str(how) for rank, how in (data.get("ended") or {}).items()}
    ranks = {int(rank): _rank(int(rank), entry, code, lines) for rank, entry in data["ranks"].items()}
    missing = {int(rank): str(why) for rank, why in (data.get("missing") or {}).items()}
    states = {rank: ended.get(rank, "") for rank in sorted({*ranks, *missing, *reports, *ended})}
    locators = {rank: _place_in(Names(code, about, lines)) for rank, (_, about) in reported.items()}
    table = collectives.rows(reports, states, locators)
    for row in table:
        for rank in row.ranks:
            if row.state == "waiting" and rank in ranks:
                ranks[rank] = _with_collective(ranks[rank], row.title)
    stands = {rank: _stand_of(stacks.main) for rank, stacks in ranks.items()}
    finding = None if "raised" in ended.values() else collectives.explain(table, reports, stands)
    why = str(data.get("why", "asked"))
    return Taken(number, float(data["t"]), why, dict(sorted(ranks.items())), missing, table, finding)


def _place_in(names: Names) -> collectives.Place:
    def locate(frames: Sequence[Frame]) -> str:
        frame = names.thread(Thread("", tuple(frames)), main=True).own
        return "" if frame is None else frame.place

    return locate


def _with_collective(rank: RankStacks, title: str) -> RankStacks:
    """Return the rank with the operation that its main thread waits for, if that thread is inside torch."""
    main = rank.main
    if not any("/torch/" in frame.file for frame in main.inside):
        return rank
    changed = replace(main, collective=title)
    return replace(rank, threads=tuple(changed if thread is main else thread for thread in rank.threads))


def _stand_of(main: Thread) -> str:
    """Return the position in the user's code: "In [7], line 9 (time.sleep(10))"; "" if it is unknown."""
    frame = main.own
    if frame is None or main.waits_in:
        return ""
    return f"{frame.place} ({frame.source})" if frame.source else frame.place


def _rank(
    rank: int, data: Mapping[str, Any], code: Mapping[str, Any], lines: Mapping[str, Mapping[str, str]]
) -> RankStacks:
    about = data.get("about") or {}
    names, threads = Names(code, about, lines), parse(str(data["text"]))
    main = str(about.get("main") or "")
    if all(thread.ident != main for thread in threads):
        # CPython lists the newest thread first, so the main thread comes last.
        main = threads[-1].ident if threads else ""
    named = tuple(names.thread(thread, main=thread.ident == main) for thread in threads)
    return RankStacks(rank, tuple(sorted(named, key=lambda thread: not thread.main)), str(data.get("host") or ""),
                      data.get("pid"), str(data.get("state") or ""), data.get("step"), data.get("silent"),
                      str(data["text"]))  # fmt: skip


def payload(folder: JobFolder) -> dict[str, Any]:
    """Return the description of the code in the job's payload.json, {} if it cannot be read."""
    try:
        data = json.loads((folder.path / "payload.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
