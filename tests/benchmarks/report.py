"""The one format of all benchmarks: a table of ratios, in Markdown for the terminal and for the results page.

A benchmark is a module with ``measure(turns) -> Iterator[Report]`` that ends in

    if __name__ == "__main__":
        report.main(measure, turns=5)

and runs alone from the top of the repository as ``python -m tests.benchmarks.NAME [--turns N] [--into FILE]``. In it:

    table = Report("A finished job is listed", unit="ms")
    times = interleaved({"ours": ours, "plain json": plain}, turns)        # seconds, or what the functions return
    table.compare("1,000 jobs", times["ours"], "plain json", times["plain json"], at_most=1.5)
    table.value("1,000 jobs, `jobs()`", times["ours"], at_most=100)       # a promise that is no ratio, in the unit
    table.missing("1,000 jobs", "ray job list", "ray is not installed")
    yield table

``ours`` and ``theirs`` are one measurement for each turn, in seconds for the units of time ("us", "ms", "s") and as
they are for any other unit. The ratio is median by median, ours divided by theirs; the spread is the lowest and the
highest of the turns' own ratios, turn by turn, for turns that met the same moments of the machine. With ``paired`` the
ratio is the median of the turns' own ratios, and a note has its 95 % interval (bootstrap). ``at_most`` and
``at_least`` are what was promised: of the ratio in ``compare``, of the median in ``value``. Nothing here fails: a
table says what is met and what is not.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

SCALES = {"s": 1.0, "ms": 1e3, "us": 1e6}


@dataclass(frozen=True)
class Row:
    """One line of a table; ``ours`` and ``theirs`` are medians in the table's unit, NaN where there is none."""

    name: str
    unit: str
    ours: float
    peer: str = ""
    theirs: float = math.nan
    ratio: float = math.nan
    spread: tuple[float, float] = (math.nan, math.nan)
    turns: int = 0
    goal: str = ""
    met: bool | None = None
    note: str = ""


@dataclass
class Report:
    """One table; ``versions`` is what stood against each other."""

    title: str
    unit: str = "ms"
    versions: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def compare(
        self,
        name: str,
        ours: Sequence[float],
        peer: str,
        theirs: Sequence[float],
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        note: str = "",
        paired: bool = False,
    ) -> None:
        """Add a ratio."""
        here, there = statistics.median(ours), statistics.median(theirs)
        turns = [one / other for one, other in zip(ours, theirs, strict=False) if other]
        ratio = here / there if there else math.inf
        if paired and turns:
            ratio = statistics.median(turns)
            low, high = interval(turns)
            note = "; ".join(filter(None, (note, f"95 % interval {number(low)}-{number(high)}")))
        goal, met = _goal(ratio, at_most, at_least, "")
        spread = (min(turns), max(turns)) if turns else (ratio, ratio)
        scale = SCALES.get(self.unit, 1.0)
        self.rows.append(
            Row(name, self.unit, here * scale, peer, there * scale, ratio, spread, len(turns), goal, met, note)
        )

    def value(
        self,
        name: str,
        ours: Sequence[float],
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        unit: str = "",
        note: str = "",
    ) -> None:
        """Add a measurement without a peer; its spread is the lowest and the highest turn."""
        unit = unit or self.unit
        scaled = [one * SCALES.get(unit, 1.0) for one in ours]
        goal, met = _goal(median := statistics.median(scaled), at_most, at_least, f" {unit}")
        self.rows.append(
            Row(name, unit, median, spread=(min(scaled), max(scaled)), turns=len(scaled), goal=goal, met=met, note=note)
        )

    def missing(self, name: str, peer: str, reason: str) -> None:
        """Say that a peer could not be measured, and why."""
        self.rows.append(Row(name, self.unit, math.nan, peer, note=reason))

    def text(self) -> str:
        """Return the table as Markdown."""
        lines = [f"**{self.title}**" + (f" ({listed(self.versions)})" if self.versions else ""), ""]
        lines += [
            "|  | ours | peer | peer's | ratio | spread | n | goal, note |",
            "|---|---:|---|---:|---:|---:|---:|---|",
        ]
        return "\n".join([*lines, *(f"| {' | '.join(_cells(row))} |" for row in self.rows)])


def interval(values: Sequence[float], samples: int = 10_000) -> tuple[float, float]:
    """Return the 95 % interval of the median of these values, by the bootstrap."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(samples))
    return medians[samples // 40], medians[-1 - samples // 40]


def interleaved(
    ways: Mapping[str, Callable[[], float | None]], turns: int, *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Run all ways in turn, so that a slow moment of the machine meets all of them; return what each turn took.

    Every other turn runs them in the opposite order.

    A way that returns None is timed here, in seconds; one that returns a number has measured itself. ``warm_up`` adds
    a first turn that does not count.
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-int(warm_up), turns):
        for name, way in list(ways.items())[:: -1 if turn % 2 else 1]:
            begun = time.perf_counter()
            told = way()
            cost = time.perf_counter() - begun if told is None else told
            if turn >= 0:
                taken[name].append(cost)
    return taken


def machine() -> str:
    """Return the machine in a few words, without its name."""
    cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{cores} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    )


def versions(*names: str) -> dict[str, str]:
    """Return the versions of the packages that are installed in this environment."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def listed(named: Mapping[str, str]) -> str:
    """Return versions in one line."""
    return ", ".join(f"{name} {version}" for name, version in named.items())


def main(measure: Callable[[int], Iterable[Report]], *, turns: int) -> None:
    """Measure, print each table as soon as it is there, and write it where ``--into`` says."""
    parser = argparse.ArgumentParser(description="Measures and prints a table of ratios.")
    parser.add_argument("--turns", type=int, default=turns, help=f"measurements of each way (default: {turns})")
    parser.add_argument("--into", type=Path, help="a file to which each table is added")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    print(machine(), flush=True)
    for table in measure(given.turns):
        print("", table.text(), sep="\n", flush=True)
        if given.into:
            with given.into.open("a") as file:
                file.write(f"\n{table.text()}\n")


def _goal(found: float, most: float | None, least: float | None, unit: str) -> tuple[str, bool | None]:
    if most is not None:
        return f"<= {number(most)}{unit}", found <= most
    if least is not None:
        return f">= {number(least)}{unit}", found >= least
    return "", None


def _cells(row: Row) -> list[str]:
    ours, theirs = (f"{number(one)} {row.unit}" if not math.isnan(one) else "" for one in (row.ours, row.theirs))
    low, high = row.spread
    spread = "" if math.isnan(low) else f"{number(low)}-{number(high)}"
    met = {None: "", True: ", met", False: ", **not met**"}[row.met]
    note = "; ".join(filter(None, (f"{row.goal}{met}", row.note)))
    ratio = "" if math.isnan(row.ratio) else number(row.ratio)
    return [row.name, ours, row.peer, theirs, ratio, spread, str(row.turns or ""), note]


def number(value: float) -> str:
    """Return a number with three digits that count."""
    if not math.isfinite(value) or value == 0:
        return str(value)
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 5)}f}"
