"""The hosts of a cluster as they are now, for a list that is drawn again every few seconds.

As long as somebody looks, each host has a thread of its own that asks it every few seconds over one connection; when
nobody has looked for a while, or after some minutes, the connection is closed. So a look costs nothing, a silent host
never delays the others, and each is told with the reason and since when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.agents import connection
from distdl_jupyter.clusters.agents.agent import HostTrouble, Unreachable
from distdl_jupyter.clusters.base import NodeInfo
from distdl_jupyter.clusters.ssh import hosts
from distdl_jupyter.clusters.ssh.reach import reach
from distdl_jupyter.core import humanize

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Host
    from distdl_jupyter.clusters.agents.connection import Connection
    from distdl_jupyter.clusters.ssh.options import SshOptions

#: Seconds between two questions to a host, and for its answer.
ASK_SECONDS, ANSWER_SECONDS = 4.0, 8.0
#: Seconds without a look after which a host is left alone, and after which a connection is made anew.
IDLE_SECONDS, RENEW_SECONDS = 15.0, 600.0
#: Seconds that a look waits for hosts of which nothing is known yet.
FIRST_SECONDS = 4.0
#: Seconds for which what was seen last is good enough while it is asked anew.
STALE_SECONDS = 60.0
#: Seconds to the next try after a trouble that does not pass by itself: who fails to log in often gets locked out.
_RETRY = {"denied": 300.0, "unknown-key": 30.0, "changed-key": 60.0, "python": 60.0, "old-python": 60.0, "shell": 60.0}
#: Troubles in which there is simply no answer.
_SILENT = frozenset(("timeout", "route", "refused"))


def nodes(options: SshOptions, timeout: float = FIRST_SECONDS) -> list[NodeInfo]:
    """Return all hosts as they were a few seconds ago, in the cluster's order. Raises InvalidSpec.

    Waits ``timeout`` seconds at most, and only for hosts of which nothing is known: they are "unknown" then.
    """
    watched = [_watch(host, options) for host in hosts.listed(options)]
    for one in watched:  # all are asked before anybody waits for one
        one.begin()
    until = time.monotonic() + timeout
    return [one.look(until) for one in watched]


def renew(options: SshOptions) -> None:
    """Let hosts that were in trouble be tried at once: something has been mended."""
    for key, one in _all():
        if key[1] == options:
            one.ring()


def leave() -> None:
    """Close all connections and forget what was seen."""
    with _lock:
        watches = list(_watches.values())
        _watches.clear()
    for one in watches:
        one.leave()


_lock = threading.Lock()
_watches: dict[tuple[Host, SshOptions], _Watch] = {}


def _all() -> list[tuple[tuple[Host, SshOptions], _Watch]]:
    with _lock:
        return list(_watches.items())


def _watch(host: Host, options: SshOptions) -> _Watch:
    with _lock:
        return _watches.setdefault((host, options), _Watch(host, options))


class _Watch:
    """One host: what was last seen of it, and the thread that looks as long as anybody does."""

    def __init__(self, host: Host, options: SshOptions) -> None:
        self._host = host
        self._options = options
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._looked_at = 0.0  # monotonic, of the last look
        self._seen: tuple[NodeInfo | None, float] = (None, 0.0)  # and when (monotonic)
        self._known = threading.Event()
        self._bell = threading.Event()
        self._left = False
        self._answered_at = 0.0  # epoch; 0.0 for never
        self._failed_since = 0.0

    def begin(self) -> None:
        """Let the host be asked from now on."""
        with self._lock:
            self._looked_at = time.monotonic()
            if self._thread is None and not self._left:
                self._known.clear()
                self._thread = threading.Thread(target=self._run, name=f"see-{self._host.name}", daemon=True)
                self._thread.start()

    def look(self, until: float) -> NodeInfo:
        """Return what is known, waiting for it until the monotonic time ``until``."""
        self._known.wait(max(0.0, until - time.monotonic()))
        seen, at = self._seen
        if seen is not None and (self._known.is_set() or time.monotonic() - at < STALE_SECONDS):
            return seen
        return NodeInfo(self._host.name, "unknown", self._last_known())

    def _last_known(self) -> str:
        since = self._answered_at
        return f"no response since {_moment(since)}" if since else "no response yet"

    def ring(self) -> None:
        """Ask at once."""
        self._bell.set()

    def leave(self) -> None:
        """End the thread and its connection."""
        with self._lock:
            self._left = True
            thread = self._thread
        self._bell.set()
        if thread is not None:
            thread.join(connection.REACH_SECONDS + ANSWER_SECONDS)

    # the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        link = _HostLink(self._host, self._options)
        try:
            while self._goes_on():
                pause = self._ask(link)
                self._known.set()
                self._bell.wait(pause)
                self._bell.clear()
        finally:
            link.leave()

    def _goes_on(self) -> bool:
        """Whether anybody still looks; if not, this thread is nobody's any more."""
        with self._lock:
            watched = not self._left and time.monotonic() - self._looked_at < IDLE_SECONDS
            if not watched:
                self._thread = None
            return watched

    def _ask(self, link: _HostLink) -> float:
        """Ask once and return the seconds to the next time."""
        begun = time.time()
        try:
            facts = link.facts()
        except HostTrouble as trouble:
            self._failed_since = self._failed_since or self._answered_at or begun
            self._seen = NodeInfo(self._host.name, "down", _reason(trouble, self._failed_since)), time.monotonic()
            return _RETRY.get(getattr(trouble, "kind", ""), ASK_SECONDS)
        self._answered_at, self._failed_since = time.time(), 0.0
        self._seen = described(self._host.name, facts), time.monotonic()
        return ASK_SECONDS


class _HostLink:
    """The connection to one host, opened when it is needed."""

    def __init__(self, host: Host, options: SshOptions) -> None:
        self._host = host
        self._options = options
        self._open: Connection | None = None
        self._opened_at = 0.0

    def facts(self) -> dict[str, Any]:
        """Ask the host. Raises HostTrouble; then the next question begins with a new connection."""
        if self._open is not None and time.monotonic() - self._opened_at > RENEW_SECONDS:
            self.leave()
        try:
            if self._open is None:
                self._open, self._opened_at = _opened(self._host, self._options), time.monotonic()
            return self._open.ask("facts", timeout=ANSWER_SECONDS)
        except HostTrouble:
            self.leave()
            raise

    def leave(self) -> None:
        """Close the connection."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()


def _opened(host: Host, options: SshOptions) -> Connection:
    try:
        return reach(host, options)
    except OSError as error:
        says = f"Cannot start ssh: {error.strerror or error}."
        raise Unreachable(host.name, "ssh-missing", says, "Install the OpenSSH client on this machine.") from None


def _reason(trouble: HostTrouble, since: float) -> str:
    """Return why a host is down; of a silent one since when."""
    if not isinstance(trouble, Unreachable) or trouble.kind in _SILENT:
        return f"no response since {_moment(since)}"
    return trouble.says


def _moment(moment: float) -> str:
    """Return "02:46", and the day where it was not today."""
    return humanize.clock(moment)[:5] if time.time() - moment < 12 * 3600 else humanize.day(moment)


def described(name: str, facts: Mapping[str, Any]) -> NodeInfo:
    """Return a host as a list shows it, from ``node.facts``."""
    gpus = facts.get("gpus") or []
    return NodeInfo(
        name,
        "up",
        gpus=len(gpus),
        gpu_name=str(gpus[0]["name"]) if gpus else "",
        cores=int(facts.get("cores") or 0),
        python=str((facts.get("python") or {}).get("version", "")),
        load=facts.get("load"),
        ranks=facts.get("ranks"),
    )
