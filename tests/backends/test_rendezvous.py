"""The server at which Horovod's ranks find each other, asked as Horovod's ranks ask it."""

import asyncio
import socket

import pytest

from distdl_jupyter import submit
from distdl_jupyter.backends import rendezvous
from distdl_jupyter.backends.rendezvous import Rendezvous


def exchange(*requests, wait_seconds=10.0, begin=0.0, secret=""):
    """Return the answers to requests, each sent when the one before was answered or after ``begin`` seconds.

    PORT in a request becomes the port of the server.
    """

    async def ask(port, request):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def run():
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        server = Rendezvous("127.0.0.1", port, secret)
        server.wait_seconds = wait_seconds
        serving = asyncio.create_task(server.serve())
        answers = []
        for request in requests:
            answers.append(asyncio.create_task(ask(port, request.replace(b"PORT", str(port).encode()))))
            await asyncio.wait(answers[-1:], timeout=begin or None)
        found = [await answer for answer in answers]
        serving.cancel()
        return found

    return asyncio.run(run())


def put(scope, key, value):
    return f"PUT /{scope}/{key} HTTP/1.1\r\nContent-Length: {len(value)}\r\n\r\n".encode() + value


def get(scope, key):
    return f"GET /{scope}/{key} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


def delete(scope, rank):
    return f"DELETE /{scope}/{rank} HTTP/1.1\r\n\r\n".encode()


def test_a_request_waits_for_its_value():
    asked, stored = exchange(get("global", "1"), put("global", "1", b"address"), begin=0.2)
    assert stored.startswith(b"HTTP/1.1 200 ")
    assert asked.startswith(b"HTTP/1.1 200 ")
    assert asked.endswith(b"\r\n\r\naddress")


def test_who_has_asked_may_wait_longer_than_a_request_takes(monkeypatch):
    monkeypatch.setattr(rendezvous, "_REQUEST_SECONDS", 0.1)
    asked, _ = exchange(get("global", "1"), put("global", "1", b"address"), begin=0.5)
    assert asked.endswith(b"\r\n\r\naddress")


def test_a_value_that_does_not_come_is_not_found():
    assert exchange(get("global", "1"), wait_seconds=0.1)[0].startswith(b"HTTP/1.1 404 ")


def test_a_scope_is_empty_again_when_all_of_its_ranks_are_connected():
    meeting = [put("set", key, b"a") for key in ("rank_0", "0", "rank_1", "1")]
    *_, still, _, gone = exchange(
        *meeting, delete("set", "0"), get("set", "0"), delete("set", "1"), get("set", "0"), wait_seconds=0.1
    )
    assert still.startswith(b"HTTP/1.1 200 ")
    assert gone.startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    "request_",
    [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"\xff\xfe /a/b c\r\n\r\n",
     b"x" * (17 * 2**20), b"POST /a/b HTTP/1.1\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_request_is_refused_and_others_are_still_answered(request_):
    bad, good = exchange(request_, put("a", "b", b"c"))
    assert bad[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 501", b"")
    assert good.startswith(b"HTTP/1.1 200 ")


@pytest.mark.fault("entry", "requests without the job's secret get no response, and no file is shown")
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD", "POST"])
@pytest.mark.parametrize("path", ["/", "/global/0", "/rank_and_size/node-0:0", "/../../etc/passwd", "/%00", "/x:1/a/b"])
def test_others_are_turned_away(method, path):
    inside = "x:PORT/global"
    refused, stored, read, missing = exchange(
        f"{method} {path} HTTP/1.1\r\nContent-Length: 1\r\n\r\nx".encode(), put(inside, "1", b"some bytes"),
        get(inside, "1"), get(inside, "0"), secret="x", wait_seconds=0.01,
    )  # fmt: skip
    assert refused[:12] in (b"HTTP/1.1 403", b"HTTP/1.1 404", b"HTTP/1.1 501")
    assert b"root:" not in refused
    assert (stored[:12], read[-10:], missing[:12]) == (b"HTTP/1.1 200", b"some bytes", b"HTTP/1.1 404")


def again():
    import horovod.torch as hvd
    import torch

    found = []
    for turn in range(10):
        hvd.init()
        found.append(hvd.allreduce(torch.tensor([float(hvd.rank() + turn)]), op=hvd.Sum).item())
        hvd.shutdown()
    return found


def test_horovod_can_be_initialised_again_in_the_same_ranks():
    job = submit(again, process_count_per_node=2, distributed_backend="horovod-gloo")
    assert job.results() == [[2.0 * turn + 1 for turn in range(10)]] * 2
