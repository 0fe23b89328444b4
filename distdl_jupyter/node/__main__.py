"""The agent as a program: ``python -m distdl_jupyter.node [TIMEOUT]`` speaks frames on its standard streams.

``TIMEOUT`` is the number of seconds without a message from the supervisor after which it stops everything (default 20).
"""

from __future__ import annotations

import os
import sys

from distdl_jupyter.node.agent import Agent, serve

TIMEOUT = 20.0


def main(arguments: list[str]) -> int:
    """Serve the supervisor over the standard streams and return the exit code."""
    timeout = float(arguments[0]) if arguments else TIMEOUT
    return serve(lambda watchdog: Agent(*_take_streams(), timeout, watchdog))


def _take_streams() -> tuple[int, int]:
    """Take over standard input and output, and replace them with /dev/null so that nothing else writes to them."""
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
