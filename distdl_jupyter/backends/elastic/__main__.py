"""A program: leads the processes of an elastic Horovod job on this machine.

``python -m distdl_jupyter.backends.elastic ADDRESS PORT LEAST SECONDS DISCOVERY COMMAND...`` starts COMMAND for each
rank that ``ranks.json`` in the folder ``$DISTDL_PIPES`` describes. LEAST is the smallest number of processes, SECONDS
how long they may take to meet, DISCOVERY the file or script that says which hosts there are ("" for all of them).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from distdl_jupyter.backends.elastic.driver import Driver, Terms
from distdl_jupyter.backends.elastic.meeting import Meeting
from distdl_jupyter.backends.elastic.words import NAME, Words
from distdl_jupyter.backends.elastic.workers import Workers
from distdl_jupyter.backends.elastic.world import Seat
from distdl_jupyter.host.discovery import Watch


def main() -> int:
    """Run the job and return an exit code."""
    address, port, least, patience, discovery, *command = sys.argv[1:]
    pipes = Path(os.environ["DISTDL_PIPES"])
    environments = json.loads((pipes / "ranks.json").read_text(encoding="utf-8"))
    seats = [Seat(number, own["DISTDL_HOST"], int(own["DISTDL_LOCAL_RANK"])) for number, own in enumerate(environments)]
    driver = Driver(seats, Terms.of(least, patience), Workers(command, environments), Words(_told(pipes)))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: driver.cancel())
    meeting = Meeting(address, int(port), driver.ask)
    meeting.open()
    watch = Watch(discovery, Counter(seat.host for seat in seats), driver.wake, _complain)
    watch.start()
    return driver.run(meeting, watch, _Lifeline(pipes))


def _told(pipes: Path) -> int:
    return os.open(pipes / NAME, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _complain(text: str) -> None:
    sys.stderr.write(f"{text}\n")


class _Lifeline:
    """Says whether the job's supervisor still holds the named pipe ``alive``."""

    def __init__(self, pipes: Path) -> None:
        self._fd = os.open(pipes / "alive", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def __call__(self) -> bool:
        try:
            return bool(os.read(self._fd, 1))
        except BlockingIOError:
            return True


if __name__ == "__main__":
    sys.exit(main())
