"""Exits a rank's process: reports what keeps it alive, and skips the destruction of modules."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from distdl_jupyter.worker import channel

#: Seconds that threads and child processes get to exit before the user gets a notice, and the notice's code.
PATIENCE, KEPT_ALIVE = 3.0, "kept-alive"
#: Variables with which profilers and other tools are injected into a process.
INJECTED = ("LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
#: Maximum number of threads and processes named in the notice.
_MOST_NAMES = 4
#: Types of buffered files.
_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def announce_survivors(ending: str) -> None:
    """Notify the user what keeps this process alive after its code has ended; ``ending`` describes the end.

    Python waits for non-daemon threads and ``multiprocessing`` processes, including executors.
    """
    threading.Thread(target=_announce, args=(ending,), name="distdl-end", daemon=True).start()


def _announce(ending: str) -> None:
    time.sleep(PATIENCE)
    threads = [
        thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()
    ]
    multiprocessing = sys.modules.get("multiprocessing")
    children = [child for child in multiprocessing.active_children() if not child.daemon] if multiprocessing else []
    names = [f"thread {thread.name!r}" for thread in threads] + [f"child process {child.name!r}" for child in children]
    if names:
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        keeps = "keeps" if len(names) == 1 else "keep"
        text = (
            f"{ending}, but {', '.join(names[:_MOST_NAMES])}{more} {keeps} the process alive. Stop what the code has "
            "started before it returns, or start it with daemon=True. The value is saved and remains available when "
            "the job is canceled."
        )
        channel.note("warning", text, KEPT_ALIVE)


def end(code: int) -> NoReturn:
    """Exit with ``code`` like Python, but without destroying every imported module first.

    Non-daemon threads are joined, ``atexit`` functions run, the user's objects are destroyed with the resources they
    hold, and every open file is flushed. Only the destruction of modules and C++ statics is skipped: with torch it
    takes most of a second, and it can crash after all work is done. If a tool such as a profiler was injected into the
    process, Python exits normally, because the tool may depend on that destruction.
    """
    if any(os.environ.get(name) for name in INJECTED):
        sys.exit(code)
    for step in (threading._shutdown, atexit._run_exitfuncs, _drop_user_objects, _flush_files):  # type: ignore[attr-defined]  # noqa: SLF001
        with contextlib.suppress(Exception):
            step()
    os._exit(code)


def _drop_user_objects() -> None:
    """Remove modules outside of installed packages, so that their objects are destroyed as in a normal exit."""
    installed = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or (isinstance(file, str) and not file.startswith(installed)):
            del sys.modules[name]
    del module
    gc.collect()


def _flush_files() -> None:
    """Flush files that were not closed, including those of C code."""
    for file in gc.get_objects():
        if type(file) in _BUFFERED and not file.closed:
            with contextlib.suppress(Exception):
                file.flush()
    ctypes.CDLL(None).fflush(None)
