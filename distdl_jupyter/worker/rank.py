"""Runs one rank: adopts its streams, reports its start, runs the job's code, reports the result, and exits.

Threads and children that keep the process alive are reported. The exit skips the destruction of modules.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from distdl_jupyter.worker import channel, installed, payload, report, streams, values
from distdl_jupyter.worker.frames import CellSources
from distdl_jupyter.worker.hooks import (
    distributed,
    frameworks,
    gpu_memory,
    keras,
    parallel,
    profile,
    steps,
    trainers,
)
from distdl_jupyter.worker.hooks.imports import HookFinder, install
from distdl_jupyter.worker.identity import Identity, add_rendezvous_secret, identify

#: Seconds until the user is notified of threads and child processes that keep the rank alive.
_NOTICE_SECONDS = 3.0
#: Environment variables that inject profilers and other tools into a process.
INJECTED_VARS = ("LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
#: Maximum number of threads and processes named in the notice.
_MAX_NAMES = 4
_BUFFERED_TYPES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def announce_survivors(ending: str) -> None:
    """Notify the user if threads or child processes keep this process alive when its code has ended (``ending``)."""

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


#: Exit code of an interrupted program, as in shells.
INTERRUPTED_EXIT_CODE = 130
#: Exit code of a rank that was started incorrectly (EX_USAGE).
MISUSED_EXIT_CODE = 64
#: The modules with hooks for the frameworks that training code imports.
_HOOKS = (payload, gpu_memory, distributed, steps, profile, keras, trainers, report, parallel)


def main() -> int:
    """Run this process's rank and return its exit code."""
    try:
        identity = identify(os.environ)
    except (ValueError, LookupError, OSError) as error:
        os.write(2, f"This rank cannot start: {error}\n".encode())
        return MISUSED_EXIT_CODE
    streams.adopt(identity.pipes, identity.rank)
    faulthandler.enable()
    streams.install_stacks_handler(identity)
    profile.profiler.accept_requests(identity)
    # Shells start background programs with SIGINT ignored; a canceled job must still stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    channel.open_channel(identity.nonce, identity.rank)
    add_rendezvous_secret(os.environ)
    packages = installed.list_packages()
    versions = {name: packages[name] for name in frameworks.RANK_PACKAGES if name in packages}
    channel.send("hello", pid=os.getpid(), host=identity.host, python=sys.version.split()[0], versions=versions)
    if identity.rank == 0:
        platform = " ".join(os.uname()[::2])
        channel.send("environment", python=sys.version, executable=sys.executable, platform=platform, packages=packages)
    _report_exec()
    sources = CellSources()
    finder, recording = install_hooks(), None
    if "DISTDL_CHECK" in os.environ:
        from distdl_jupyter.worker.hooks import check

        recording = check.CheckRecording(finder, identity.folder, identity.rank, identity.world_size, sources)
    code = _run(identity, sources)
    if recording is not None:
        recording.write()
    installed.record_imports()
    return code


def _report_exec() -> None:
    """Report when the code replaces this process by another program (os.exec), which will not report a result."""
    pid = os.getpid()

    def report_and_replace(replace: Callable[..., NoReturn], *args: Any, **kwargs: Any) -> NoReturn:
        if os.getpid() == pid:  # not in a child that was forked to run a program
            channel.send("exec")
        replace(*args, **kwargs)

    for function in (os.execv, os.execve):  # the other exec functions of os call these two
        setattr(os, function.__name__, functools.wraps(function)(functools.partial(report_and_replace, function)))


def install_hooks() -> HookFinder:
    """Install all hooks; call it once, before any user code is imported."""
    finder = install()
    for hook in _HOOKS:
        hook.install_hooks(finder)
    return finder


def _run(identity: Identity, sources: CellSources) -> int:
    value = exception = runner = None
    ending = "The code has ended"
    try:
        job_code = payload.read(identity.folder)
        if job_code.kind == "ranks":
            from distdl_jupyter.worker.serving import serve

            runner = serve
        value = payload.run(identity.folder, job_code, sources, runner)
        ending = "The function has returned" if job_code.kind == "function" else ending
    except BaseException as error:  # noqa: BLE001  any end of the user's code is reported
        exception = error
    # Further SIGINTs must not interrupt the final reports.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(Exception):
        report.flush()
        profile.profiler.finish()
    reported: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        # The last collective operations show what the other ranks are waiting for.
        if identity.world_size > 1 and (operations := streams.collect_operations(identity.folder / "code")):
            reported["collectives"] = operations
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    exit_code = exception.code if isinstance(exception, SystemExit) else 0 if exception is None else 1
    if exit_code is None or exit_code == 0:
        size, problem = values.save(identity.folder, identity.rank, value)
        if problem:
            channel.notify("warning", problem, "result")
        channel.send("result", ok=True, repr=values.to_text(value), bytes=size, error=None, problem=problem, **reported)
        distributed.leave()
        announce_survivors(ending)
        return 0
    from distdl_jupyter.worker import failure

    assert exception is not None
    if not isinstance(exit_code, int):  # as Python does for sys.exit("text")
        sys.stderr.write(f"{exit_code}\n")
        exit_code = 1
    error_fields = failure.describe(exception, sources, identity.folder / "code")
    channel.send("result", ok=False, repr="", bytes=0, error=error_fields, **reported)
    if isinstance(exception, KeyboardInterrupt):
        exit_code = INTERRUPTED_EXIT_CODE
        frames = [frame for frame in error_fields["frames"] if frame["kind"] in ("cell", "user")]
        location = f" in {frames[-1]['label']}, line {frames[-1]['line']}" if frames else ""
        sys.stderr.write(f"Interrupted{location}.\n")
    elif not isinstance(exception, SystemExit):
        type_, message = str(error_fields["type"]), str(error_fields["message"])
        # A lost-peer error is shortened, because it would hide the original failure.
        first_line = (message.strip().splitlines() or [""])[0][:200]
        short_text = f"{type_}: {first_line} (Another rank failed first; see its log lines for the cause.)\n"
        sys.stderr.write(short_text if frameworks.is_peer_lost(type_, message) else str(error_fields["traceback"]))
    sys.stderr.flush()
    return exit_code
