"""An agent that lies breaks its own connection, and neither the supervisor nor the ranks of another host."""

import json
import sys
import time

import pytest

from distdl_jupyter.clusters.agents.agent import AgentNode, HostFailed, JobNodes
from distdl_jupyter.clusters.agents.run import DirectRun
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.core.plan import Placement, Plan, RankSlot
from distdl_jupyter.core.store import JobStore, create_id
from distdl_jupyter.node.processes import StackDump
from tests.clusters.agents.links import python_link
from tests.conftest import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux")

#: Greets, claims to start what it is asked to start, then sends the events and replies that it is given.
AGENT = """
import json, os, sys
from distdl_jupyter.node import channels
replies, events = json.loads(sys.argv[1]), json.loads(sys.argv[2])
reader = channels.FrameReader(expect_handshake=False)
os.write(1, channels.HANDSHAKE)
def send(fields):
    os.write(1, channels.encode_message(fields.pop("type"), **fields))
while content := os.read(0, 65536):
    for frame in reader.feed(content):
        kind = frame.get("type") if isinstance(frame, dict) else None
        if kind == "start":
            pids = {str(one["process"]): 7 for one in frame["processes"]}
            send({"type": "reply", "request": frame["request"], "pids": pids})
            for event in events:
                send(event)
        elif kind == "beat":
            send({"type": "beat"})
        elif kind is not None:
            send({"type": "reply", "request": frame["request"], **replies.get(kind, {})})
"""


class Machines(JobNodes):
    """Two machines with an agent each."""

    def get_environment(self, _node):
        return {}

    def get_rank_variables(self, _place, variables):
        return variables

    def handle(self):
        return {}

    def close(self):
        for node in self.nodes:
            node.connection.close()


@pytest.fixture
def run_of():
    """Return ``run(events, replies) -> DirectRun`` of two ranks; the agent of the second one lies."""
    made = []

    def begin(events=(), replies=None):
        nodes = []
        for number, (told, answers) in enumerate([((), {}), (events, replies or {})]):
            name = f"node-{number}"
            _, connection = python_link(name, "-c", AGENT, json.dumps(answers), json.dumps(list(told)))
            connection.start()
            assert connection.handshake_done.wait(60)
            nodes.append(AgentNode(connection, "/nowhere", "/nowhere", "/nowhere"))
        folder = JobStore().publish(JobStore().prepare(create_id()))
        places = tuple(RankSlot(rank, rank, f"node-{rank}", 0) for rank in range(2))
        placement = Placement(places, "127.0.0.1", (), "lo")
        run = DirectRun(placement, Plan(({}, {})), Context(folder, {}, {}), Machines(nodes))
        made.append(run)
        run.launch()
        return run

    yield begin
    for run in made:
        run.close()


EXIT = {"type": "exit", "kind": "rank", "process": 1, "code": 0, "signal": None}


@pytest.mark.fault("entry", "an invalid message of an agent ends only the connection to its own host")
@pytest.mark.parametrize(
    "event",
    [
        pytest.param({**EXIT, "process": 0}, id="exit of a rank elsewhere"),
        pytest.param({**EXIT, "process": 2}, id="exit of a rank that does not exist"),
        pytest.param({**EXIT, "kind": "service", "process": 0}, id="exit of a service elsewhere"),
        pytest.param({**EXIT, "kind": "launcher", "process": 0}, id="exit of the launcher elsewhere"),
        pytest.param({**EXIT, "process": -1}, id="negative process"),
        pytest.param({**EXIT, "process": 10**400}, id="huge process"),
        pytest.param({**EXIT, "process": "1"}, id="process as text"),
        pytest.param({**EXIT, "code": "x"}, id="code as text"),
        pytest.param({**EXIT, "evidence": "x" * 100_000}, id="long evidence"),
        pytest.param({**EXIT, "code": None, "signal": "\u00b2"}, id="signal in superscript"),
        pytest.param({**EXIT, "kind": "x"}, id="unknown kind of a process"),
        pytest.param({"type": "exit"}, id="exit without fields"),
        pytest.param({"type": "resources"}, id="resources without samples"),
        pytest.param({"type": "resources", "samples": None}, id="no samples"),
        pytest.param({"type": "resources", "samples": [1]}, id="sample that is a number"),
        pytest.param({"type": "lost"}, id="an event that only the supervisor makes"),
        pytest.param({"type": "lost", "reason": "node-0"}, id="a lost host"),
        pytest.param({"type": "message", "message": {"type": "gave-up", "text": ""}}, id="a message of a rank"),
        pytest.param({"type": "shell", "shell": "x"}, id="shell without a command"),
        pytest.param({"type": "hold", "channel": []}, id="hold of a list"),
        pytest.param({"type": "reply", "request": []}, id="reply to a list"),
        pytest.param({"type": "reply", "request": "one"}, id="reply to a word"),
        pytest.param({"type": "resources", "samples": [{"t": 1, "node": {}, "ranks": {"0": {}}}]}, id="rank elsewhere"),
        pytest.param({"type": "stacks", "answers": []}, id="stacks in a list"),
        pytest.param({"type": "stacks", "answers": {"1": "text"}}, id="stacks as text"),
        pytest.param({"type": "stacks", "answers": {"0": {"text": "forged"}}}, id="stacks of a rank elsewhere"),
        pytest.param({"type": "surprise"}, id="unknown event"),
    ],
)
def test_a_lie_is_the_end_of_its_own_host_only(run_of, event):
    run = run_of([event])
    exits = wait_for(run.poll)
    assert [(exit_.rank, exit_.code, exit_.signal) for exit_ in exits] == [(1, None, None)]
    assert "node-1" in exits[0].evidence
    assert not run._nodes.nodes[0].connection.lost


def test_what_an_honest_agent_says_breaks_nothing(run_of):
    sample = {"t": 1.0, "node": {"cpu": 5.0}, "ranks": {"1": [12.5, 1024]}, "gpus": {}}
    stacks = {"type": "stacks", "answers": {"1": {"text": "Thread", "state": "sleeping"}}}
    data_program = {**EXIT, "kind": "data", "process": 0}
    run = run_of([{"type": "warned"}, data_program, {"type": "resources", "samples": [sample]}, stacks, EXIT])
    assert [(one.rank, one.code) for one in wait_for(run.poll)] == [(1, 0)]
    assert [one.data["ranks"] for one in run.take_samples()] == [{"1": [12.5, 1024]}]
    assert run.take_stacks() == {1: StackDump("Thread", state="sleeping")}


@pytest.mark.parametrize(
    ("count", "listed"),
    [(3, 3), (4_000_000, 10_000), (30_000_000, 0), (-1, 0), (10**400, 0), ("many", 0), (None, 0)],
)
def test_the_number_of_living_processes_is_bounded(run_of, count, listed):
    run = run_of(replies={"alive": {"alive": count, "workers": 0}})
    began = time.monotonic()
    assert run.list_alive().count("node-1") == listed
    assert time.monotonic() - began < 10, "it was not waited for in vain"


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        ("stuck", {"pids": ["1"]}),
        ("stuck", {}),
        ("alive", {}),
        ("start", {"pids": {"one": 1}}),
        ("drain", {"evidence": 5}),
    ],
)
def test_a_reply_that_is_not_valid_is_the_failure_of_its_host(run_of, request_, reply):
    run = run_of(replies={request_: reply})
    with pytest.raises(HostFailed) as told:
        run._nodes.nodes[1].connection.ask(request_, ranks=[1])
    assert told.value.host == "node-1"
    assert [one.rank for one in wait_for(run.poll)] == [1]
