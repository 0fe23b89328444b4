import contextlib
import socket
import threading
import time

from distdl_jupyter.node import ports
from tests.conftest import wait_for
from tests.processes import free_port


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
