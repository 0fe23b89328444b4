"""Looks again and again for a host that was lost, and brings a job back to it when it answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from distdl_jupyter.clusters.ssh import connection as connections
from distdl_jupyter.clusters.ssh import staging
from distdl_jupyter.clusters.ssh.failures import HostTrouble
from distdl_jupyter.core.errors import DistDLError

if TYPE_CHECKING:
    from distdl_jupyter.clusters.ssh.hosts import Host
    from distdl_jupyter.clusters.ssh.staging import Job, Site

#: Seconds between two tries.
_PAUSE = 5.0


class Returning:
    """All hosts that are looked for. ``found`` is called in a thread with the host's new place in the job."""

    def __init__(self, job: Job, found: Callable[[Site], None]) -> None:
        self._job = job
        self._found = found
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def look_for(self, host: Host) -> None:
        """Try to reach a host from now on."""
        threading.Thread(target=self._look, args=(host,), name=f"return-{host.name}", daemon=True).start()

    def close(self) -> None:
        """Look for nobody any more; who comes now is left at once."""
        with self._lock:
            self._closed.set()

    def _look(self, host: Host) -> None:
        while not self._closed.wait(_PAUSE):
            try:
                connection = connections.reach(host, self._job.options, self._job.spec.python)
            except (HostTrouble, OSError):
                continue
            try:
                (site,) = staging.prepare(self._job, [connection])
                if not site.shared:
                    staging.copy(self._job, site)
            except (DistDLError, OSError):
                connection.close()
                continue
            with self._lock:
                if not self._closed.is_set():
                    self._found(site)
                    return
            connections.end_all([connection])
