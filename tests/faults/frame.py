"""How tests of faults are marked, selected and counted; loaded for all tests, so the mark works in every folder.

    @pytest.mark.fault("rank", "the earliest cause is named with its rank and signal")
    def test_a_rank_that_is_killed(...): ...

The first argument is a key of ``ROWS``, the second the guarantee, as the table shows it. A test that injects its
fault several times takes the fixture ``injected`` and calls it after each one that held (``injected()``, or
``injected(6)`` for six); a test that never calls it counts as one injection. Parameters of a test are one line of the
table together.

``make test-faults`` runs every test that is marked and writes ``RESULTS.md`` beside this file (``tests.tested``). A
fault that is tested elsewhere is marked there and not written a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(row, promise): injects a fault; row is a key of tests.faults.frame.ROWS")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check the marks and note them for the table."""
    for item in items:
        mark = item.get_closest_marker("fault")
        if mark is not None:
            row, promise = mark.args
            if row not in ROWS:
                raise pytest.UsageError(f"{item.nodeid}: fault(row, promise) takes a row of {', '.join(ROWS)}.")
            item.user_properties += [("fault", row), ("promise", promise)]


@pytest.fixture
def injected(record_property: Callable[[str, Any], None]) -> Callable[..., None]:
    """Return what counts injections whose promise has held."""

    def count(times: int = 1) -> None:
        record_property("held", times)

    return count
