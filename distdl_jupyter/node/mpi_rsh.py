"""A program: the remote shell that Open MPI is given on a host with an agent.

``python -m distdl_jupyter.node.mpi_rsh HOST COMMAND...`` lets the agent have COMMAND run on HOST and behaves as
``ssh HOST COMMAND`` would: it passes on the output and ends with the command's exit code, or 255 without a connection.
No second ssh, no key and no host name is needed for it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

from distdl_jupyter.node.pipes import SOCKET

#: Exit code of ssh itself when the command could not be run or its end is not known.
NO_CONNECTION = 255


def main(arguments: list[str]) -> int:
    """Run one command on another host and return its exit code."""
    if len(arguments) < 2:
        sys.stderr.write("The relay needs a host and a command.\n")
        return NO_CONNECTION
    host, *command = arguments
    try:
        return _relay(host, " ".join(command))
    except (OSError, KeyError, ValueError) as error:
        sys.stderr.write(f"The relay to {host} failed: {type(error).__name__}: {error}.\n")
        return NO_CONNECTION


def _relay(host: str, command: str) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.connect(str(Path(os.environ["DISTDL_PIPES"]) / SOCKET))
        agent.sendall(json.dumps({"host": host, "command": command}).encode() + b"\n")
        for line in agent.makefile("rb"):
            said = json.loads(line)
            _print(said)
            if "code" in said:
                return int(said["code"])
    raise ConnectionError("the agent has exited")


def _print(said: dict[str, str]) -> None:
    for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
        if text := said.get(name):
            stream.write(text)
            stream.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
