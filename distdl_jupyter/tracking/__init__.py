"""Reports jobs to other services: messages, telemetry and experiment trackers. All are off by default.

A separate process sends each report, so that a slow or broken service never delays a job. A supervisor starts the
process by the name of its module (``supervisor.control.start_reporter``).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NoReturn

from distdl_jupyter.core.errors import DistDLError


def run_reporter(name: str, report: Callable[[], str], timeout: int = 0) -> NoReturn:
    """Print the sentence that ``report`` returns, or its error, and exit without waiting for threads of libraries.

    The output of libraries is discarded, because it may contain a secret address. ``timeout`` is in seconds (0: none).
    """
    log = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)

    def finish(text: str, status: int) -> NoReturn:
        os.write(log, f"{name}: {text}\n".encode())
        os._exit(status)

    signal.signal(signal.SIGALRM, lambda *_: finish(f"not sent, no response within {timeout} s", 1))
    signal.alarm(timeout)
    try:
        text, status = report(), 0
    except DistDLError as error:
        text, status = str(error), 1
    except Exception as error:  # noqa: BLE001 - its text may contain a secret
        text, status = f"not sent, {type(error).__name__}", 1
    finish(text, status)
