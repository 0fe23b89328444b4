"""The agent as a program: ``python -m distdl_jupyter.host [PATIENCE]`` speaks frames on its standard streams.

``PATIENCE`` are the seconds without a word from the supervisor after which it ends everything (default 20).
"""

from __future__ import annotations

import os
import signal
import sys

from distdl_jupyter.host import processes
from distdl_jupyter.host.agent import Agent
from distdl_jupyter.host.guardian import Guardian

PATIENCE = 20.0
#: Exit code where the agent cannot run (EX_UNAVAILABLE).
UNAVAILABLE = 69


def main(arguments: list[str]) -> int:
    """Serve the supervisor at the standard streams and return the exit code."""
    if sys.platform != "linux":
        sys.stderr.write(f"Ranks run on Linux hosts only, and this one runs {sys.platform}: choose another host.\n")
        return UNAVAILABLE
    # What starts the agent may block signals, and its ranks would inherit that (signal(7)).
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    guardian = Guardian()
    processes.adopt_orphans()
    source, sink = _take_streams()
    return Agent(source, sink, float(arguments[0]) if arguments else PATIENCE, guardian).run()


def _take_streams() -> tuple[int, int]:
    """Return input and output of the program and put harmless ones in their place: nothing else may disturb them."""
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, sink


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # threads that wait for a disk or a host must not hold up the end
