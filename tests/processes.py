"""What tests start on this machine: the command line, and servers on free ports."""

import socket
import subprocess
import sys


def distdl(*arguments, code=0, first=(), **options):
    """Run a distdl command, wait for it and return the completed process; ``code`` None allows every exit code."""
    command = [*first, sys.executable, "-m", "distdl_jupyter.cli", *map(str, arguments)]
    options = {"capture_output": True, "text": True, "timeout": 200, **options}
    done = subprocess.run(command, check=False, **options)
    assert code is None or done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done


def free_port():
    """Return a port of the loopback interface on which nothing listens now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
