"""An agent that lies ends the connection to its own host, and nothing else."""

import asyncio
import functools
from types import SimpleNamespace

import pytest

from distdl_jupyter.clusters.agents.agent import Host, HostFailed, Node
from distdl_jupyter.clusters.agents.connection import Connection
from distdl_jupyter.clusters.agents.run import SERVICES, DirectRun
from distdl_jupyter.clusters.agents.wire import Link, Wire, loop
from distdl_jupyter.node import frames
from tests.conftest import wait_for

EXIT = {"process": 0, "code": 0, "signal": None, "evidence": ""}


class ScriptedLink(Link):
    """An agent that sends what a test tells it to."""

    def __init__(self):
        super().__init__()
        self._pieces = asyncio.Queue()
        self.send(frames.GREETING)

    def send(self, content):
        loop().call_soon_threadsafe(self._pieces.put_nowait, content)

    async def read(self):
        return await self._pieces.get()

    async def write(self, content):
        pass

    def close_input(self):
        self._pieces.put_nowait(b"")

    async def end(self, grace=0.0):
        pass

    async def why_ended(self, silent):
        return "It has ended."


class TwoNodes:
    """A run of one rank on each of two nodes."""

    def __init__(self):
        self.links = [ScriptedLink(), ScriptedLink()]
        connections = [
            Connection(Host(name, name), "", functools.partial(Wire, name, link, b""))
            for name, link in zip("ab", self.links, strict=True)
        ]
        self.nodes = [Node(connection, "", "", "") for connection in connections]
        ranks = [SimpleNamespace(rank=rank, node=rank) for rank in range(2)]
        nodes = SimpleNamespace(
            nodes=self.nodes,
            connected=self.nodes,
            notices=[],
            poll=lambda: None,
            of=lambda place: self.nodes[place.node],
            explained=lambda exit_: exit_,
        )
        self.run = DirectRun(SimpleNamespace(ranks=ranks), None, None, nodes)
        for node in self.nodes:
            self.run._listen_to(node)
            node.connection.start()

    def close(self):
        for node in self.nodes:
            node.connection.close()


@pytest.fixture
def two():
    two = TwoNodes()
    yield two
    two.close()


@pytest.mark.parametrize(
    ("type_", "fields"),
    [
        ("exit", {**EXIT, "process": 0}),  # the rank of the other node
        ("exit", {**EXIT, "process": 2}),  # nobody's rank
        ("exit", {**EXIT, "process": SERVICES}),  # a process of the first node
        ("exit", {}),
        ("exit", {**EXIT, "process": "1"}),
        ("exit", {**EXIT, "process": -1}),
        ("exit", {**EXIT, "process": 1, "code": "x"}),
        ("exit", {**EXIT, "process": 1, "code": None, "signal": "²"}),
        ("exit", {**EXIT, "process": 1, "evidence": "x" * 100_000}),
        ("resources", {}),
        ("resources", {"samples": None}),
        ("resources", {"samples": [{"t": 1.0, "node": {}, "ranks": {"0": {}}}]}),
        ("shell", {"shell": 1}),
        ("lost", {}),
        ("lost", {"says": "a lie"}),
        ("message", {"message": {"type": "gave-up", "text": ""}}),
        ("unheard", {}),
        ("reply", {"request": "one"}),
        ("reply", {"request": []}),
        ("hold", {"channel": {}}),
    ],
)
def test_a_message_that_lies_ends_the_connection_to_its_own_host(two, type_, fields):
    two.links[1].send(frames.message(type_, **fields))
    wait_for(lambda: two.nodes[1].connection.lost, 5, "the end of the connection")
    exits = []
    wait_for(lambda: exits.extend(two.run.poll()) or exits, 5, "the end of its rank")
    assert [exit_.rank for exit_ in exits] == [1]
    assert not two.nodes[0].connection.lost


def test_a_true_exit_is_believed(two):
    two.links[1].send(frames.message("exit", **{**EXIT, "process": 1, "code": 3}))
    exits = []
    wait_for(lambda: exits.extend(two.run.poll()) or exits, 5, "the end of its rank")
    assert [(exit_.rank, exit_.code) for exit_ in exits] == [(1, 3)]
    assert not two.nodes[1].connection.lost


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        ("alive", {}),
        ("alive", {"alive": 30_000_000}),
        ("alive", {"alive": "many"}),
        ("stuck", {"pids": 7}),
        ("start", {"pids": {"one": 1}}),
        ("clock", {"t_ns": 1e400}),
        ("stacks", {"answers": {"0": "text"}}),
    ],
)
def test_a_reply_that_lies_ends_the_connection_to_its_own_host(two, request_, reply):
    connection = two.nodes[1].connection
    answer = connection.begin(request_)
    two.links[1].send(frames.message("reply", request=1, **reply))
    with pytest.raises(HostFailed):
        connection.result(answer, request_, 5)
    assert connection.lost
    assert not two.nodes[0].connection.lost


def test_living_processes_are_counted_up_to_a_bound(two):
    for link in two.links:
        link.send(frames.message("reply", request=1, alive=4_000_000, workers=1))
    assert len(two.run.alive()) <= 20_000


def test_stacks_of_another_nodes_rank_are_left_out(two):
    two.nodes[1].connection.ask_stacks([1])
    answers = {str(rank): {"text": "forged", "missing": "", "state": "", "about": {}} for rank in (0, 1)}
    two.links[1].send(frames.message("reply", request=1, answers=answers))
    assert list(wait_for(two.run.stacks, 5, "the stacks")) == [1]
