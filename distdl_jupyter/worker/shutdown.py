"""Exits a rank's process: reports threads and children that keep it alive, and skips the destruction of modules."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import sys
import threading
from pathlib import Path
from typing import NoReturn

from distdl_jupyter.worker import channel

#: Seconds until the user is notified of threads and child processes that keep the rank alive.
_NOTICE_SECONDS = 3.0
#: Environment variables that inject profilers and other tools into a process.
INJECTED_VARS = ("LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
#: Maximum number of threads and processes named in the notice.
_MAX_NAMES = 4
_BUFFERED_TYPES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def announce_survivors(ending: str) -> None:
    """Notify the user if threads or child processes keep this process alive. ``ending`` describes how its code ended.

    Python waits for non-daemon threads and ``multiprocessing`` processes, including executors.
    """

    def announce() -> None:
        main, multiprocessing = threading.main_thread(), sys.modules.get("multiprocessing")
        children = multiprocessing.active_children() if multiprocessing else []
        names = [f"thread {thread.name!r}" for thread in threading.enumerate() if not thread.daemon and thread != main]
        names += [f"child process {child.name!r}" for child in children if not child.daemon]
        if names:
            suffix = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            verb = "keeps" if len(names) == 1 else "keep"
            text = f"{ending}, but {', '.join(names[:_MAX_NAMES])}{suffix} {verb} the process alive."
            remedy = "Stop what the code has started before it returns, or start it with daemon=True."
            availability = "The value is saved and remains available when the job is canceled."
            channel.notify("warning", f"{text} {remedy} {availability}", "kept-alive")

    timer = threading.Timer(_NOTICE_SECONDS, announce)
    timer.daemon = True
    timer.start()


def exit_process(code: int) -> NoReturn:
    """Exit with ``code`` like Python, but do not destroy all imported modules and C++ statics first.

    With torch this takes most of a second and can crash after all work is done. If a tool such as a profiler was
    injected into the process, Python exits normally, because the tool may depend on the destruction.
    """
    if any(os.environ.get(name) for name in INJECTED_VARS):
        sys.exit(code)
    for step in (threading._shutdown, atexit._run_exitfuncs, _drop_user_objects, _flush_files):  # type: ignore[attr-defined]  # noqa: SLF001
        with contextlib.suppress(Exception):
            step()
    os._exit(code)


def _drop_user_objects() -> None:
    """Remove modules that are not in installed packages, so that their objects are destroyed as in a normal exit."""
    installed = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or (isinstance(file, str) and not file.startswith(installed)):
            del sys.modules[name]
    del module
    gc.collect()


def _flush_files() -> None:
    """Flush all open files, including those of C code."""
    for file in gc.get_objects():
        if type(file) in _BUFFERED_TYPES and not file.closed:
            with contextlib.suppress(Exception):
                file.flush()
    ctypes.CDLL(None).fflush(None)
