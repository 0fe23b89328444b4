"""Ends a rank's process: reports what keeps it alive, and ends it without taking every module apart."""

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

#: Seconds that threads and child processes of the code get to end before the user gets a note, and its code.
PATIENCE, KEPT_ALIVE = 3.0, "kept-alive"
#: Variables by which profilers and other tools get into a process.
INJECTED = ("LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
#: Threads and processes that are named.
_MOST_NAMES = 4
#: Kinds of files that keep written text or bytes for a while.
_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def announce_survivors(ending: str) -> None:
    """Tell the user what keeps this process alive after its code has ended; ``ending`` says how that has ended.

    Python waits for threads that are no daemons and for such processes of ``multiprocessing``, executors included.
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
    """End this process with ``code`` as Python's own end would, without taking every imported module apart first.

    Threads that are no daemons are waited for, the functions of ``atexit`` run, the user's objects go and with them
    what they hold open, then every open file is flushed. What is left out is the destruction of modules and of C++
    statics: with torch it takes most of a second, and a process can crash in it after all its work was done. A program
    that was injected into the process, as profilers are, gets the long way: it may live by that destruction.
    """
    if any(os.environ.get(name) for name in INJECTED):
        sys.exit(code)
    for step in (threading._shutdown, atexit._run_exitfuncs, _drop_user_objects, _flush_files):  # type: ignore[attr-defined]  # noqa: SLF001
        with contextlib.suppress(Exception):
            step()
    os._exit(code)


def _drop_user_objects() -> None:
    """Forget the modules that belong to no installation, so that their objects are destroyed as at any end."""
    installed = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or (isinstance(file, str) and not file.startswith(installed)):
            del sys.modules[name]
    del module
    gc.collect()


def _flush_files() -> None:
    """Write out the buffers of files that were not closed, those of C programs too."""
    for file in gc.get_objects():
        if type(file) in _BUFFERED and not file.closed:
            with contextlib.suppress(Exception):
                file.flush()
    ctypes.CDLL(None).fflush(None)
