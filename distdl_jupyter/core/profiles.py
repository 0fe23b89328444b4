"""Recorded steps of a job: the slowest operators by rank.

A job's folder keeps each profile as ``profiles/<number>/``: ``profile.json``, and for each rank ``rank-N.json.gz``, a
Chrome trace (Google, "Trace Event Format") that Perfetto and HTA open. ``profile.json`` has::

    {"t", "steps", "ranks": [summary, ...], "missing": {"3": "why"}}

Each rank writes its ``summary`` (see ``worker.hooks.profile``).
"""

from __future__ import annotations

import functools
import gzip
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from distdl_jupyter.core.store import JobFolder

FOLDER = "profiles"
#: Maximum number of steps of a profile, and maximum size of a rank's trace in bytes.
MOST_STEPS, LARGEST = 50, 100_000_000
#: An outlier's time for an operator exceeds the mean of the others by this factor and by this share of a step.
_MIN_FACTOR, _MIN_SHARE = 1.25, 0.05
#: Maximum number of operators in a profile, and size of the pieces of a trace in bytes.
_MAX_OPERATORS, _CHUNK_BYTES = 100, 1 << 20
_NAME_FIELD = re.compile(r'"name": ("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True, slots=True)
class ProfiledRank:
    """The number of recorded steps of one rank, and the seconds of its mean step."""

    rank: int
    host: str
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Operator:
    """Means over ranks for an operator: calls and self time (seconds) per step, and its share of the step.

    ``kind`` is compute, communication, gpu or python. ``by_rank`` has the self time of each rank in seconds per step.
    ``stands_out`` is the outlier rank, None without one; it takes ``times`` times as long as the others.
    """

    name: str
    kind: str
    calls: float
    self_seconds: float
    share: float
    by_rank: dict[int, float]
    stands_out: int | None = None
    times: float = 0.0


@dataclass(frozen=True)
class Profile:
    """A recording of some steps of a job, requested at ``t`` (epoch seconds).

    ``seconds`` is the mean step over all ranks; ``traces`` maps ranks to their Chrome traces.
    """

    number: int
    t: float
    steps: int
    seconds: float
    ranks: tuple[ProfiledRank, ...]
    operators: tuple[Operator, ...]
    missing: dict[int, str] = field(default_factory=dict)
    traces: dict[int, Path] = field(default_factory=dict)
    uses_gpu: bool = False


class _Summary(msgspec.Struct):
    """The summary from one rank. An operator is (name, kind, calls, self time in microseconds)."""

    rank: int
    steps: int
    seconds: float
    operators: list[tuple[str, str, float, float]]
    host: str | None = None
    gpu: bool = False


class _ProfileFile(msgspec.Struct):
    t: float
    ranks: list[_Summary]
    missing: dict[int, str] = {}


def folder_of(folder: JobFolder, number: int) -> Path:
    """Return the folder of a profile."""
    return folder.path / FOLDER / str(number)


def numbers(folder: JobFolder) -> list[int]:
    """Return the numbers of all stored profiles, the oldest first."""
    names = (file.parent.name for file in (folder.path / FOLDER).glob("*/profile.json"))
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii())


def read(folder: JobFolder, number: int | None = None) -> Profile | None:
    """Return a stored profile, the newest by default; None if there is none or it cannot be read."""
    number = max(numbers(folder), default=0) if number is None else number
    path = folder_of(folder, number)
    try:
        return profile(number, json.loads((path / "profile.json").read_text(encoding="utf-8")), path)
    except (OSError, ValueError):
        return None


def profile(number: int, data: Mapping[str, Any], path: Path) -> Profile:
    """Return the content of a ``profile.json``. Raises ValueError."""
    content = msgspec.convert(data, _ProfileFile, str_keys=True)
    summaries = sorted(content.ranks, key=lambda summary: summary.rank)
    for summary in summaries:
        summary.steps = max(1, summary.steps)
    ranks = tuple(ProfiledRank(row.rank, row.host or "", row.steps, row.seconds / row.steps) for row in summaries)
    seconds = statistics.fmean(rank.seconds for rank in ranks) if ranks else 0.0
    traces = {rank.rank: path / f"rank-{rank.rank}.json.gz" for rank in ranks}
    return Profile(
        number=number,
        t=content.t,
        steps=max((rank.steps for rank in ranks), default=0),
        seconds=seconds,
        ranks=ranks,
        operators=tuple(_slowest_operators(summaries, seconds)),
        missing=content.missing,
        traces={rank: trace for rank, trace in traces.items() if trace.is_file()},
        uses_gpu=any(summary.gpu for summary in summaries),
    )


def _slowest_operators(summaries: Sequence[_Summary], step: float) -> list[Operator]:
    """Return the operators with the longest self time; ``step`` is the mean step of all ranks in seconds."""
    ranks = [summary.rank for summary in summaries]
    #: Calls and self time (seconds) per step of each rank, by name and kind.
    costs: dict[tuple[str, str], dict[int, tuple[float, float]]] = defaultdict(lambda: dict.fromkeys(ranks, (0.0, 0.0)))
    for summary in summaries:
        for name, kind, calls, microseconds in summary.operators:
            costs[name, kind][summary.rank] = calls / summary.steps, microseconds / 1e6 / summary.steps
    rows = []
    for (name, kind), cost in costs.items():
        calls, self_time = (statistics.fmean(values) for values in zip(*cost.values(), strict=True))
        by_rank = {rank: seconds for rank, (_, seconds) in cost.items()}
        slowest, *others = sorted(by_rank.values(), reverse=True)
        reference = statistics.fmean(others) if others else math.inf
        # Waiting ranks take longest in communication, so they are not outliers.
        is_outlier = kind != "communication" and slowest > max(_MIN_FACTOR * reference, reference + _MIN_SHARE * step)
        outlier = next(rank for rank in ranks if by_rank[rank] == slowest) if is_outlier else None
        times = slowest / reference if is_outlier and reference else 0.0
        rows.append(Operator(name, kind, calls, self_time, self_time / step if step else 0.0, by_rank, outlier, times))
    return sorted(rows, key=lambda row: -row.self_seconds)[:_MAX_OPERATORS]


def clean_names(trace: Path, clean: Callable[[str], str]) -> None:
    """Replace each name in a rank's trace by ``clean(name)``, to mask secrets. Raises OSError, ValueError."""
    temporary = trace.with_name(f".{trace.name}")

    @functools.cache
    def cleaned(name: str) -> str:
        return f'"name": {json.dumps(clean(json.loads(name, strict=False)))}'

    try:
        with (
            gzip.open(trace, "rt", encoding="utf-8", errors="replace") as source,
            gzip.open(temporary, "wt", 5, encoding="utf-8") as out,
        ):
            while lines := source.readlines(_CHUNK_BYTES):
                out.write(_NAME_FIELD.sub(lambda match: cleaned(match[1]), "".join(lines)))
        temporary.replace(trace)
    finally:
        temporary.unlink(missing_ok=True)
