"""A short visit to many hosts at once: whoever answers in time is asked, and all are left again.

A host that is silent costs the others nothing: it has a thread of its own that nobody waits for, and one that answers
too late is left at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distdl_jupyter.clusters.agents import checkup
from distdl_jupyter.clusters.agents.agent import HostTrouble, Unreachable
from distdl_jupyter.clusters.ssh import command, host_monitor, hosts
from distdl_jupyter.clusters.ssh.reach import reach

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Host
    from distdl_jupyter.clusters.agents.connection import Connection
    from distdl_jupyter.clusters.base import Check
    from distdl_jupyter.clusters.ssh.options import SshOptions

#: Seconds for reaching hosts, ssh's own and those of a Python that starts on a slow disk.
REACH_SECONDS = command.CONNECT_SECONDS + 5.0
#: Seconds for the whole of a check.
CHECK_SECONDS = 28.0


@dataclass(frozen=True, slots=True)
class Connected:
    """The hosts that answered, and why the others did not, both in the cluster's order."""

    connections: tuple[Connection, ...]
    troubles: tuple[Unreachable, ...]


@contextlib.contextmanager
def connected(wanted: Sequence[Host], options: SshOptions, seconds: float = REACH_SECONDS) -> Iterator[Connected]:
    """Reach hosts side by side, give those that answered within ``seconds``, and leave them at the end."""
    calls = [_Call(host, options) for host in wanted]
    until = time.monotonic() + seconds
    for call in calls:
        call.thread.join(max(0.0, until - time.monotonic()))
    try:
        met = [call.met(options) for call in calls]
        yield Connected(
            tuple(one for one in met if not isinstance(one, Unreachable)),
            tuple(one for one in met if isinstance(one, Unreachable)),
        )
    finally:
        _leave(calls)


class _Call:
    """One host that is being reached."""

    def __init__(self, host: Host, options: SshOptions) -> None:
        self.host = host
        self._lock = threading.Lock()
        self._found: Connection | Unreachable | None = None
        self._left = False
        self.thread = threading.Thread(target=self._reach, args=(options,), name=f"reach-{host.name}", daemon=True)
        self.thread.start()

    def _reach(self, options: SshOptions) -> None:
        found = _reached(self.host, options)
        with self._lock:
            self._found = found
            late = self._left
        if late and not isinstance(found, Unreachable):
            found.close()

    def met(self, options: SshOptions) -> Connection | Unreachable:
        """Return what came of it by now."""
        with self._lock:
            return self._found or _silent(self.host, options)

    def leave(self) -> None:
        """Close the connection, now or when it comes."""
        with self._lock:
            self._left = True
            found = self._found
        if found is not None and not isinstance(found, Unreachable):
            found.close()


def _reached(host: Host, options: SshOptions) -> Connection | Unreachable:
    try:
        return reach(host, options)
    except Unreachable as trouble:
        return trouble
    except HostTrouble as trouble:
        return Unreachable(host.name, "other", trouble.says, trouble.remedy)
    except OSError as error:
        says = f"Cannot start ssh: {error.strerror or error}."
        return Unreachable(host.name, "ssh-missing", says, "Install the OpenSSH client on this machine.")


def _silent(host: Host, options: SshOptions) -> Unreachable:
    ssh = command.in_words(host, options.ssh_config, "true")
    return Unreachable(
        host.name, "timeout", "The host does not respond.", f"Check that the host is on and reachable: {ssh}"
    )


def _leave(calls: Sequence[_Call]) -> None:
    """Close all connections side by side: each waits for its agent to end."""
    leaving = [threading.Thread(target=call.leave, daemon=True) for call in calls]
    for thread in leaving:
        thread.start()
    for thread in leaving:
        thread.join(6.0)


def checks(options: SshOptions, modules: Sequence[str] = (), programs: Sequence[str] = ()) -> list[Check]:
    """Look at all hosts of a cluster anew and return the rows of a table, within 30 s. Raises InvalidSpec."""
    until = time.monotonic() + CHECK_SECONDS
    with connected(hosts.listed(options), options) as met:
        # Silent hosts have used up their time by now, and what is left is for those that answered.
        seconds = min(checkup.LOOK_SECONDS, until - time.monotonic())
        found = checkup.look(met.connections, met.troubles, options, modules, programs, seconds=seconds)
    host_monitor.renew(options)
    return list(found.checks)
