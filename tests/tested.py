"""Writes the page that tells the last run of all tests (``python -m tests.tested``, for ``make test-all``)."""

import subprocess
import time
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

from tests.faults.frame import machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests" / "artifacts" / "tests.xml"
PAGE = ROOT / "docs" / "tested" / "all.md"
STATES = ("passed", "failed", "skipped")


def counts(results: str) -> dict[str, Counter[str]]:
    """Return how many tests passed, failed and were skipped, by folder, from a JUnit file's text."""
    found: dict[str, Counter[str]] = {}
    for case in ET.fromstring(results).iter("testcase"):
        folder = case.get("classname", "").split(".")[1]
        kinds = {child.tag for child in case}
        state = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found.setdefault(folder, Counter())[state] += 1
    return dict(sorted(found.items()))


def page(found: dict[str, Counter[str]], commit: str, date: str, on: str) -> str:
    """Return the page, in Markdown."""
    whole = sum(found.values(), Counter())
    lines = [
        "# The last run of all tests",
        "",
        f"`make test-all` on {date}, at commit {commit}. {on}",
        "A test that failed beside others and passed alone counts as failed.",
        "",
        "| tests | passed | failed | skipped |",
        "|---|---:|---:|---:|",
        *(f"| {name} | {' | '.join(f'{one[state]:,}' for state in STATES)} |" for name, one in found.items()),
        f"| **all** | {' | '.join(f'{whole[state]:,}' for state in STATES)} |",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=8"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    found = counts(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(page(found, commit, time.strftime("%Y-%m-%d"), machine()), encoding="utf-8")


if __name__ == "__main__":
    main()
