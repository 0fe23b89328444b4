"""Runs the benchmarks and writes the results page, RESULTS.md beside this file.

    python -m tests.benchmarks.results [--write] [--turns N] [NAME ...]

Each benchmark runs in a process of its own. ``--write`` puts its tables into the page; those of benchmarks that did
not run stay as they are, so a part can be measured anew alone. Each section says when and on what it was measured.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tests.benchmarks.report import machine

HERE = Path(__file__).parent
PAGE = HERE / "RESULTS.md"
README = HERE.parents[1] / "README.md"
#: In the page's order: what a user waits for first.
BENCHMARKS = (
    "first_curve",
    "first_step",
    "ranks_cell",
    "throughput",
    "step_overhead",
    "flood",
    "log_latency",
    "listing",
    "server_start",
    "staging",
    "many_ranks",
)
#: What README claims: (its text, the section, the beginning of the table's title, the row, its peer or "").
CLAIMS = (
    ("from `pip install` to the first curve, without downloads", "first_curve", "From", "all of it", ""),
    ("a warm Horovod job, to its first optimizer step", "first_step", "Warm", "warm horovod", "horovodrun"),
    ("a warm torch job, to its first optimizer step", "first_step", "Warm", "warm torch", "notebook_launcher"),
    ("a cold Horovod job", "first_step", "Cold", "cold horovod, same script", "horovodrun"),
    ("a cold torch job", "first_step", "Cold", "cold torch, same script", "torchrun"),
)
_CLAIMS_BEGIN, _CLAIMS_END = "<!-- measured: written by make bench WRITE=1 -->\n", "<!-- end of measured -->\n"
HEAD = """# Results of the benchmarks

Written by `make bench WRITE=1`. Each table comes from one run that alternated between this package and its peer. Values
are medians; the spread is the lowest and the highest ratio of a turn. A ratio is our time divided by the peer's. The
times are of one small machine and only meant for these ratios.
"""


def main() -> None:
    """Run what was asked for; end with 1 where a benchmark failed (not where a goal was missed)."""
    parser = argparse.ArgumentParser(description="Runs the benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--write", action="store_true", help="write the tables into RESULTS.md")
    parser.add_argument("--turns", type=int, help="measurements of each way (default: each benchmark's own)")
    given = parser.parse_args()
    if unknown := set(given.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    failed = [name for name in given.names or BENCHMARKS if not _run(name, given.turns, write=given.write)]
    if failed:
        raise SystemExit(f"These benchmarks failed: {', '.join(failed)}.")


def _run(name: str, turns: int | None, *, write: bool) -> bool:
    print(f"\n=== {name}", flush=True)
    begun = time.monotonic()
    with tempfile.NamedTemporaryFile("r", suffix=".md") as file:
        command = [sys.executable, "-m", f"tests.benchmarks.{name}", "--into", file.name]
        command += [f"--turns={turns}"] if turns else []
        done = subprocess.run(command, cwd=HERE.parents[1], stdin=subprocess.DEVNULL)
        tables = file.read()
    print(f"({time.monotonic() - begun:.0f} s)", flush=True)
    if write and tables:
        day = dt.datetime.now(dt.UTC).date()
        write_section(name, f"## {name}\n\n{machine()}; {day}.\n{tables}")
        README.write_text(with_claims(README.read_text(), PAGE.read_text()))
    return done.returncode == 0


def write_section(name: str, text: str, page: Path = PAGE) -> None:
    """Put a section into the page, in its place."""
    found = dict(sections(page.read_text())) if page.exists() else {}
    found[name] = text
    page.write_text("\n".join([HEAD, *(found[one] for one in BENCHMARKS if one in found)]))


def with_claims(readme: str, page: str) -> str:
    """Return README with its measured claims as the page has them. Raises StopIteration for a row that is not there."""
    before, begin, rest = readme.partition(_CLAIMS_BEGIN)
    _, end, after = rest.partition(_CLAIMS_END)
    found = dict(sections(page))
    lines = ["| benchmark | result | relative to |", "|---|---:|---|"]
    for text, name, title, row, peer in CLAIMS:
        table_ = next(part for part in found[name].split("\n**") if part.removeprefix("**").startswith(title))
        rows = (line for line in table_.splitlines() if line.startswith(f"| {row} | "))
        cells = next(line.split(" | ") for line in rows if f" | {peer} | " in line)
        lines.append(f"| {text} | {cells[4] or cells[1]} | {peer} |")
    return f"{before}{begin}{chr(10).join(lines)}\n{end}{after}"


def sections(page: str) -> Iterable[tuple[str, str]]:
    """Yield the name and the text of each section of a page."""
    for part in re.split(r"(?m)^(?=## )", page)[1:]:
        yield part.partition("\n")[0].removeprefix("## "), part.rstrip() + "\n"


if __name__ == "__main__":
    main()
