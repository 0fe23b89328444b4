"""A port that somebody has, on whichever address, is not given away."""

import socket

import pytest

from distdl_jupyter.host import ports

FAMILIES = [
    (socket.AF_INET, "127.0.0.1"),
    (socket.AF_INET6, "::1"),
    (socket.AF_INET, "0.0.0.0"),
    (socket.AF_INET6, "::"),
]


@pytest.mark.parametrize(("family", "address"), FAMILIES)
def test_a_port_that_is_taken_is_passed_over(family, address, monkeypatch):
    try:
        holder = socket.socket(family, socket.SOCK_STREAM)
        holder.bind((address, 0))
    except OSError:
        pytest.skip(f"this machine has no {address}")
    with holder:
        holder.listen()
        taken = holder.getsockname()[1]
        free = next(port for port in range(20_000, 32_000) if ports._is_free("127.0.0.1", port))
        monkeypatch.setattr(ports.random, "sample", lambda *_: [taken, free])
        reserved = ports.Ports()
        assert reserved.reserve(1, "127.0.0.1") == [free]
        reserved.release()


def test_an_address_that_is_not_here_has_no_ports():
    with pytest.raises(OSError, match=r"No free TCP port between 20000 and 32000 was found on 192\.0\.2\.1"):
        ports.Ports().reserve(1, "192.0.2.1")


def test_reserved_ports_are_never_given_twice_and_free_again_after_release():
    held = [ports.Ports() for _ in range(20)]
    given = [port for one in held for port in one.reserve(5, "127.0.0.1")]
    assert len(set(given)) == 100
    assert all(20_000 <= port < 32_000 for port in given)
    for one in held:
        one.release()
    assert len(held[0].reserve(3, "127.0.0.1")) == 3
    held[0].release()
