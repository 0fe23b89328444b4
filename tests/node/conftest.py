"""An agent for one test: ``agent()``; whatever it started is gone afterwards."""

import sys

import pytest

from tests.node.driver import Driven


@pytest.fixture
def agent():
    if sys.platform != "linux":
        pytest.skip("the agent runs on Linux hosts")
    made = []

    def make(**options):
        made.append(Driven(**options))
        return made[-1]

    yield make
    for one in made:
        one.close()
        assert "Traceback" not in one.errors, one.errors
