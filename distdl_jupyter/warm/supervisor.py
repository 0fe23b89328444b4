"""A process forked from the template becomes the supervisor of one job."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from distdl_jupyter.core import locks
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node import spawn
from distdl_jupyter.warm import child, process_context, process_end, wire
from distdl_jupyter.warm.fork import Forker
from distdl_jupyter.warm.preload import Prepared

#: What a submitter hands over with its request, in this order.
DESCRIPTORS = ("lock", "supervisor.log")


def become(connection: socket.socket, message: dict[str, Any], descriptors: list[int], prepared: Prepared) -> NoReturn:
    """Run the job of a request to its end, in a process that was just forked for it."""
    try:
        lock, log = descriptors
        nothing = os.open(os.devnull, os.O_RDONLY)
        child.settle((nothing, log, log), keep=(lock, connection.fileno()))
        arguments = ["-P", "-m", "distdl_jupyter.supervisor", message["folder"], "(warm)"]
        prepared.room.say(arguments)
        process_context.limit(message["limits"])
        os.setpriority(os.PRIO_PROCESS, 0, message["niceness"])
        child.be_another([sys.executable, *arguments])
        wire.send(connection, {"taken": os.getpid()})
        # Until the submitter has said so, the job is not this process's: it may have given up waiting.
        if not wire.receive(connection)[0].get("go"):
            os._exit(0)
        connection.close()
    except (wire.Broken, OSError):
        os._exit(0)  # the submitter sees the end of the connection and starts the job cold
    except BaseException:  # noqa: BLE001 - nothing may climb into the template's own frames
        traceback.print_exc()
        os._exit(1)
    process_end.run(lambda: _supervise(JobFolder(Path(message["folder"])), message, prepared))


def _supervise(folder: JobFolder, message: dict[str, Any], prepared: Prepared) -> None:
    from distdl_jupyter.supervisor.__main__ import supervise

    child.replace_environment(message["inherited"], set_by_imports={})
    os.chdir(folder.path)
    spawn.fork = Forker(prepared)
    supervise(folder, message["secrets"])


def is_over(folder: JobFolder) -> bool:
    """Say whether no process runs the job any more. Its supervisor was on this host, as the template is."""
    return not locks.is_held(folder.lock)
