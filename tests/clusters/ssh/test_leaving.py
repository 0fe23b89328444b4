"""Hosts that are lost and come back, as an elastic job and Open MPI's remote shell see them; no host is needed."""

from types import SimpleNamespace

import pytest

from distdl_jupyter.clusters.ssh.elastic import ElasticRun
from distdl_jupyter.clusters.ssh.relay import Relay
from distdl_jupyter.clusters.ssh.run import News, SshRun


def site(host, *, lost="", shared=True):
    connection = SimpleNamespace(lost=lost, target=f"me@{host}")
    return SimpleNamespace(host=host, connection=connection, shared=shared, folder=f"/jobs/{host}")


@pytest.fixture
def run():
    """An elastic job on two hosts without anything behind it."""
    run = object.__new__(ElasticRun)
    run.sent, run.sought, run.heard = [], [], []
    run._sites = [site("node-a"), site("node-b")]
    run._orders = SimpleNamespace(send=lambda **fields: run.sent.append(fields))
    run._returning = SimpleNamespace(look_for=run.sought.append)
    run._listen_to = run.heard.append
    return run


def test_a_host_that_is_back_takes_its_old_place(run):
    back, first = site("node-b"), run._sites[0]
    run._take(News(back, {"type": "back"}))
    assert run._sites == [first, back]
    assert run._sites[1] is back
    assert run.heard == [back]
    assert run.sent == [{"type": "back", "host": "node-b"}]


def test_a_host_that_is_back_and_lost_again_is_looked_for_again(run):
    before = list(run._sites)
    run._take(News(site("node-b", lost="it fell silent"), {"type": "back"}))
    assert (run._sites, run.sent, run.sought) == (before, [], ["me@node-b"])


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (site("node-b"), False),
        (site("node-b", shared=False), False),
        (site("node-b", lost="silent"), False),
        (site("node-b", lost="silent", shared=False), True),
    ],
)
def test_what_stays_on_a_lost_host_of_its_own_folder_is_told(run, monkeypatch, one, told):
    remarks = []
    run._sites[1] = one
    run.remark = lambda *words: remarks.append(words)
    monkeypatch.setattr(SshRun, "living", property(lambda _run: []))
    monkeypatch.setattr(SshRun, "collect", lambda _run: None)
    run.collect()
    assert [words[2] for words in remarks] == ["collected"] * told


class Agent:
    """Takes requests for a host, and has started everything at once."""

    def __init__(self, host):
        self.host, self.asked = host, []

    def begin(self, kind, **fields):
        self.asked.append((kind, fields))
        return SimpleNamespace(add_done_callback=lambda _callback: None)

    def channel(self, hear):
        return hear


def test_what_runs_on_a_lost_host_ends_for_the_remote_shell_and_nothing_else():
    first, *others = agents = [Agent(name) for name in ("node-a", "node-b", "node-c")]
    relay = Relay({one.host: one for one in agents}, {one.host: {} for one in agents}, first_number=100)
    for shell, one in enumerate(others):
        relay.asked(first, {"shell": shell, "host": one.host, "command": "orted"})
        assert [kind for kind, _ in one.asked] == ["start"]
    relay.lost("node-b")
    assert first.asked == [("answer", {"shell": 0, "code": 255})]
    assert not relay.ended(100, 0), "it has ended"
    assert relay.ended(101, 3)
    assert first.asked[1:] == [("answer", {"shell": 1, "code": 3})]


def test_a_host_that_the_job_has_not_is_refused():
    first = Agent("node-a")
    Relay({"node-a": first}, {"node-a": {}}, 100).asked(first, {"shell": 7, "host": "node-x", "command": "orted"})
    ((kind, fields),) = first.asked
    assert (kind, fields["shell"], fields["code"]) == ("answer", 7, 255)
    assert "node-x" in fields["err"]
