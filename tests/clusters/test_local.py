"""The local cluster holds the contract of all clusters; ports stay reserved."""

import pytest

from distdl_jupyter.clusters.ports import PortReservation
from distdl_jupyter.testing import ClusterContract


class TestLocal(ClusterContract):
    name = "local"


class TestLocalNodes(ClusterContract):
    name = "local"
    node_count = 2


def test_reserved_ports_are_never_given_twice_and_free_again_after_release():
    held = [PortReservation(5) for _ in range(20)]
    ports = [port for one in held for port in one.ports]
    assert len(set(ports)) == 100
    assert all(20_000 <= port < 32_000 for port in ports)
    for one in held:
        one.release()
    again = PortReservation(3)
    assert len(again.ports) == 3
    again.release()


def test_a_port_that_somebody_listens_on_is_not_offered(monkeypatch):
    import socket

    from distdl_jupyter.clusters import ports
    from distdl_jupyter.core.errors import LaunchFailed

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        monkeypatch.setattr(ports, "_LOW", taken)
        monkeypatch.setattr(ports, "_HIGH", taken + 400)
        monkeypatch.setattr(ports.random, "sample", lambda _range, _count: [taken])
        with pytest.raises(LaunchFailed, match="No free TCP port"):
            PortReservation(1)
