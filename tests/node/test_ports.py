"""A port that somebody has, on whichever address, is not given away."""

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from distdl_jupyter.node import ports
from tests.conftest import wait_for
from tests.processes import free_port

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
        free = next(port for port in range(20_000, 32_000) if not ports._find_bind_error(*FAMILIES[0], port))
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


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A temporary directory and a cache of this test's own; returns the place of the lock files in the first one."""
    monkeypatch.setattr(ports.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))
    return tmp_path / f"distdl-ports-{os.getuid()}"


def squat_with_link(place):
    (place.parent / "victim").mkdir()
    place.symlink_to(place.parent / "victim")


def squat_with_dangling_link(place):
    place.symlink_to(place.parent / "nowhere")


def squat_with_folder(place):
    place.mkdir()
    place.chmod(0o777)
    os.chown(place, 4321, 4321)


@pytest.mark.fault("entry", "a taken name in the temporary directory stops no job and redirects no file")
@pytest.mark.parametrize(
    "squat",
    [squat_with_link, squat_with_dangling_link, Path.touch,
     pytest.param(squat_with_folder, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give away"))],
)  # fmt: skip
def test_whoever_has_taken_the_folder_of_locks_neither_stops_a_job_nor_redirects_its_files(temporary, squat):
    squat(temporary)
    one, other = ports.Ports(), ports.Ports()
    assert len({*one.reserve(3, "127.0.0.1"), *other.reserve(3, "127.0.0.1")}) == 6
    locks = temporary.parent / "cache" / "locks" / f"ports-{socket.gethostname()}"
    assert len(list(locks.iterdir())) == 6
    assert not (temporary.parent / "victim").exists() or not list((temporary.parent / "victim").iterdir())
    assert not (temporary.parent / "nowhere").exists()
    one.release()
    other.release()


# connections between hosts ------------------------------------------------------------------------


@contextlib.contextmanager
def serving(answer=None):
    """A port that says something else than a host of ours, or nothing at all."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.2)
    done = threading.Event()
    guests = []

    def serve():
        while not done.is_set():
            with contextlib.suppress(TimeoutError):
                guest, _ = server.accept()
                guests.append(guest)
                if answer is not None:
                    guest.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        done.set()
        thread.join()
        for one in (server, *guests):
            one.close()


def test_every_other_end_has_its_reason_in_the_order_asked():
    server, port = ports.listen("127.0.0.1")
    closed = free_port()
    with server, serving(b"SSH-2.0-OpenSSH_9.2\r\n") as other, serving() as mute:
        begin = time.monotonic()
        found = ports.reach([("127.0.0.1", at) for at in (mute, closed, port, other)], 2)
        assert [why for _, _, why in found] == [
            "timed out",
            "connection refused",
            "",
            "another machine or program answers",
        ]
        assert [at for _, at, _ in found] == [mute, closed, port, other]
        assert 1.5 < time.monotonic() - begin < 20


def test_who_answers_for_another_address_is_not_taken_for_it():
    server, port = ports.listen("127.0.0.2")
    with server, serving(f"distdl 127.0.0.2:{port}\n".encode()) as gateway:
        assert ports.reach([("127.0.0.1", gateway)], 5) == [
            ["127.0.0.1", gateway, "another machine or program answers"]
        ]


def test_many_are_tried_in_parts_and_silent_ones_leave_time_for_the_rest():
    server, port = ports.listen("127.0.0.1")
    with server, serving() as mute:
        targets = [("127.0.0.1", mute)] * 150 + [("127.0.0.1", at) for at in range(1, 250)] + [("127.0.0.1", port)]
        found = ports.reach(targets, 6)
        assert len(found) == len(targets)
        assert found[-1] == ["127.0.0.1", port, ""]


def test_listening_ends_when_it_is_closed():
    server, port = ports.listen("127.0.0.1")
    server.close()

    def refused():
        return ports.reach([("127.0.0.1", port)], 5)[0][2] == "connection refused"

    wait_for(refused, what="a closed port")
