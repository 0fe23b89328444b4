"""How a rank tells where its threads stand, whatever holds it: a signal whose handler writes all stacks into a file.

The handler is ``faulthandler``'s, in C: it runs also while a library holds the interpreter, as Horovod does when it
waits for the other ranks. The file is beside the job's named pipes and begins with one line of JSON, from which the
reader (``node.stacks``) knows the process, the signal and the thread that runs the user's code.

Behind the stacks a thread of the rank writes the last collective operations as one line of JSON,
``{"collectives": ...}`` (see ``hooks.distributed``). It needs the interpreter, so a rank whose library does not
give it back has none.

Nothing of it is seen by code of the user: neither its standard streams nor ``faulthandler.enable`` are touched, and of
the signals only one that no library uses. Processes forked by the rank inherit the handler, but get no requests.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from distdl_jupyter.worker import streams
from distdl_jupyter.worker.channel import lifted
from distdl_jupyter.worker.hooks import distributed
from distdl_jupyter.worker.identity import Identity

#: Names the folder of the file where the job has no named pipes.
VARIABLE = "DISTDL_STACKS"
#: A real-time signal on Linux, far from those that libraries take; elsewhere one that is ignored by default.
_REAL_TIME = 57
#: Seconds without growth after which the stacks are whole, and seconds that this is awaited at most.
_QUIET, _PATIENCE = 0.05, 1.0
_HERE, _STDLIB = Path(__file__).parent, str(Path(os.__file__).parent)


def offer(identity: Identity) -> None:
    """Let this process answer the signal from now on; without a folder or a free descriptor it cannot be asked."""
    folder = os.environ.get(VARIABLE) or identity.pipes
    number = _signal()
    if folder is None or number is None:
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        fd = _opened(Path(folder) / f"rank-{identity.rank}.stacks")
        faulthandler.register(number, file=fd, all_threads=True)
        os.write(fd, json.dumps(_about(identity, fd, number)).encode() + b"\n")
        streams.at_each_look.append(_Follower(fd).look)


class _Follower:
    """Writes the last collective operations behind each stack trace that was asked for."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = os.fstat(fd).st_size
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Start writing when the file has grown. torch may keep its record locked, so a thread of its own waits."""
        if self._thread is None and os.fstat(self._fd).st_size > self._size:
            self._thread = threading.Thread(target=self._follow, name="distdl-collectives", daemon=True)
            self._thread.start()

    def _follow(self) -> None:
        try:
            until, size = time.monotonic() + _PATIENCE, -1
            while size != (size := os.fstat(self._fd).st_size) and time.monotonic() < until:
                time.sleep(_QUIET)
            line = json.dumps({"collectives": distributed.last_operations()})
            os.write(self._fd, line.encode() + b"\n")
        finally:
            self._size = os.fstat(self._fd).st_size
            self._thread = None


def last_operations(code: Path) -> dict[str, Any]:
    """Return the last collective operations of this process, with what names their frames; {} without any."""
    operations = distributed.last_operations()
    return {"operations": operations, "about": _folders(code)} if operations else {}


def _folders(code: Path) -> dict[str, str]:
    """Return the folders by which the files of frames are named."""
    return {"worker": str(_HERE), "code": str(code), "stdlib": _STDLIB}


def _signal() -> int | None:
    return _REAL_TIME if sys.platform == "linux" else getattr(signal, "SIGINFO", None)


def _opened(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return lifted(os.open(path, flags, 0o600))


def _about(identity: Identity, fd: int, number: int) -> dict[str, Any]:
    """Return what the file begins with; ``start`` is field 22 of proc_pid_stat(5), "" elsewhere than on Linux."""
    return {
        "pid": os.getpid(),
        "start": _started(),
        "signal": number,
        "fd": fd,
        "main": f"{threading.get_ident():#018x}",
        **_folders(identity.folder / "code"),
        "host": identity.host,
        "collectives": streams.is_attended(),
    }


def _started() -> str:
    with contextlib.suppress(OSError, IndexError):
        text = Path("/proc/self/stat").read_bytes()
        return text[text.rfind(b")") + 2 :].split()[19].decode()
    return ""
