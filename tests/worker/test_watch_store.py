"""A rank waits only for a torch store of this machine."""

import socket
import sys
from types import SimpleNamespace

import pytest

from distdl_jupyter.worker.hooks import distributed


@pytest.mark.parametrize("more", [{"is_master": True}, {"host_name": "10.0.0.1"}, {"port": None}])
def test_a_rank_that_needs_no_store_of_this_machine_does_not_wait(more, monkeypatch):
    rendezvous = SimpleNamespace(TCPStore=lambda **given: given)
    monkeypatch.setitem(sys.modules, "torch.distributed.rendezvous", rendezvous)
    monkeypatch.setattr(distributed, "STORE_SECONDS", 600.0)
    distributed.watch_store()
    with socket.socket() as store:
        store.bind(("127.0.0.1", 0))  # nothing listens
        arguments = {"host_name": "127.0.0.1", "port": store.getsockname()[1], "is_master": False, **more}
        assert rendezvous.TCPStore(**arguments).items() >= arguments.items()
