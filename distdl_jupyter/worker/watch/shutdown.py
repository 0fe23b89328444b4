"""The orderly end of a rank: it leaves Horovod and torch's process group as the code would have to, then the process.

A rank that closes its connections while a peer is still opening them makes that peer fail, and rank 0 usually keeps
the store through which torch's ranks find each other. So torch's ranks wait for each other and rank 0 goes last.
"""

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
from typing import Any, NoReturn

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.watch.hooks import guarded

#: Seconds to wait for the other ranks' ends. Connections that were opened this long ago are all up.
TIMEOUT = 15.0
#: The same where the ranks have worked together in all groups, so that all connections are up. A rank that still waits
#: for this one in a collective operation waits in vain, and learns it by this one's end.
SHORT_TIMEOUT = 1.0
#: Seconds that rank 0 gives the others to see that all have arrived.
LAST_TIMEOUT = 2.0
#: Seconds in which a store answers.
_ANSWERS = 2.0
#: Seconds that threads and child processes of the code get to end before the user is told of them, and its code.
PATIENCE, KEPT_ALIVE = 3.0, "kept-alive"
#: Variables by which profilers and other tools get into a process.
INJECTED = ("LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
#: Threads and processes that are named.
_MOST_NAMES = 4
#: Kinds of files that keep written text or bytes for a while.
_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def leave() -> None:
    """Shut down what the code has initialised and not shut down itself; nothing that was not imported is touched."""
    for name in ("horovod.torch", "horovod.tensorflow", "horovod.mxnet"):
        horovod = sys.modules.get(name)
        if horovod is not None and hasattr(horovod, "is_initialized"):
            guarded("at the end", _leave_horovod, horovod)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available():
        guarded("at the end", _leave_torch, distributed)


def _leave_horovod(horovod: Any) -> None:
    if horovod.is_initialized():
        horovod.shutdown()


def _leave_torch(distributed: Any) -> None:
    if not distributed.is_initialized():
        return
    with contextlib.suppress(Exception):
        _await_peers(distributed.distributed_c10d, distributed.get_rank(), distributed.get_world_size())
    distributed.destroy_process_group()


def _await_peers(c10d: Any, rank: int, size: int) -> None:
    store = c10d._get_default_store()  # noqa: SLF001  torch offers no public way to the group's own store
    if rank != 0 and _is_gone(store):
        return  # so its rank has left already
    store.add("distdl/arrived", 1)
    all_arrived = _until(store, "distdl/arrived", size, SHORT_TIMEOUT if _have_met(c10d) else TIMEOUT)
    if rank != 0:
        store.add("distdl/gone", 1)
    elif all_arrived:
        _until(store, "distdl/gone", size - 1, LAST_TIMEOUT)


def _is_gone(store: Any) -> bool:
    """Say whether nobody listens any more for a TCP store; to ask the store itself prints 20 lines of C++ then."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if not hasattr(store, "port"):
        return False
    import socket  # torch has imported it, most ranks have not

    try:
        socket.create_connection((store.host, store.port), _ANSWERS).close()
    except OSError:
        return True
    return False


def _have_met(c10d: Any) -> bool:
    """Say whether each group of this rank has had a collective operation, for which all its connections were opened."""
    try:
        return all(group._get_sequence_number_for_group() > 0 for group in c10d._world.pg_map)  # noqa: SLF001
    except (RuntimeError, AttributeError):  # a transport that does not count them
        return False


def _until(store: Any, counter: str, wanted: int, timeout: float) -> bool:
    until = time.monotonic() + timeout
    while int(store.add(counter, 0)) < wanted:
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def announce_survivors(ending: str) -> None:
    """Tell the user what keeps this process alive after its code has ended; ``ending`` says how that has ended.

    Python waits for threads that are no daemons and for such processes of ``multiprocessing``, executors included.
    """
    threading.Thread(target=_announce, args=(ending,), name="distdl-end", daemon=True).start()


def _announce(ending: str) -> None:
    time.sleep(PATIENCE)
    threads = [one for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
    multiprocessing = sys.modules.get("multiprocessing")
    children = [one for one in multiprocessing.active_children() if not one.daemon] if multiprocessing else []
    names = [f"thread {one.name!r}" for one in threads] + [f"child process {one.name!r}" for one in children]
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
    """Write out what files that nobody closed still hold, those of C programs too."""
    for found in gc.get_objects():
        if type(found) in _BUFFERED and not found.closed:
            with contextlib.suppress(Exception):
                found.flush()
    ctypes.CDLL(None).fflush(None)
