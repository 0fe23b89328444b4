"""A started elastic job on other hosts: ranks are started, ended and replaced as the program that leads them orders.

That program runs on node 0, where the ranks meet (``distdl_jupyter.backends.elastic.far``). What it orders the agents
do, and it is told what became of it, which hosts there are, which are lost and which are back. Node 0 itself cannot be
lost: with it goes whoever knows the others.
"""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters import processes
from distdl_jupyter.clusters.base import Exit, Gone, Remark
from distdl_jupyter.clusters.elastic_words import Told
from distdl_jupyter.clusters.ssh.connection import end_all
from distdl_jupyter.clusters.ssh.returning import Returning
from distdl_jupyter.clusters.ssh.run import LAUNCHER, SERVICES, START_SECONDS, News, SshRun
from distdl_jupyter.host.discovery import Watch

if TYPE_CHECKING:
    from concurrent.futures import Future

    from distdl_jupyter.clusters.ssh.connection import Connection
    from distdl_jupyter.clusters.ssh.staging import Site
    from distdl_jupyter.core.plan import RankPlace

#: The exit code of a process that could not be started.
_NOT_STARTED = 255


class ElasticRun(SshRun):
    """Ranks come and go; each exits once for good."""

    replaces = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._places = {place.rank: place for place in self._placement.ranks}
        self._heard_of = Told(self._places, self._evidence)
        #: The processes of ranks that live, and what their hosts said of the last ends.
        self._pids: dict[int, int] = {}
        self._evidences: dict[int, str] = {}
        #: Why node 0 is gone; the others are watched without their leader then.
        self._leaderless = ""
        self._returning = Returning(self._job, self._returned)
        self._watch = self._watching()
        self._orders = _Letters(self._sites[0].connection)

    @property
    def _capacity(self) -> dict[str, int]:
        return {site.host: len(self.places(site)) for site in self._sites}

    def _watching(self) -> Watch:
        assert self._plan.launcher is not None, "an elastic job has somebody who leads it"
        complain = functools.partial(self.remark, "warning", code="host-discovery")
        return Watch(self._plan.launcher.discovery, self._capacity, self._tell_hosts, complain)

    # start ------------------------------------------------------------------------------------

    def _start_ranks(self) -> None:
        assert self._plan.launcher is not None, "an elastic job has somebody who leads it"
        first = self._sites[0]
        err, end = first.connection.pipe()
        self.listen(None, "err", end)
        process = {
            "process": LAUNCHER,
            "argv": list(self._plan.launcher.argv),
            "environment": self.environment(first),
            "directory": first.directory or None,
            "out": first.connection.channel(_Lines(self._obey)),
            "err": err,
            "open_input": True,
        }
        first.connection.ask("start", START_SECONDS, self.heed("starting the launcher"), processes=[process])
        self._orders.send(seats=[(place.host, place.local_rank) for place in self._places.values()])
        self._watch.start()

    def _tell_hosts(self) -> None:
        self._orders.send(type="hosts", hosts=self._watch.hosts)

    # orders, on the wire's thread -----------------------------------------------------------------

    def _obey(self, said: Mapping[str, Any]) -> None:
        if said["type"] == "start":
            self._start(self._places[int(said["rank"])], said["environment"])
        elif said["type"] == "signal":
            self._send_signal(int(said["rank"]), str(said["name"]))
        else:
            self._news.put(News(self._sites[0], {"type": "told", "said": said}))

    def _start(self, place: RankPlace, more: Mapping[str, str]) -> None:
        site = self._sites[place.node]
        streams = {}
        for name in ("out", "err"):
            streams[name], end = site.connection.pipe()
            self.listen(place.rank, name, end)
        process = {
            "process": place.rank,
            "argv": ["{python}", "-P", "-m", "distdl_jupyter.worker"],
            "environment": {**self.environment(site), **self.rank_environment(site, place), **more},
            "directory": site.directory or None,
            **streams,
        }
        answer = site.connection.begin("start", processes=[process])
        answer.add_done_callback(lambda told: self._began(site, place.rank, told))

    def _began(self, site: Site, rank: int, told: Future[dict[str, Any]]) -> None:
        """Hear of a start before anything else of that process is heard: the same thread takes both in."""
        found = told.result()
        if "error" in found:
            self._news.put(News(site, {"type": "not-started", "rank": rank, "says": str(found["error"])}))
        else:
            self._pids[rank] = int(found["pids"][str(rank)])

    def _send_signal(self, rank: int, name: str) -> None:
        self._sites[self._places[rank].node].connection.begin("signal", name=name, to=[rank])

    # watch ------------------------------------------------------------------------------------

    def _take(self, news: News) -> None:
        kind = news.data["type"]
        if kind == "told":
            self._heard_of.hear(news.data["said"])
        elif kind == "not-started":
            self.remark("warning", f"Rank {news.data['rank']} could not be started: {news.data['says']}", "not-started")
            self._tell_end(int(news.data["rank"]), _NOT_STARTED)
        elif kind == "back":
            self._take_back(news.site)
        elif kind == "lost":
            self._lost(news.site, str(news.data["says"]))
        else:
            super()._take(news)

    def _process_ended(self, site: Site, told: Mapping[str, Any]) -> None:
        number = int(told["process"])
        if number == LAUNCHER:
            self._heard_of.over(_code(told))
        elif number < SERVICES:
            # What it has started itself would live on beside its successor.
            site.connection.begin("signal", name="KILL", to=[number])
            self._evidences[number] = str(told.get("evidence") or "")
            self._tell_end(number, _code(told))

    def _tell_end(self, rank: int, code: int) -> None:
        pid = self._pids.pop(rank, 0)
        if self._leaderless:
            self.ended(Exit(rank, None, "TERM", "stopped"))
        else:
            self._orders.send(type="ended", rank=rank, pid=pid, code=code)

    def _evidence(self, rank: int, name: str | None) -> str:
        return self._evidences.get(rank, "") if name == "KILL" else ""

    # hosts that go and come -----------------------------------------------------------------------

    def _lost(self, site: Site, says: str) -> None:
        if site is self._sites[0]:
            self._lose_leader(says)
            return
        if site not in self._sites:  # it is back already
            return
        self._orders.send(type="lost", host=site.host, says=says)
        for rank in [rank for rank in self.ranks(site) if rank in self._pids]:
            self._tell_end(rank, _NOT_STARTED)
        if self._context.staging is None:  # a host that comes back has none of the data any more
            self._returning.look_for(site.connection.target)

    def _lose_leader(self, says: str) -> None:
        self._leaderless = says
        for rank in sorted(self._heard_of.open):
            if rank in self.ranks(self._sites[0]):
                self.ended(Exit(rank, None, None, says))
            elif rank not in self._pids:
                self.ended(Exit(rank, None, "TERM", "stopped"))
        self._heard_of.open.clear()

    def _returned(self, site: Site) -> None:
        self._news.put(News(site, {"type": "back"}))

    def _take_back(self, site: Site) -> None:
        if site.connection.lost:
            self._returning.look_for(site.connection.target)
            return
        at = next(number for number, one in enumerate(self._sites) if one.host == site.host)
        self._sites[at] = site
        self._listen_to(site)
        self._orders.send(type="back", host=site.host)

    # what the job asks ------------------------------------------------------------------------

    def _look(self) -> None:
        for exit_ in self._heard_of.exits():
            self.ended(exit_)

    def gone(self) -> list[Gone]:
        """Return the processes that ended since the last call while the job goes on."""
        return self._heard_of.gone()

    def gave_up(self) -> str:
        """Return why the leader has ended the job although no rank had failed."""
        return self._heard_of.gave_up

    def remarks(self) -> list[Remark]:
        """Return what the user should read since the last call."""
        return [*super().remarks(), *self._heard_of.remarks()]

    def signal(self, name: str) -> None:
        """Let the leader know first: it would take the ends of its ranks for failures."""
        if not self._leaderless:
            self._orders.send(type="cancel")
        super().signal(name)

    def collect(self) -> None:
        """Bring back what there is; a host that is still lost keeps what ranks wrote there."""
        for site in self._sites:
            if site.connection.lost and not site.shared:
                text = f"What ranks have written on {site.host} did not come back, because it was lost: {site.folder}."
                self.remark("warning", text, "collected")
        self._sites = self.living
        super().collect()

    def close(self) -> None:
        """Look for no host any more, and end the agents."""
        self._watch.stop()
        self._returning.close()
        end_all(self._too_late())
        super().close()

    def _too_late(self) -> list[Connection]:
        """Return the connections to hosts that came back when nobody needed them any more."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                news = self._news.get_nowait()
                if news.data["type"] == "back":
                    found.append(news.site.connection)
        return found


class _Lines:
    """Takes bytes of a channel and gives each line's JSON to ``hear``."""

    def __init__(self, hear: Callable[[Mapping[str, Any]], None]) -> None:
        self._hear = hear
        self._half = b""

    def __call__(self, content: bytes) -> None:
        *lines, self._half = (self._half + content).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))


class _Letters:
    """JSON lines for the standard input of the leader, one request after the other, so that their order stays."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._unsent = ""
        self._sending = False

    def send(self, **fields: Any) -> None:
        """Send a line without waiting."""
        with self._lock:
            self._unsent += json.dumps(fields) + "\n"
        self._go_on()

    def _go_on(self) -> None:
        with self._lock:
            if self._sending or not self._unsent:
                return
            text, self._unsent, self._sending = self._unsent, "", True
        answer = self._connection.begin("feed", process=LAUNCHER, text=text)
        answer.add_done_callback(self._sent)

    def _sent(self, _answer: object) -> None:
        with self._lock:
            self._sending = False
        self._go_on()


def _code(told: Mapping[str, Any]) -> int:
    """Return a process's exit code, negative for a signal."""
    if told["code"] is not None:
        return int(told["code"])
    return -processes.signal_number(str(told["signal"]))
