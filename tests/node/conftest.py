"""Agents, and places in the queue of a machine, for one test; everything that they started is gone afterwards."""

import os
import sys
from pathlib import Path

import pytest

from distdl_jupyter.node.slots import QueueSlot
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


@pytest.fixture
def ready(agent, tmp_path):
    """An agent that has the folder of a job on a host without a shared folder."""
    one = agent().beat()
    one.prepare(tmp_path)
    return one


@pytest.fixture
def folder():
    """The folder of the queues of all users, for this test alone."""
    return Path(os.environ["DISTDL_QUEUE"])


@pytest.fixture
def slot():
    """Return ``slot(name)``; the slots are released at the end."""
    made = []

    def make(name, **more):
        made.append(QueueSlot(f"20260101-000000-{name}", name, **more))
        return made[-1]

    yield make
    for one in made:
        one.release()
