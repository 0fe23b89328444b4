"""What an elastic job does with hosts that come back, and with those that do not, without hosts."""

from types import SimpleNamespace

import pytest

from distdl_jupyter.clusters.ssh.elastic import ElasticRun
from distdl_jupyter.clusters.ssh.run import SshRun


def site(host, *, lost=False, shared=False):
    connection = SimpleNamespace(lost="unplugged" if lost else "", target=host)
    return SimpleNamespace(host=host, connection=connection, shared=shared, folder=f"/there/{host}")


class Run(ElasticRun):
    """A job without a leader and without agents: it keeps what it tells them."""

    def __init__(self, *sites):
        self._sites, self._remarks = list(sites), []
        self.told, self.looked_for = [], []
        self._orders = SimpleNamespace(send=lambda **said: self.told.append(said))
        self._returning = SimpleNamespace(look_for=self.looked_for.append)

    def _listen_to(self, site):
        self.told.append({"listens": site.host})


def test_a_host_that_is_back_has_its_own_place_again():
    run, back = Run(site("a"), site("b", lost=True), site("c")), site("b")
    run._take_back(back)
    assert [one.host for one in run._sites] == ["a", "b", "c"]
    assert run._sites[1] is back
    assert run.told == [{"listens": "b"}, {"type": "back", "host": "b"}]


def test_a_host_that_is_lost_again_at_once_is_looked_for_again():
    run = Run(site("a"), site("b", lost=True))
    run._take_back(site("b", lost=True))
    assert run.looked_for == ["b"]
    assert run.told == []


def test_only_what_a_lost_host_keeps_for_itself_is_missed(monkeypatch):
    monkeypatch.setattr(SshRun, "collect", lambda _run: None)
    run = Run(site("a"), site("b", lost=True), site("c", lost=True, shared=True))
    run.collect()
    assert [one.text for one in SshRun.remarks(run)] == [
        "What ranks have written on b did not come back, because it was lost: /there/b."
    ]
    assert [one.host for one in run._sites] == ["a"]


@pytest.mark.parametrize("kind", ["told", "not-started", "back", "lost", "ended"])
def test_each_piece_of_news_goes_where_it_belongs(monkeypatch, kind):
    run, heard = Run(site("a"), site("b")), []
    run._heard_of = SimpleNamespace(hear=lambda said: heard.append("told"))
    monkeypatch.setattr(Run, "_tell_end", lambda _run, rank, code: heard.append("not-started"))
    monkeypatch.setattr(Run, "_take_back", lambda _run, site: heard.append("back"))
    monkeypatch.setattr(Run, "_lost", lambda _run, site, says: heard.append("lost"))
    monkeypatch.setattr(SshRun, "_take", lambda _run, news: heard.append("ended"))
    run._take(SimpleNamespace(site=site("b"), data={"type": kind, "said": {}, "rank": 1, "says": "no"}))
    assert heard == [kind]
