"""What an elastic job does with hosts that are lost and come back, and with those that do not; no host is needed."""

from types import SimpleNamespace

import pytest

from distdl_jupyter.clusters.agents.elastic_run import ElasticRun
from distdl_jupyter.clusters.agents.run import AgentRun, Event
from distdl_jupyter.clusters.ssh.nodes import SshNodes
from distdl_jupyter.core.plan import Placement
from distdl_jupyter.core.spec import JobSpec


class Nodes(SshNodes):
    """Hosts without agents: it keeps which ones are looked for."""

    def __init__(self, *nodes):
        job = SimpleNamespace(spec=JobSpec(id="20260101-000000-abcde", name="n"), folder=None, options=None)
        super().__init__(job, Placement((), "", (), ""), None, nodes)
        self.awaited = []

    def await_return(self, node, found):
        self.awaited.append(node.host)


def host(name, *, lost="", shared=True):
    return SimpleNamespace(
        host=name, connection=SimpleNamespace(lost=lost), shared=shared, folder=f"/jobs/{name}", notices=[], keeps=False
    )


@pytest.fixture
def run():
    """An elastic job on three hosts without anything behind it."""
    run = object.__new__(ElasticRun)
    run.sent, run.listened = [], []
    run._nodes = Nodes(host("a"), host("b", lost="it fell silent"), host("c"))
    run._driver = SimpleNamespace(send=lambda **fields: run.sent.append(fields))
    run._listen_to = run.listened.append
    return run


def test_a_host_that_is_back_has_its_own_place_again(run):
    back = host("b")
    run._take(Event(back, {"type": "back"}))
    assert [one.host for one in run._nodes.nodes] == ["a", "b", "c"]
    assert run._nodes.nodes[1] is back
    assert run.listened == [back]
    assert run.sent == [{"type": "back", "host": "b"}]


def test_a_host_that_is_back_and_lost_again_is_looked_for_again(run):
    before = list(run._nodes.nodes)
    run._take(Event(host("b", lost="it fell silent"), {"type": "back"}))
    assert (run._nodes.nodes, run.sent, run._nodes.awaited) == (before, [], ["b"])


@pytest.mark.parametrize(
    ("one", "noted"),
    [
        (host("b"), False),
        (host("b", lost="silent"), False),
        (host("b", lost="silent", shared=False), True),
    ],
)
def test_what_stays_on_a_lost_host_of_its_own_folder_is_noted(monkeypatch, tmp_path, one, noted):
    monkeypatch.setattr("distdl_jupyter.clusters.agents.staging.written_here", lambda _job: set())
    nodes = Nodes(host("a"), one)
    nodes.collect(replaced=True)
    assert [notice.text for notice in nodes.notices] == [
        "The files in /jobs/b were not copied back because the connection to b was lost."
    ] * noted
    assert [node.host for node in nodes.nodes] == ["a"] if one.connection.lost else ["a", "b"]


@pytest.mark.parametrize("kind", ["message", "not-started", "back", "lost", "ended"])
def test_each_event_goes_where_it_belongs(run, monkeypatch, kind):
    taken = []
    run._take_message = lambda message: taken.append("message")
    run.add_notice = lambda *words: None
    run._report_exit = lambda rank, end: taken.append("not-started")
    run._take_back = lambda node: taken.append("back")
    run._lose = lambda node, reason: taken.append("lost")
    monkeypatch.setattr(AgentRun, "_take", lambda _run, event: taken.append("ended"))
    run._take(Event(host("b"), {"type": kind, "message": {}, "rank": 1, "says": "no", "reason": "no"}))
    assert taken == [kind]
