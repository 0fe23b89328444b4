"""Which hosts an elastic job has now: fixed ones, those of a file, or those that a discovery script prints.

File and script hold a line ``HOST:SLOTS`` or ``HOST`` for each host, as ``horovodrun --host-discovery-script`` takes
them; blank lines and lines that begin with ``#`` say nothing. A script ends with code 0.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

#: Seconds between two looks, and those that a script may take.
_EVERY = 1.0
_SCRIPT_SECONDS = 30.0


def parse(text: str, capacity: Mapping[str, int]) -> dict[str, int]:
    """Return {host: slots} of the hosts that the job knows; a host without a number offers all of its places.

    Raises ValueError naming the line that cannot be read.
    """
    found = {}
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        host, _, slots = line.partition(":")
        if slots and not slots.strip().isdigit():
            raise ValueError(f"the line {line!r} is not HOST:SLOTS")
        if host in capacity:
            found[host] = min(int(slots), capacity[host]) if slots else capacity[host]
    return found


def look(discovery: str, capacity: Mapping[str, int]) -> dict[str, int]:
    """Return the hosts of now; without a ``discovery`` all of them. Raises OSError, ValueError."""
    if not discovery:
        return dict(capacity)
    path = Path(discovery)
    return parse(_printed(path) if os.access(path, os.X_OK) else path.read_text(encoding="utf-8"), capacity)


def _printed(script: Path) -> str:
    try:
        done = subprocess.run([script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              timeout=_SCRIPT_SECONDS, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ValueError(f"it took longer than {_SCRIPT_SECONDS:g} s") from None
    if done.returncode != 0:
        raise ValueError(f"it ended with code {done.returncode}")
    return done.stdout


class HostDiscovery:
    """Looks every second in a thread, so that a slow script holds up no message."""

    def __init__(
        self,
        discovery: str,
        capacity: Mapping[str, int],
        changed: Callable[[], None],
        complain: Callable[[str], object],
    ) -> None:
        self._discovery = discovery
        self._capacity = capacity
        self._changed = changed
        self._complain = complain
        self._problem = ""
        self._stop = threading.Event()
        #: The hosts as they were seen last; a look that failed changes nothing.
        self.hosts: dict[str, int] = {}

    def start(self) -> None:
        """Look once, then every second where that can change anything."""
        self._look()
        if self._discovery:
            threading.Thread(target=self._run, name="host-discovery", daemon=True).start()

    def stop(self) -> None:
        """Stop looking."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY):
            self._look()

    def _look(self) -> None:
        before, problem = self.hosts, ""
        try:
            self.hosts = look(self._discovery, self._capacity)
        except (OSError, ValueError) as error:
            problem = str(error)
        if problem and problem != self._problem:
            self._complain(f"The hosts of {self._discovery} cannot be read: {problem}. They stay as they were.")
        self._problem = problem
        if self.hosts != before:
            self._changed()
