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
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from distdl_jupyter.core.store import JobFolder

#: Maximum number of steps of a profile.
MAX_STEPS = 50
#: Maximum size of a rank's trace in bytes.
MAX_TRACE_BYTES = 100_000_000
#: Maximum number of operators of a profile.
_MAX_OPERATORS = 100
#: Bytes of a trace that are processed at a time.
_CHUNK_BYTES = 1 << 20
#: The name of an event in a Chrome trace.
_NAME_FIELD = re.compile(r'"name": ("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True, slots=True)
class ProfiledRank:
    """The number of recorded steps of one rank, and the seconds of its mean step (in a summary, of all its steps)."""

    rank: int
    host: str
    steps: Annotated[int, msgspec.Meta(ge=1)]
    seconds: float


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator: means over ranks of its calls and self time (seconds, also by rank) per step, and of its share."""

    name: str
    kind: str  # compute, communication, gpu or python
    calls: float
    self_seconds: float
    share: float
    by_rank: dict[int, float]


@dataclass(frozen=True)
class Profile:
    """A recording of some steps, requested at ``t`` (epoch seconds): mean step in seconds, Chrome traces by rank."""

    number: int
    t: float
    steps: int
    seconds: float
    ranks: tuple[ProfiledRank, ...]
    operators: tuple[Operator, ...]
    missing: dict[int, str] = field(default_factory=dict)
    traces: dict[int, Path] = field(default_factory=dict)


def list_numbers(folder: JobFolder) -> list[int]:
    """Return the numbers of all stored profiles, the oldest first."""
    names = (file.parent.name for file in folder.profiles.glob("*/profile.json"))
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii())


def read(folder: JobFolder, number: int | None = None) -> Profile | None:
    """Return a stored profile, the newest by default, or None if there is none or it cannot be read."""
    number = max(list_numbers(folder), default=0) if number is None else number
    path = folder.profiles / str(number)
    try:
        return parse_profile(number, json.loads((path / "profile.json").read_text(encoding="utf-8")), path)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def parse_profile(number: int, data: Mapping[str, Any], path: Path) -> Profile:
    """Return the content of a ``profile.json``. Raises ValueError, LookupError, TypeError, AttributeError."""
    ranks: list[ProfiledRank] = []
    #: Calls and self time (seconds) per step of each rank, by name and kind.
    costs: dict[tuple[str, str], dict[int, tuple[float, float]]] = defaultdict(dict)
    for summary in sorted(data["ranks"], key=lambda entry: entry["rank"]):
        rank = msgspec.convert(summary, ProfiledRank)
        ranks.append(replace(rank, seconds=rank.seconds / rank.steps))
        rows = msgspec.convert(summary["operators"], list[tuple[str, str, float, float]])
        for name, kind, calls, microseconds in rows:
            costs[name, kind][rank.rank] = calls / rank.steps, microseconds / 1e6 / rank.steps
    step = statistics.fmean(rank.seconds for rank in ranks) if ranks else 0.0
    operators = []
    for (name, kind), cost in costs.items():
        calls, seconds = (sum(values) / len(ranks) for values in zip(*cost.values(), strict=True))
        by_rank = {rank.rank: cost.get(rank.rank, (0.0, 0.0))[1] for rank in ranks}
        operators.append(Operator(name, kind, calls, seconds, seconds / step if step else 0.0, by_rank))
    operators.sort(key=lambda operator: -operator.self_seconds)
    missing = {int(rank): str(reason) for rank, reason in data.get("missing", {}).items()}
    traces = {rank.rank: file for rank in ranks if (file := path / f"rank-{rank.rank}.json.gz").is_file()}
    steps, best = max((rank.steps for rank in ranks), default=0), tuple(operators[:_MAX_OPERATORS])
    return Profile(number, float(data["t"]), steps, step, tuple(ranks), best, missing, traces)


def mask_names(trace: Path, mask: Callable[[str], str]) -> None:
    """Replace each name in a rank's trace by ``mask(name)``, without secrets. Raises OSError, ValueError."""
    temporary = trace.with_name(f".{trace.name}")

    @functools.cache
    def mask_field(name: str) -> str:
        return f'"name": {json.dumps(mask(json.loads(name, strict=False)))}'

    try:
        with (
            gzip.open(trace, "rt", encoding="utf-8", errors="replace") as source,
            gzip.open(temporary, "wt", 5, encoding="utf-8") as out,
        ):
            while lines := source.readlines(_CHUNK_BYTES):
                out.write(_NAME_FIELD.sub(lambda match: mask_field(match[1]), "".join(lines)))
        temporary.replace(trace)
    finally:
        temporary.unlink(missing_ok=True)
