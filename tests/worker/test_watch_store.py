"""A rank looks for torch's store when it is there, and is held up by nothing else."""

import socket
import sys
import threading
import time

import pytest

from distdl_jupyter.worker.hooks import distributed

linux = pytest.mark.skipif(sys.platform != "linux", reason="the table of connections is Linux's")


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6])
def bound(request):
    with socket.socket(request.param) as found:
        found.bind(("127.0.0.1" if request.param == socket.AF_INET else "::1", 0))
        yield found


def variables(port, **more):
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "1", **more}


@linux
def test_a_rank_goes_on_as_soon_as_the_store_is_there(bound, monkeypatch):
    monkeypatch.setattr(distributed, "TIMEOUT", 60.0)
    went_on = threading.Event()

    def rank():
        distributed.await_store({}, variables(bound.getsockname()[1]))
        went_on.set()

    thread = threading.Thread(target=rank)
    thread.start()
    assert not went_on.wait(0.3)
    bound.listen()
    assert went_on.wait(30)
    thread.join()


@pytest.mark.parametrize(
    ("arguments", "more"),
    [({"store": object()}, {}), ({"init_method": "tcp://10.0.0.1:1"}, {}), ({}, {"RANK": "0"}),
     ({}, {"MASTER_ADDR": "10.0.0.1"}), ({}, {"MASTER_PORT": ""})],
)  # fmt: skip
def test_whoever_needs_no_store_of_this_machine_is_not_held_up(bound, arguments, more, monkeypatch):
    monkeypatch.setattr(distributed, "TIMEOUT", 600.0)
    distributed.await_store(arguments, variables(bound.getsockname()[1], **more))


@linux
def test_a_store_that_never_comes_is_torch_s_affair(bound, monkeypatch):
    monkeypatch.setattr(distributed, "TIMEOUT", 0.2)
    begun = time.monotonic()
    distributed.await_store({"init_method": "env://"}, variables(bound.getsockname()[1]))
    assert time.monotonic() - begun >= 0.2
