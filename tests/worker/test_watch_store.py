"""A rank waits only for a torch store of this machine."""

import socket

import pytest

from distdl_jupyter.worker.hooks import distributed


@pytest.mark.parametrize(
    ("arguments", "more"),
    [({"store": object()}, {}), ({"init_method": "tcp://10.0.0.1:1"}, {}), ({}, {"RANK": "0"}),
     ({}, {"MASTER_ADDR": "10.0.0.1"}), ({}, {"MASTER_PORT": ""})],
)  # fmt: skip
def test_a_rank_that_needs_no_store_of_this_machine_does_not_wait(arguments, more, monkeypatch):
    monkeypatch.setattr(distributed, "STORE_SECONDS", 600.0)
    with socket.socket() as store:
        store.bind(("127.0.0.1", 0))  # nothing listens
        port = str(store.getsockname()[1])
        distributed.await_store(arguments, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "1", **more})
