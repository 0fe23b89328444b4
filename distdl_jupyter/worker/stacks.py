"""Writes the stacks of all threads to a file when the rank receives a signal, even while a library blocks the rank.

The signal handler is that of ``faulthandler``. It is written in C, so it also runs while a library holds the GIL, as
Horovod does when it waits for other ranks. The file is next to the job's named pipes. Its first line is JSON that tells
the reader (``node.processes``) the process, the signal and the thread that runs the user's code.

After the stacks, a thread appends the last collective operations as one line of JSON, ``{"collectives": ...}`` (see
``hooks.distributed``). It cannot run while a library holds the GIL. Standard streams and ``faulthandler.enable`` are
not changed. Processes forked by the rank inherit the handler, but do not receive requests.
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
from distdl_jupyter.worker.channel import move_to_high_fd
from distdl_jupyter.worker.hooks import distributed
from distdl_jupyter.worker.identity import Identity

#: Environment variable with the folder of the file, for jobs without named pipes.
FOLDER_VARIABLE = "DISTDL_STACKS"
#: On Linux, a real-time signal that libraries do not use. Elsewhere SIGINFO, which is ignored by default.
_SIGNAL = 57 if sys.platform == "linux" else getattr(signal, "SIGINFO", None)
#: The stacks are complete when the file has not grown for ``_IDLE_SECONDS`` seconds, or after ``_MAX_SECONDS`` seconds.
_IDLE_SECONDS, _MAX_SECONDS = 0.05, 1.0


def install_handler(identity: Identity) -> None:
    """Install the handler, if the platform has the signal, a folder is known and the file can be opened."""
    folder = os.environ.get(FOLDER_VARIABLE) or identity.pipes
    if folder is None or _SIGNAL is None:
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = move_to_high_fd(os.open(Path(folder) / f"rank-{identity.rank}.stacks", flags, 0o600))
        faulthandler.register(_SIGNAL, file=fd, all_threads=True)
        start_time = ""
        with contextlib.suppress(OSError, IndexError):  # only Linux has this file
            # Field 22 of proc_pid_stat(5); the first two contain the program's name, which may contain spaces.
            start_time = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
        first_line = {
            "pid": os.getpid(),
            "start": start_time,
            "signal": _SIGNAL,
            "fd": fd,
            "main": f"{threading.get_ident():#018x}",
            **_list_folders(identity.folder / "code"),
            "host": identity.host,
            "collectives": streams.is_running,
        }
        os.write(fd, json.dumps(first_line).encode() + b"\n")
        streams.periodic_calls.append(_OperationAppender(fd).poll)


class _OperationAppender:
    """Appends the last collective operations to each requested stack dump."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = os.fstat(fd).st_size
        self._thread: threading.Thread | None = None

    def poll(self) -> None:
        """Start a thread when the file has grown, because reading torch's record can block while torch locks it."""
        if self._thread is None and os.fstat(self._fd).st_size > self._size:
            self._thread = threading.Thread(target=self._append, name="distdl-collectives", daemon=True)
            self._thread.start()

    def _append(self) -> None:
        try:
            deadline, size = time.monotonic() + _MAX_SECONDS, -1
            while size != (size := os.fstat(self._fd).st_size) and time.monotonic() < deadline:
                time.sleep(_IDLE_SECONDS)
            os.write(self._fd, json.dumps({"collectives": distributed.collect_operations()}).encode() + b"\n")
        finally:
            self._size = os.fstat(self._fd).st_size
            self._thread = None


def collect_operations(code_folder: Path) -> dict[str, Any]:
    """Return this process's last operations and the folders for labeling their frames, or {} if there are none."""
    operations = distributed.collect_operations()
    return {"operations": operations, "about": _list_folders(code_folder)} if operations else {}


def _list_folders(code_folder: Path) -> dict[str, str]:
    return {"worker": str(Path(__file__).parent), "code": str(code_folder), "stdlib": str(Path(os.__file__).parent)}
