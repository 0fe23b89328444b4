"""What tests start on this machine: the command line, scripts of their own, servers on free ports; and what is left."""

import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil


def distdl(
    *arguments: object, code: int | None = 0, first: Iterable[str] = (), **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a distdl command, wait for it and return the completed process; ``code`` None allows every exit code."""
    command = [*first, sys.executable, "-m", "distdl_jupyter.cli", *map(str, arguments)]
    options = {"capture_output": True, "text": True, "timeout": 200, **options}
    done = subprocess.run(command, check=False, **options)
    assert code is None or done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done


def free_port() -> int:
    """Return a port of the loopback interface on which nothing listens now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def executable(path: Path, text: str) -> Path:
    """Write a shell script that can be run, with its folder, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def is_alive(pid: int) -> bool:
    """Say whether a process is there and no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
