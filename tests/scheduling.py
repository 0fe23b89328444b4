"""How the tests are spread over the workers of pytest-xdist, how far they are, and how long each file takes.

Tests of one file stay on one worker and in their order, because they share fixtures; so do those of the one Slurm that
this machine can have, and those of the browser, which with its JupyterLab is as much as one processor bears. Files
begin in the order of their recorded durations, the longest first, so that no worker is left with a long one at the
end. ``durations.json`` beside this file holds the seconds of each file; ``make test WRITE=1`` records them anew.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

RECORDED = Path(__file__).with_name("durations.json")
#: Folders of which one worker runs everything.
TOGETHER = ("tests/browser", "tests/clusters/slurm")
#: Seconds that a file without a recorded duration is taken to need.
_UNKNOWN = 5.0
#: Seconds between two lines of progress.
_PERIOD = 20.0


def scope(nodeid: str) -> str:
    """Return what a test stays together with: its file, or its folder."""
    file = nodeid.split("::", 1)[0]
    return next((folder for folder in TOGETHER if file.startswith(folder + "/")), file)


def recorded() -> dict[str, float]:
    """Return the seconds that each scope took when its durations were recorded."""
    try:
        return dict(json.loads(RECORDED.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _side_by_side(config: pytest.Config) -> bool:
    return bool(config.getoption("numprocesses", None)) or hasattr(config, "workerinput")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--progress", action="store_true", help="show progress with the time left instead of dots")
    parser.addoption("--keep-durations", default="", help="with --progress: the file for the seconds of each scope")
    parser.addoption(
        "--keep-started", default="", help="with --progress: the file for the tests whose jobs started warm"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--progress") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(config), "progress")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the longest files begin first when tests run side by side; alone they keep their order."""
    if _side_by_side(config):
        seconds = recorded()
        items.sort(key=lambda item: -seconds.get(scope(item.nodeid), _UNKNOWN))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Refuse tests of one name: the scheduler would run the first of them alone."""
    twice = [name for name, count in Counter(ids).items() if count > 1]
    if twice:
        raise pytest.UsageError(f"Several tests are called {twice[0]}: only the first of them would run.")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler of pytest-xdist that keeps a scope together."""
    from xdist.scheduler import LoadScopeScheduling

    class FilesTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    return FilesTogether(config, log)


class Progress:
    """Prints how many tests are done and how long the others will take; at the end keeps how long each file took."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._workers = config.getoption("numprocesses", None) or 1
        self._outcomes: Counter[str] = Counter()
        self._took: defaultdict[str, float] = defaultdict(float)
        self._left: Counter[str] = Counter()
        self._started: set[str] = set()
        self._total: dict[str, int] = {}
        self._began = self._shown = time.monotonic()

    # The controller of xdist collects nothing itself: it learns the tests from its workers.
    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._expect(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect([item.nodeid for item in session.items])

    def _expect(self, ids: list[str]) -> None:
        if ids and not self._total:
            self._left = Counter(map(scope, ids))
            self._total = dict(self._left)
            self._began = time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print no letters: failures have lines of their own."""
        if report.failed:
            return "failed" if report.when == "call" else "error", "", "FAILED"
        if report.skipped:
            return "skipped", "", ""
        return ("passed", "", "") if report.when == "call" else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took[scope(report.nodeid)] += report.duration
        if report.failed:
            self._outcomes["failed"] += 1
            self._print(f"FAILED {report.nodeid}")
        if report.when == "teardown":
            self._outcomes["done"] += 1
            self._left[scope(report.nodeid)] -= 1
            if any(name == "start" and value == "warm" for name, value in report.user_properties):
                self._started.add(report.nodeid)
            if time.monotonic() - self._shown >= _PERIOD:
                self._shown = time.monotonic()
                self._print(self._line())

    def _print(self, line: str) -> None:
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        reporter.ensure_newline()
        reporter.write_line(line)

    def _line(self) -> str:
        done, failed = self._outcomes["done"], self._outcomes["failed"]
        return (
            f"{_clock(time.monotonic() - self._began)}  {done} of {sum(self._total.values())} tests, {failed} failed; "
            f"about {_clock(self._seconds_left())} left"
        )

    def _seconds_left(self) -> float:
        """Return the recorded seconds of what is left, at the pace of this machine so far."""
        seconds = recorded()
        known = {name: seconds.get(name, _UNKNOWN) for name in self._total}
        left = sum(known[name] * self._left[name] / count for name, count in self._total.items())
        done = sum(known.values()) - left
        pace = sum(self._took.values()) / done if done > 60 else 1.0
        return left * pace / self._workers

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._outcomes["done"] != sum(self._total.values()):
            return
        if file := self._config.getoption("--keep-durations"):
            took = {name: round(seconds, 1) for name, seconds in sorted(self._took.items())}
            Path(file).write_text(json.dumps(took, indent=0) + "\n", encoding="utf-8")
        if file := self._config.getoption("--keep-started"):
            Path(file).write_text("\n".join(sorted(self._started)), encoding="utf-8")

    def pytest_terminal_summary(self) -> None:
        minutes = sum(self._took.values()) / 60
        self._print(
            f"{minutes:.1f} worker-minutes on {self._workers} workers in {_clock(time.monotonic() - self._began)}"
        )


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
