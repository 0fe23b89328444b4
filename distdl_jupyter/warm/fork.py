"""Forks a template into the supervisor of a job, and the supervisor into its ranks and its backend's services."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import math
import os
import re
import runpy
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from distdl_jupyter.core import machine
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node import job as node_job
from distdl_jupyter.node import processes
from distdl_jupyter.warm import preload
from distdl_jupyter.warm.start import FILLER, FILLER_ARGUMENT, FILLER_VARIABLE, receive, send
from distdl_jupyter.worker import rank
from distdl_jupyter.worker.hooks import frameworks

#: The flags of the command lines that can be forked: ``python -P -m MODULE ARGUMENTS``.
_MODULE_FLAGS = ("-P", "-m")
#: Packages whose linear algebra library has a thread count of its own.
_BLAS_USERS = frozenset(("numpy", "scipy"))
#: Timeout in seconds until the system no longer counts a joined thread.
_JOIN_SECONDS = 0.1
#: Seconds between two polls of a process.
_POLL_SECONDS = 0.002


def become_supervisor(
    connection: socket.socket, message: dict[str, Any], descriptors: list[int], forker: Forker
) -> NoReturn:
    """Run the job of a request to its end, in a newly forked process. ``descriptors`` are its lock and its log."""
    try:
        lock, log = descriptors
        _start_session((os.open(os.devnull, os.O_RDONLY), log, log), keep=(lock, connection.fileno()))
        arguments = ["-P", "-m", "distdl_jupyter.supervisor", message["folder"], "(warm)"]
        forker.argv.set_arguments(arguments, {})
        os.setpriority(os.PRIO_PROCESS, 0, message["niceness"])
        _reset_state([sys.executable, *arguments])
        send(connection, {"accepted": os.getpid()})
        # The submitter may have timed out; this process owns the job only after its confirmation.
        if not receive(connection)[0].get("go"):
            os._exit(0)
        connection.close()
    except OSError:
        os._exit(0)  # the submitter detects the closed connection and starts the job cold
    except BaseException:  # noqa: BLE001 - no error may reach the template's frames
        traceback.print_exc()
        os._exit(1)

    def run() -> None:
        from distdl_jupyter.supervisor.__main__ import supervise

        _replace_environment(message["inherited"])
        os.chdir(message["folder"])
        node_job.fork = forker
        supervise(JobFolder(Path(message["folder"])), message["secrets"])

    _run_to_end(run)


class ForkedProcess:
    """A forked child of this process, with the interface of ``subprocess.Popen``."""

    def __init__(self, pid: int, stdin: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0  # other code has reaped it; Popen also returns 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to exit and return its exit code. Raises subprocess.TimeoutExpired."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0.0)
            time.sleep(_POLL_SECONDS)
        return code


class Forker:
    """Implements ``node.job.fork`` in a supervisor that was forked from a template.

    The template imported its modules in ``environment``; ``recorder`` has the variables that they read and set.
    """

    def __init__(self, argv: ArgvBuffer, environment: Mapping[str, str], recorder: preload.Recorder) -> None:
        self.argv = argv
        self._environment = environment
        self._recorder = recorder

    def find_difference(self, environment: Mapping[str, str]) -> str:
        """Return why a process with this environment cannot be forked, or "" if it can.

        A variable that the imports have set, such as torch's KMP_DUPLICATE_LIB_OK, may be missing or have that value.
        """
        recorder = self._recorder
        same_values = {name: value for name, value in recorder.new_values.items() if environment.get(name) == value}
        name = preload.find_difference({**self._environment, **same_values}, environment, recorder.read_names)
        return f"the value of the environment variable {name} differs from that of the template" if name else ""

    def __call__(self, arguments: Sequence[str], options: Mapping[str, Any]) -> ForkedProcess | None:
        """Fork a process that runs a program; return None if the program needs a new interpreter.

        ``arguments`` and ``options`` are those of ``subprocess.Popen``.
        """
        if reason := self._find_refusal(arguments, options["env"], options["cwd"]):
            node_job.fork_failures.append(reason)
            return None
        stdin = os.pipe() if options["stdin"] == subprocess.PIPE else None
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            stdin_fd = stdin[0] if stdin else os.open(os.devnull, os.O_RDONLY)
            _run_to_end(lambda: self._run_program(arguments, options, stdin_fd))
        if stdin is None:
            return ForkedProcess(pid, None)
        os.close(stdin[0])
        return ForkedProcess(pid, os.fdopen(stdin[1], "wb"))

    def _find_refusal(self, arguments: Sequence[str], environment: Mapping[str, str], directory: str | None) -> str:
        """Return why this program cannot be forked, or "" if it can."""
        if os.path.abspath(arguments[0]) != os.path.abspath(sys.executable) or tuple(arguments[1:3]) != _MODULE_FLAGS:  # noqa: PTH100 - links are kept
            return "it uses a different Python"
        if directory and not os.access(directory, os.X_OK):
            return "its working directory is not accessible"
        if "DISTDL_RANK" in environment and count_library_threads(environment) is None:
            return "its number of threads cannot be set after a fork"
        if reason := self.find_difference(environment):
            return reason
        # An injected library needs a normal process exit, which forked processes skip.
        if any(environment.get(name) for name in rank.INJECTED_VARS):
            return "a library is injected into it (LD_PRELOAD)"
        # The system still counts a thread briefly after it was joined.
        deadline = time.monotonic() + _JOIN_SECONDS
        while preload.count_threads() > 1:
            if time.monotonic() > deadline:
                return "the supervisor has started threads"
            time.sleep(0.001)
        return ""

    def _run_program(self, arguments: Sequence[str], options: Mapping[str, Any], stdin: int) -> None:
        environment = options["env"]
        _start_session((stdin, options["stdout"], options["stderr"]))
        _replace_environment({**environment, **self._recorder.new_values})
        if options["cwd"]:
            os.chdir(options["cwd"])
        job, rank = environment[processes.MARK], environment.get("DISTDL_RANK")
        role = f"rank {rank} of {job}" if rank else f"service of {job}"
        self.argv.set_arguments([*arguments[1:], f"({role})"], {name: environment[name] for name in processes.MARKS})
        node_job.fork = None
        _reset_state(arguments)
        count = count_library_threads(environment) or 1
        if count > 1:
            frameworks.set_threads(count)
        blas_count = environment.get("OPENBLAS_NUM_THREADS", str(count))
        if _BLAS_USERS & sys.modules.keys() and blas_count.isdigit() and int(blas_count) > 1:
            from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

            ThreadpoolController().select(user_api="blas").limit(limits=int(blas_count))
        sys.argv[:] = ["-m", *arguments[4:]]
        runpy.run_module(arguments[3], run_name="__main__", alter_sys=True)


class ArgvBuffer:
    """The fillers in this process's memory. Raises LookupError if they are missing.

    ``/proc/PID/environ`` and ``/proc/PID/cmdline`` show the memory from the time of exec, so a forked rank would look
    like the template and could not be found by its job's marks. The template is therefore started with a filler as its
    last variable (whose name is overwritten too) and last argument. Forked processes overwrite only these fillers,
    because C code may have pointers to the rest of that memory.
    """

    def __init__(self) -> None:
        # proc_pid_stat(5): arg_start, arg_end, env_start, env_end are the fields 48 to 51, counted from 1.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        addresses = [int(field) for field in fields[45:49]]
        self._variable = _find_filler(addresses[2], addresses[3], f"{FILLER}={FILLER_VARIABLE[FILLER]}".encode())
        filler, length = _find_filler(addresses[0], addresses[1], FILLER_ARGUMENT.encode())
        start = addresses[0] + len(ctypes.string_at(addresses[0])) + 1
        self._arguments = (start, filler + length - start)

    def set_arguments(self, arguments: Sequence[str], marks: Mapping[str, str]) -> None:
        """Set the visible arguments after the interpreter's path, and the visible variables ``marks``."""
        line = b"\0".join(argument.encode(errors="surrogateescape") for argument in arguments)
        address, length = self._arguments
        # Padded with blanks, because trailing zeros would be read as empty arguments.
        ctypes.memmove(address, line[:length].ljust(length), length)
        address, length = self._variable
        variables = b"\0".join(os.fsencode(f"{name}={value}") for name, value in marks.items())
        ctypes.memmove(address, variables[:length].ljust(length, b"\0"), length)


def _find_filler(start: int, end: int, text: bytes) -> tuple[int, int]:
    if not 0 < start < end:
        raise LookupError("the kernel does not report where a process keeps its environment")
    offset = ctypes.string_at(start, end - start).find(text + b"\0")
    if offset < 0:
        raise LookupError("the space reserved for a job's mark is missing")
    return start + offset, len(text)


def _start_session(streams: Sequence[int], keep: Iterable[int] = ()) -> None:
    """Start a session with ``streams`` as descriptors 0, 1 and 2. Of the other descriptors, keep only ``keep``.

    The rest is redirected to /dev/null instead of being closed, because an inherited object that is deleted later
    would otherwise close an unrelated descriptor with the same number.
    """
    os.setsid()
    machine.reset_signals()
    copies = [os.dup(fd) if fd < len(streams) else fd for fd in streams]
    for number, fd in enumerate(copies):
        os.dup2(fd, number)
    devnull = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in set(map(int, os.listdir("/proc/self/fd"))) - {0, 1, 2, devnull, *keep}:  # noqa: PTH208 - numbers
        with contextlib.suppress(OSError):
            os.fstat(fd)  # raises for the descriptor of the listing itself
            os.dup2(devnull, fd, inheritable=False)
    os.close(devnull)
    # Reopen Python's streams, because those of the template have cached whether its log is seekable.
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    for fd, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        raw = io.FileIO(fd, "w", closefd=False)
        raw.name = f"<{name}>"
        # Unbuffered, as with `python -u`.
        stream = io.TextIOWrapper(raw, "utf-8", errors, "\n", line_buffering=True, write_through=True)
        stream.mode = "w"  # type: ignore[misc]  # as for Python's own streams
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _replace_environment(environment: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


def _reset_state(arguments: Sequence[str]) -> None:
    """Reset state that a process must not share with its parent: command line, random numbers, caches, keys."""
    sys.orig_argv[:] = list(arguments)
    sys.argv[:] = [""]
    importlib.invalidate_caches()
    frameworks.reseed()
    # Python reseeds ``random`` in every forked process.
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        current = process.current_process()
        current.authkey = os.urandom(32)
        current._parent_pid = os.getppid()  # noqa: SLF001 - otherwise set only at import


def _run_to_end(program: Callable[[], Any]) -> NoReturn:
    """Call ``program`` and end this process, with the exit code of its SystemExit or its error.

    It never returns or raises into the frames of the parent.
    """
    code = 1
    try:
        try:
            program()
            code = 0
        except SystemExit as error:
            if error.code is None or isinstance(error.code, int):
                code = (error.code or 0) & 0xFF
            else:
                sys.stderr.write(f"{error.code}\n")
        except BaseException:  # noqa: BLE001 - print it as Python prints an uncaught one
            traceback.print_exc()
        rank.exit_process(code)
    finally:
        os._exit(code)


def count_library_threads(environment: Mapping[str, str]) -> int | None:
    """Return the thread count of a process with this environment, or None if it cannot be set after a fork.

    0 means that no numerical library is loaded. A library that is loaded later reads the environment itself.
    """
    if not frameworks.has_threads() and not _BLAS_USERS & sys.modules.keys():
        return 0
    count = environment.get("OMP_NUM_THREADS", "")
    return int(count) if re.fullmatch("[1-9][0-9]*", count) and "MKL_NUM_THREADS" not in environment else None
