"""``python -m distdl_jupyter.monitoring JOB_FOLDER``: tell of one ended job, then end.

It prints one line: what was sent, or why not. Whatever happens, it ends within ``TIMEOUT`` seconds.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from distdl_jupyter.core.events import batches
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.monitoring.account import account
from distdl_jupyter.monitoring.exporting import CannotSend, send

#: Seconds after which an endpoint that does not answer is left alone.
TIMEOUT = 20


def main() -> None:
    """Read, send, say, end; without any patience for threads that others started."""
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(TIMEOUT)
    # What exporters write of a failure may quote the address and what was sent.
    logging.disable(logging.CRITICAL)
    _end(_report(JobFolder(Path(sys.argv[1]))))


def _report(folder: JobFolder) -> str:
    try:
        events = (event for batch, _ in batches(folder.events) for event in batch)
        collected = account(folder.spec(), events)
        send(collected)
    except CannotSend as error:
        return f"not sent, {error}"
    except Exception as error:  # noqa: BLE001 - the text of another's error may hold what is secret
        return f"not sent, {type(error).__name__}"
    return f"sent {len(collected.spans)} spans and {len(collected.measures)} measures"


def _give_up(*_: object) -> NoReturn:
    _end(f"not sent, no response within {TIMEOUT} s")


def _end(said: str) -> NoReturn:
    os.write(1, f"monitoring: {said}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
