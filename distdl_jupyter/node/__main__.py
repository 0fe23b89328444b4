"""The agent as a program: ``python -m distdl_jupyter.node [TIMEOUT]`` exchanges frames over its standard streams.

The agent stops everything after ``TIMEOUT`` seconds (default 20) without a message from the supervisor.
"""

from __future__ import annotations

import os
import sys

from distdl_jupyter.node.agent import Agent, serve


def main(arguments: list[str]) -> None:
    """Serve the supervisor over the standard streams and exit."""
    timeout = float(arguments[0]) if arguments else 20.0
    source, sink = os.dup(0), os.dup(1)
    # No other code may read or write frames: its stdin is empty, and its stdout is stderr.
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    os.dup2(2, 1)
    serve(lambda watchdog: Agent(source, sink, timeout, watchdog))


if __name__ == "__main__":
    main(sys.argv[1:])
