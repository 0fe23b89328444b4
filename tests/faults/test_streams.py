"""A hundred readers of one job: some that never read, some that go away in the middle, some that come back."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from distdl_jupyter.core.store import JobStore
from distdl_jupyter.jobs import client
from distdl_jupyter.server.app import DistDLApp
from tests import finished
from tests.benchmarks.server_start import serving
from tests.conftest import crowded, wait_for
from tests.faults import census
from tests.faults.jobs import submit
from tests.selection import few_or_all
from tests.server.listening import told
from tests.server.running import API, TOKEN

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

LINES = 200


def reports(lines):
    import time

    from distdl_jupyter import log

    for number in range(lines):
        print(f"line {number}", flush=True)
        log(step=number, loss=1 / (number + 1))
        time.sleep(0.03)


def floods():
    import time

    until = time.monotonic() + 600
    number = 0
    while time.monotonic() < until:
        for _ in range(200):
            print(f"flood {number} " + "x" * 80)
            number += 1
        time.sleep(0.02)


def asking(url, timeout=120):
    return httpx.Client(base_url=url, headers={"Authorization": f"token {TOKEN}"}, timeout=timeout)


class Reader:
    """One reader of a job, and what it has been told: rows of the log by number, with the time when each came."""

    def __init__(self, url, job, **wish):
        self._address = f"{url.replace('http', 'ws', 1)}{API}/events"
        self._job, self._wish = job, wish
        self.rows, self.came, self.wholes, self.mark, self.key = {}, {}, 0, 0, ""
        self.told_again = 0
        self.state, self.steps = "", {}

    async def open(self, room=0):
        """Connect and subscribe; with ``room`` the socket takes no more than some kilobytes."""
        request = HTTPRequest(self._address, headers={"Authorization": f"token {TOKEN}"})
        self._connection = await websocket_connect(request, max_message_size=2**26)
        if room:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        wish = {"log": {"mark": self.mark}, "key": self.key, **self._wish}
        await self._connection.write_message(json.dumps({"number": 1, "job": {self._job: wish}}))

    @property
    def _socket(self):
        return self._connection.protocol.stream.socket

    async def read(self, until):
        """Read until ``until(reader)`` is true."""
        while (text := await self._connection.read_message()) is not None:
            self._take(json.loads(text))
            if until(self):
                return
        raise AssertionError("the server has ended the connection")

    def _take(self, message):
        now = time.monotonic()
        if message["type"] == "log":
            self.wholes += message["whole"]
            if message["whole"]:
                self.rows.clear()
            for row in message["rows"]:
                self.told_again += row[0] in self.rows
                self.rows[row[0]] = row[4]
                self.came.setdefault(row[4], now)
            self.mark = message["mark"]
        elif message["type"] == "job":
            self.state, self.key = message["card"]["state"], message["key"]
            for metric in message["metrics"]:
                self.steps.setdefault((metric["name"], metric["step"]), now)

    async def close(self, *, rudely=False):
        """Go away, as a page that is closed or as a machine that is switched off."""
        stream = self._connection.protocol.stream
        if rudely:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.close()
            self._connection.protocol = None  # else it complains that nobody has closed it
        else:
            self._connection.close()
            until = time.monotonic() + 10
            while not stream.closed() and time.monotonic() < until:  # noqa: ASYNC110 - its callback is taken
                await asyncio.sleep(0.01)  # the server says good-bye, or the loop ends with an open socket
            stream.close()


@pytest.fixture
def served(tmp_path):
    with serving(tmp_path, linger_seconds=1) as (process, url), asking(url) as http:
        yield process.pid, url, http


def alone(work):
    """Run a coroutine in a thread of its own: a browser's tests leave a running loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def to_the_end(reader):
    await reader.open()
    await reader.read(lambda one: one.state == "completed" and f"line {LINES - 1}" in one.came)
    await reader.close()


async def leaves(reader, after, *, rudely):
    await reader.open()
    await reader.read(lambda one: len(one.rows) >= after)
    await reader.close(rudely=rudely)


async def comes_back(reader, often):
    for turn in range(1, often):
        await reader.open()
        await reader.read(lambda one, many=turn * LINES // often: len(one.rows) >= many)
        await reader.close()
    await to_the_end(reader)


async def crowd(url, job, flood, many):
    """Let so many readers look at once; return those that read to the end, and those that come back."""
    readers = [Reader(url, job, curves=[{"metric": "", "mode": "band"}]) for _ in range(many)]
    part = many * 15 // 100
    stuck = [Reader(url, flood) for _ in range(part)]
    for number, one in enumerate(stuck):
        await one.open(room=4096 if number % 2 else 65536)
    back, gone, rest = readers[:part], readers[part : 2 * part], readers[2 * part : many - part]
    others = [Reader(url, flood) for _ in range(max(1, part // 3))]
    looking = [asyncio.create_task(_look(one)) for one in others]
    await asyncio.wait_for(
        asyncio.gather(
            *(to_the_end(one) for one in rest),
            *(comes_back(one, 4) for one in back),
            *(leaves(one, 5 + number, rudely=number % 2 == 0) for number, one in enumerate(gone)),
        ),
        400,
    )
    for task in looking:
        task.cancel()
    await asyncio.gather(*looking, return_exceptions=True)
    for one in (*stuck, *others):
        await one.close(rudely=True)
    return rest, back


async def _look(reader):
    await reader.open()
    await reader.read(lambda _: False)


def behind(reader):
    """Return by how many seconds the latest of the metrics came after the log's line of the same step."""
    steps = sorted((step, at) for (name, step), at in reader.steps.items() if name == "loss")
    late = []
    for number in range(LINES):
        known = [at for step, at in steps if step >= number]
        assert known, f"the metric of step {number} never came"
        late.append(min(known) - reader.came[f"line {number}"])
    return max(late)


@pytest.mark.fault(
    "many",
    "each reads the whole log in order, metrics within 1 s of their line, while others "
    "flood, hang or disconnect; the server uses no more memory than before",
)
def test_a_hundred_readers_of_one_job(served, injected):
    pid, url, http = served
    many = few_or_all(20, 100)
    flood = submit(floods, distributed_backend="plain")
    try:
        wait_for(lambda: any(line.text.startswith("flood") for line in flood.logs(tail=5)), 60, "the flood")
        held: list[census.Census] = []
        for _ in range(few_or_all(1, 6)):
            job = submit(reports, LINES, distributed_backend="plain")
            rest, back = alone(crowd(url, job.id, flood.id, many))
            for reader in (*rest, *back):
                printed = [reader.rows[number] for number in sorted(reader.rows)]
                assert [text for text in printed if text.startswith("line ")] == lines_of(job)
            assert max(behind(reader) for reader in rest) < crowded()
            for reader in back:
                assert reader.wholes == 1, "what a reader knows is not told again"
            injected(many)
            alive = http.get(f"{API}/jobs").status_code
            assert alive == 200
            held.append(with_pool(census.of(pid)))
    finally:
        flood.cancel(now=True)
        flood.wait(60)
    # Pages that went away are let go at once, what they looked at a second later.
    # It keeps the newest 100,000 rows of the flood, which were not there in the first round.
    census.settled(pid, held[0], memory=60)
    if len(held) > 4:
        assert held[-1].memory - held[-3].memory < 15


def with_pool(held):
    """Return what a server may hold that has all the threads in which it reads."""
    return dataclasses.replace(held, threads=max(held.threads, 3 + DistDLApp.thread_count.default_value))


def lines_of(job):
    return [line.text for line in job.logs() if line.rank == 0]


@pytest.mark.fault("many", "all are listed to each reader; the server uses no more memory than before")
def test_a_thousand_jobs_in_the_folder(served, injected):
    pid, url, http = served
    many = few_or_all(100, 1000)
    ids = {finished.job(number).id for number in range(many)}
    assert len(ids) == many

    def total():
        return len(http.get(f"{API}/jobs", params={"limit": 1000}).json())

    wait_for(lambda: total() == many, 60, "all jobs listed")
    listing(url, many)
    held = with_pool(census.of(pid))
    for _ in range(few_or_all(10, 100)):
        assert total() == many
        listing(url, many)
        injected()
    census.settled(pid, held, memory=15)
    assert {row.id for row in client.list_rows()} == ids
    shutil.rmtree(JobStore().jobs)  # there is no process of any of them to look for


def listing(url, many):
    """Look as a page that has just been opened does."""
    message = told(url, "jobs", jobs=True)["jobs"]
    assert (len(message["rows"]), message["whole"]) == (many, True)


@pytest.mark.fault("many", "a reader that never reads costs the server a few megabytes at most, however long it stays")
def test_a_reader_that_never_reads(served, injected):
    pid, url, _http = served
    flood = submit(floods, distributed_backend="plain")

    async def watch():
        reading = Reader(url, flood.id)
        await reading.open()
        looking = asyncio.create_task(reading.read(lambda _: False))
        stuck = Reader(url, flood.id)
        await stuck.open(room=4096)
        # The server keeps the newest 100,000 rows of a job that somebody looks at, and its memory is in pieces only
        # after several times as many. A reader whose rows were kept for it would cost 100 MB from then on.
        begun = await until_lines(reading, few_or_all(20_000, 600_000))
        await until_lines(reading, begun[0] + few_or_all(30_000, 600_000))
        grown = census.of(pid).memory - begun[1]
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await reading.close()
        await stuck.close(rudely=True)
        return grown

    async def until_lines(reader, number):
        until = time.monotonic() + 300
        while not reader.rows or max(reader.rows) < number:
            assert time.monotonic() < until
            await asyncio.sleep(0.1)
        return max(reader.rows), census.of(pid).memory

    try:
        grown = alone(watch())
    finally:
        flood.cancel(now=True)
        flood.wait(60)
    assert grown < few_or_all(60, 40)
    injected()
