"""Runs one rank: adopts its streams, reports its start, runs the job's code, reports the result, and disconnects."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from distdl_jupyter.worker import (
    channel,
    execute,
    installed,
    payload,
    pictures,
    report,
    shutdown,
    stacks,
    streams,
    values,
)
from distdl_jupyter.worker.hooks import (
    autolog,
    distributed,
    frameworks,
    gpu_memory,
    keras,
    parallel,
    profile,
    steps,
    trainers,
)
from distdl_jupyter.worker.hooks.imports import PostImport, install
from distdl_jupyter.worker.identity import Identity, identify, put_rendezvous_secret
from distdl_jupyter.worker.sources import CellSources

#: Exit code of an interrupted program, as in shells.
INTERRUPTED = 130
#: Exit code of a rank that was started incorrectly (EX_USAGE).
MISUSED = 64


def main() -> int:
    """Run this process's rank and return its exit code."""
    try:
        identity = identify(os.environ)
    except (ValueError, LookupError, OSError) as error:
        os.write(2, f"This rank cannot start: {error}\n".encode())
        return MISUSED
    streams.adopt(identity.pipes, identity.rank)
    faulthandler.enable()
    stacks.offer(identity)
    profile.profiler.offer(identity)
    # Shells start background programs with SIGINT ignored; a canceled job must still stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    channel.opened(identity.nonce, identity.rank)
    put_rendezvous_secret(os.environ)
    channel.send("hello", pid=os.getpid(), host=identity.host, python=sys.version.split()[0], versions=versions())
    if identity.rank == 0:
        channel.send("environment", python=sys.version, executable=sys.executable, platform=" ".join(os.uname()[::2]),
                packages=installed.packages())  # fmt: skip
    _report_exec()
    sources = CellSources()
    finder, recording = install_hooks(), None
    if "DISTDL_CHECK" in os.environ:
        from distdl_jupyter.worker.hooks import check

        recording = check.start(finder, identity.folder, identity.rank, identity.world_size, sources)
    code = _run(identity, sources)
    if recording is not None:
        recording.write()
    installed.record_imports()
    return code


#: The modules with hooks for the frameworks that training code imports.
_HOOKS = (
    payload,
    gpu_memory,
    distributed,
    steps,
    profile,
    keras,
    trainers,
    autolog,
    pictures,
    parallel,
)


def install_hooks() -> PostImport:
    """Install all hooks; call it once, before any user code is imported."""
    finder = install()
    for hook in _HOOKS:
        hook.watch(finder)
    return finder


def _run(identity: Identity, sources: CellSources) -> int:
    try:
        code = payload.read(identity.folder)
        value = execute.run(identity.folder, code, sources, _serve if code.kind == "ranks" else None)
    except SystemExit as error:
        return _exited(error, identity, sources)
    except BaseException as error:  # noqa: BLE001  any end of the user's code is reported
        _quiet()
        return _failed(error, identity, sources)
    _quiet()
    _deliver(identity, value)
    distributed.leave()
    shutdown.announce_survivors("The function has returned" if code.kind == "function" else "The code has ended")
    return 0


def _serve(folder: Path, session: payload.Payload, sources: CellSources) -> None:
    from distdl_jupyter.worker.serving import serve

    serve(folder, session, sources)


def _quiet() -> None:
    """Ignore further SIGINTs, so that they cannot interrupt the final reports, and flush all output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(Exception):
        report.flush()
        profile.profiler.finish()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _deliver(identity: Identity, value: Any) -> None:
    size, problem = values.save(identity.folder, identity.rank, value)
    if problem:
        channel.note("warning", problem, "result")
    channel.send("result", ok=True, repr=values.text(value), bytes=size, error=None, problem=problem,
            **_collectives(identity))  # fmt: skip


def _exited(error: SystemExit, identity: Identity, sources: CellSources) -> int:
    """Handle ``sys.exit``: None and 0 mean success, a number is the exit code, another value is printed and means 1."""
    _quiet()
    code = error.code
    if code is None or code == 0:
        _deliver(identity, None)
        distributed.leave()
        shutdown.announce_survivors("The code has ended")
        return 0
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
    _report_failure(error, identity, sources)
    return code if isinstance(code, int) else 1


def _failed(error: BaseException, identity: Identity, sources: CellSources) -> int:
    failure = _report_failure(error, identity, sources)
    interrupted = isinstance(error, KeyboardInterrupt)
    sys.stderr.write(_interruption(failure) if interrupted else _printed(failure))
    sys.stderr.flush()
    return INTERRUPTED if interrupted else 1


def _report_failure(error: BaseException, identity: Identity, sources: CellSources) -> dict[str, Any]:
    from distdl_jupyter.worker import failure

    data = failure.describe(error, sources, identity.folder / "code")
    channel.send("result", ok=False, repr="", bytes=0, error=data, **_collectives(identity))
    return data


def _collectives(identity: Identity) -> dict[str, Any]:
    """Return the last collective operations of this rank, which show what the other ranks are waiting for."""
    with contextlib.suppress(Exception):
        if identity.world_size > 1 and (operations := stacks.last_operations(identity.folder / "code")):
            return {"collectives": operations}
    return {}


def _printed(failure: dict[str, Any]) -> str:
    """Return the log text of an error. A lost-peer error is shortened, because it would hide the original failure."""
    type_, message = str(failure["type"]), str(failure["message"])
    if not frameworks.says_peer_is_gone(type_, message):
        return str(failure["traceback"])
    first_line = (message.strip().splitlines() or [""])[0]
    return f"{type_}: {first_line[:200]} (Another rank failed first; see its log lines for the cause.)\n"


def _interruption(failure: dict[str, Any]) -> str:
    frames = [frame for frame in failure["frames"] if frame["kind"] in ("cell", "user")]
    return f"Interrupted in {frames[-1]['label']}, line {frames[-1]['line']}.\n" if frames else "Interrupted.\n"


def _report_exec() -> None:
    """Report when the code replaces this process by another program (os.exec), which will not report a result."""
    rank = os.getpid()

    def reporting(replace: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        @functools.wraps(replace)
        def replaced(*args: Any, **kwargs: Any) -> NoReturn:
            if os.getpid() == rank:  # not in a child that was forked to run a program
                channel.send("exec")
            replace(*args, **kwargs)

        return replaced

    # The other exec functions of os call these two.
    os.execv, os.execve = reporting(os.execv), reporting(os.execve)


def versions() -> dict[str, str]:
    """Return the installed versions of the packages in ``frameworks.OF_RANKS``."""
    packages = installed.packages()
    return {name: packages[name] for name in frameworks.OF_RANKS if name in packages}
