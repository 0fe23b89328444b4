"""Recorded steps of a job: the slowest operators, compared between ranks.

A job's folder keeps each profile as ``profiles/<number>/``: ``profile.json``, and for each rank ``rank-N.json.gz``, a
Chrome trace (Google, "Trace Event Format") that Perfetto and HTA open. ``profile.json`` has::

    {"t", "steps", "ranks": [summary, ...], "missing": {"3": "why"}}

``summary`` is what a rank wrote (``worker.hooks.profile``).
"""

from __future__ import annotations

import gzip
import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distdl_jupyter.core.store import JobFolder

FOLDER = "profiles"
#: Steps of one profile, and bytes of one rank's trace, at most.
MOST_STEPS, LARGEST = 50, 100_000_000
#: An outlier rank needs this many times as long for an operator as the others, and this share of a step more.
_TIMES, _PART = 1.25, 0.05
#: Operators that are compared.
_OPERATORS = 100
_PIECE = 1 << 20
_NAME = re.compile(r'"name": ("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True, slots=True)
class ProfiledRank:
    """The recorded steps of one rank, and the seconds of the mean step."""

    rank: int
    host: str
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator, in the mean over ranks: calls and seconds of its own a step, and their share of the step.

    ``kind`` is compute, communication, gpu or python. ``by_rank`` has each rank's own seconds a step; ``stands_out`` is
    a rank that needs clearly longer than the others, ``times`` as long.
    """

    name: str
    kind: str
    calls: float
    own: float
    share: float
    by_rank: dict[int, float]
    stands_out: int | None = None
    times: float = 0.0


@dataclass(frozen=True)
class Profile:
    """Some recorded steps of a job; ``t`` is when they were requested (epoch seconds).

    ``traces`` are the paths of the Chrome traces by rank.
    """

    number: int
    t: float
    steps: int
    ranks: tuple[ProfiledRank, ...]
    operators: tuple[Operator, ...]
    missing: dict[int, str] = field(default_factory=dict)
    traces: dict[int, Path] = field(default_factory=dict)
    uses_gpu: bool = False

    @property
    def seconds(self) -> float:
        """The mean step over all ranks."""
        return statistics.fmean(rank.seconds for rank in self.ranks) if self.ranks else 0.0


def folder_of(folder: JobFolder, number: int) -> Path:
    """Return where a profile is kept."""
    return folder.path / FOLDER / str(number)


def numbers(folder: JobFolder) -> list[int]:
    """Return the numbers of all stored profiles, the oldest first."""
    names = (file.parent.name for file in (folder.path / FOLDER).glob("*/profile.json"))
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii())


def read(folder: JobFolder, number: int | None = None) -> Profile | None:
    """Return a kept profile, the newest by default; None when there is none, or none that can be read."""
    if number is None:
        number = max(numbers(folder), default=None)
    if number is None:
        return None
    path = folder_of(folder, number)
    try:
        return profile(number, json.loads((path / "profile.json").read_text(encoding="utf-8")), path)
    except (OSError, ValueError, TypeError, AttributeError, LookupError):
        return None


def profile(number: int, data: Mapping[str, Any], path: Path) -> Profile:
    """Return the content of a ``profile.json``. Raises LookupError, TypeError, ValueError, AttributeError."""
    summaries = sorted(data["ranks"], key=lambda summary: int(summary["rank"]))
    ranks = [
        ProfiledRank(int(summary["rank"]), str(summary.get("host") or ""), steps, float(summary["seconds"]) / steps)
        for summary in summaries
        if (steps := max(1, int(summary["steps"])))
    ]
    traces = {int(summary["rank"]): path / f"rank-{int(summary['rank'])}.json.gz" for summary in summaries}
    return Profile(
        number=number,
        t=float(data["t"]),
        steps=max((int(summary["steps"]) for summary in summaries), default=0),
        ranks=tuple(ranks),
        operators=tuple(_operators(summaries, statistics.fmean(rank.seconds for rank in ranks) if ranks else 0.0)),
        missing={int(rank): str(why) for rank, why in (data.get("missing") or {}).items()},
        traces={rank: trace for rank, trace in traces.items() if trace.is_file()},
        uses_gpu=any(summary.get("gpu") for summary in summaries),
    )


def _operators(summaries: Sequence[Mapping[str, Any]], step: float) -> list[Operator]:
    """Return the operators with the most time of their own; ``step`` is the mean step of all ranks in seconds."""
    by_operator: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
    for summary in summaries:
        steps = max(1, int(summary["steps"]))
        for name, kind, calls, microseconds in summary["operators"]:
            row = float(calls) / steps, float(microseconds) / 1e6 / steps
            by_operator.setdefault((str(name), str(kind)), {})[int(summary["rank"])] = row
    ranks = [int(summary["rank"]) for summary in summaries]
    rows = [_operator(name, kind, of, ranks, step) for (name, kind), of in by_operator.items()]
    return sorted(rows, key=lambda row: -row.own)[:_OPERATORS]


def _operator(
    name: str, kind: str, of: Mapping[int, tuple[float, float]], ranks: Sequence[int], step: float
) -> Operator:
    calls, own_seconds = (statistics.fmean(of.get(rank, (0.0, 0.0))[at] for rank in ranks) for at in range(2))
    by_rank = {rank: of.get(rank, (0.0, 0.0))[1] for rank in ranks}
    most = max(ranks, key=lambda rank: by_rank[rank])
    others = statistics.fmean(by_rank[rank] for rank in ranks if rank != most) if len(ranks) > 1 else math.inf
    # In communication the ranks that wait take longest: they are not at fault.
    stands_out = kind != "communication" and by_rank[most] > _TIMES * others and by_rank[most] - others > _PART * step
    times = by_rank[most] / others if stands_out and others else 0.0
    return Operator(
        name,
        kind,
        calls,
        own_seconds,
        own_seconds / step if step else 0.0,
        by_rank,
        most if stands_out else None,
        times,
    )


# secrets in names ----------------------------------------------------------------------------------


def clean_names(trace: Path, clean: Callable[[str], str]) -> None:
    """Replace each name in a rank's trace by ``clean(name)``. Raises OSError, ValueError."""
    hidden = trace.with_name(f".{trace.name}")
    names: dict[str, str] = {}
    try:
        with (
            gzip.open(trace, "rt", encoding="utf-8", errors="replace") as source,
            gzip.open(hidden, "wt", 5, encoding="utf-8") as out,
        ):
            while lines := source.readlines(_PIECE):
                out.write(_NAME.sub(lambda match: _cleaned(match[1], names, clean), "".join(lines)))
        hidden.replace(trace)
    finally:
        hidden.unlink(missing_ok=True)


def _cleaned(name: str, names: dict[str, str], clean: Callable[[str], str]) -> str:
    if name not in names:
        names[name] = f'"name": {json.dumps(clean(json.loads(name, strict=False)))}'
    return names[name]
