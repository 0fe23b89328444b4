"""Time in a job's log never goes back and follows a corrected clock."""

from types import SimpleNamespace

import pytest

from distdl_jupyter.core import events as module
from distdl_jupyter.core.events import Clock


@pytest.fixture
def clock(monkeypatch):
    """The clock on the wall and the one that only goes on, in seconds; ``clock.pass_(3)`` moves both."""
    clock = SimpleNamespace(wall=1000.0, ticks=50.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: clock.wall, monotonic=lambda: clock.ticks))

    def pass_(seconds):
        clock.wall, clock.ticks = clock.wall + seconds, clock.ticks + seconds

    clock.pass_ = pass_
    return clock


def test_time_never_goes_back_and_follows_a_corrected_clock(clock):
    given = Clock()
    assert given.now() == 1000.0
    clock.pass_(1)
    clock.wall -= 3600
    assert given.now() == 1001.0
    clock.pass_(2)
    assert given.now() == 1003.0
    clock.wall += 3600
    clock.pass_(1)
    assert given.now() == 1004.0
    clock.wall += 60
    assert given.now() == 1064.0, "a clock that is set forward is followed"


def test_time_begins_after_a_given_moment(clock):
    assert Clock(after=2000.0).now() == 2000.0
