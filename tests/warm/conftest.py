"""One template for all tests of this folder: every job of them is started warm unless its test says otherwise."""

import os
import types

import pytest

from distdl_jupyter import client
from distdl_jupyter.clusters import processes
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.warm import asking, learned, place
from distdl_jupyter.warm.supervisor import WARM
from tests.conftest import until_gone, wait_for


def needs_everything():
    import horovod.torch as hvd
    import numpy as np
    import torch
    import torch.distributed

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model(torch.randn(2, 2)).sum().backward()
    optimizer.step()
    return np.zeros(1)


def submit(function=None, *args, **options):
    """Submit a function as a notebook's own: as one of this package it would take all tests along."""
    return client.submit(function and as_of_a_notebook(function), *args, **options)


def as_of_a_notebook(function):
    if not isinstance(function, types.FunctionType):
        return function
    seen = {name: value for name, value in function.__globals__.items() if isinstance(value, types.ModuleType)}
    own = types.FunctionType(function.__code__, {**seen, "__name__": "__main__"}, function.__name__)
    own.__module__, own.__qualname__ = "__main__", function.__name__
    own.__defaults__ = function.__defaults__
    return own


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory):
    """A data directory with a template that has learned what the tests' jobs import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTDL_HOME", str(tmp_path_factory.mktemp("warm") / "home"))
        patch.delenv("DISTDL_WARM", raising=False)
        first = submit(needs_everything, distributed_backend="horovod-gloo", process_count_per_node=2)
        assert not is_warm(first), "there was no template yet"
        first.result(timeout=120)
        ready_with(place.of(), "horovod.torch", "torch._dynamo", "numpy")
        yield os.environ["DISTDL_HOME"]
        asking.stop(place.of())
        assert not asking.is_being_made(place.of())


@pytest.fixture(scope="session", autouse=True)
def patience():
    """A machine that does much else is slow to answer; that is another test's affair."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking, "_PATIENCE", 30.0)
        yield


@pytest.fixture
def distdl_home(shared_home, monkeypatch):
    """The shared data directory; nothing of the test's own jobs may be alive afterwards."""
    monkeypatch.setenv("DISTDL_HOME", shared_home)
    monkeypatch.delenv("DISTDL_WARM", raising=False)
    before = set(JobStore().ids())
    revive()
    yield shared_home
    for job_id in set(JobStore().ids()) - before:
        left = until_gone(job_id)
        if left:
            processes.kill_all(job_id)
        assert not left, f"processes {left} of job {job_id} outlived the test"


@pytest.fixture
def own_home(distdl_home, tmp_path, monkeypatch):
    """A data directory of the test's own, whose template ends with it."""
    monkeypatch.setenv("DISTDL_HOME", str(tmp_path / "own"))
    yield tmp_path / "own"
    asking.stop(place.of())
    for job_id in JobStore().ids():
        assert not until_gone(job_id)


def revive():
    """See to a ready template: an earlier test may have ended it."""
    if not asking.is_being_made(place.of()):
        asking.make(place.of())
    said = asking.wait_until_ready(place.of())
    assert said is not None, place.of().log.read_text()
    return said


def ready_with(where, *modules):
    """Wait until a template serves that has learned these modules."""
    wait_for(lambda: set(modules) <= set(learned.Learned(where.learned).names()), what="the learning")

    def settled():
        said = asking.status(where)
        return said if said and "torch" in said["loads"] else None

    return wait_for(settled, what="a template with torch")


def is_warm(job):
    return any(WARM in str(line) for line in job.logs())


def assert_warm(*jobs):
    for job in jobs:
        assert is_warm(job), cold_reason(job) or "cold without a reason"


def cold_reason(job):
    return next((note["text"] for note in job.view().notes if note.get("code") == "cold-start"), "")
