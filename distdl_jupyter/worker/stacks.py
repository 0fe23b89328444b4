"""How a rank tells where its threads stand, whatever holds it: a signal whose handler writes all stacks into a file.

The handler is ``faulthandler``'s, in C: it runs also while a library holds the interpreter, as Horovod does when it
waits for the other ranks. The file lies beside the job's named pipes and begins with one line of JSON, by which whoever
asks (``node.stacks``) knows the process, the signal and the thread that runs the user's code.

Nothing of it is seen by code of the user: neither its standard streams nor ``faulthandler.enable`` are touched, and of
the signals only one that nobody else takes. Processes forked by the rank inherit the handler, but nobody asks them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from distdl_jupyter.worker.descriptors import lifted
from distdl_jupyter.worker.identity import Identity

#: Names the folder of the file where the job has no named pipes.
VARIABLE = "DISTDL_STACKS"
#: A real-time signal on Linux, far from those that libraries take; elsewhere one that is ignored by default.
_REAL_TIME = 57
_HERE = Path(__file__).parent


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
        "worker": str(_HERE),
        "code": str(identity.folder / "code"),
        "stdlib": str(Path(os.__file__).parent),
        "host": identity.host,
    }


def _started() -> str:
    with contextlib.suppress(OSError, IndexError):
        text = Path("/proc/self/stat").read_bytes()
        return text[text.rfind(b")") + 2 :].split()[19].decode()
    return ""
