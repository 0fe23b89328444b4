"""This machine: installed software, usable GPUs, socket paths, limits, signals and memory pages."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.humanize import count, plural
from distdl_jupyter.node import devices

#: Size in bytes of a huge page, and the advice of madvise(2) that asks for them (Linux 6.1).
_HUGE_PAGE, _MADV_COLLAPSE = 2 * 2**20, 25
#: Maximum length of a Unix socket's path on all platforms (macOS: 104 bytes including the final NUL).
_MAX_SOCKET_PATH = 103


def find_version(*names: str) -> str:
    """Return the version of the first of these distributions that is installed, or "" if none is."""
    from importlib import metadata  # imports the whole ``email`` package

    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def get_requirement() -> str:
    """Return the pip requirement of this package: the repository or wheel it was installed from, or its name."""
    from importlib import metadata

    origin = json.loads(metadata.distribution("distdl-jupyter").read_text("direct_url.json") or "{}")
    prefix = f"{origin['vcs_info']['vcs']}+" if "vcs_info" in origin else ""
    return f"{prefix}{origin.get('url', 'distdl-jupyter')}"


def has_java() -> bool:
    """Return whether Java is installed where Spark's scripts search it."""
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java").exists() if home else shutil.which("java") is not None


@functools.cache
def list_gpus() -> tuple[devices.Gpu, ...]:
    """Return the GPUs that ranks may use, limited by CUDA_VISIBLE_DEVICES; () if the driver does not respond."""
    try:
        return tuple(devices.list_visible())
    except (OSError, subprocess.SubprocessError):
        return ()


def list_gpu_numbers() -> list[int]:
    """Return the numbers of the GPUs that ranks may use."""
    return [gpu.number for gpu in list_gpus()]


def get_socket_path(name: str, folder: Path | None = None) -> Path:
    """Return the path of the socket ``name`` in ``folder`` (default: Jupyter's runtime directory).

    If that path is too long for a socket, it is in a folder of the user in the temporary directory.
    """
    if folder is None:
        from jupyter_core.paths import jupyter_runtime_dir

        folder = Path(jupyter_runtime_dir())
    # The name contains the host, because home directories may be shared.
    host, digest = (hashlib.sha256(text).hexdigest() for text in (socket.gethostname().encode(), os.fsencode(folder)))
    file = f"{name}-{host[:8]}.sock"
    path = folder / "distdl" / file
    is_short = len(os.fsencode(path)) <= _MAX_SOCKET_PATH
    return path if is_short else Path(tempfile.gettempdir()) / f"distdl-{os.getuid()}-{digest[:10]}" / file


#: Maximum number of ranks per core without ``oversubscribe``.
_RANKS_PER_CORE = 8
#: Number of ranks that a machine of any size accepts.
_ALWAYS_ALLOWED_RANKS = 64
_PROCESSES_REMEDY = "Wait for other processes to exit, or raise the limit with 'ulimit -u'."
#: Code and remedy of each limit, by errno.
LIMITS = {
    errno.EAGAIN: ("process-limit", f"Your user has reached its process limit. {_PROCESSES_REMEDY}"),
    errno.EMFILE: ("open-files-limit", "The process has reached its limit of open files. Raise it with 'ulimit -n'."),
    errno.ENFILE: ("machine-open-files-limit", "The machine has reached its limit of open files. Stop other programs."),
    errno.ENOMEM: ("memory-exhausted", "The machine is out of memory. Stop other programs, or run fewer processes."),
}


def find_remedy(error: BaseException) -> str:
    """Return the remedy for an error, or "" if no limit caused it."""
    if isinstance(error, MemoryError):
        return LIMITS[errno.ENOMEM][1]
    if isinstance(error, RuntimeError):  # a thread that cannot start has no errno
        return LIMITS[errno.EAGAIN][1] if "start new thread" in str(error) else ""
    if isinstance(error, OSError):
        return LIMITS.get(error.errno or 0, ("", ""))[1]
    return find_remedy(error.__cause__) if error.__cause__ is not None else ""


def make_launch_error(message: str, error: OSError) -> LaunchFailed:
    """Return the error for processes that the operating system did not start: message, reason and remedy."""
    filename = f" ({error.filename})" if error.filename else ""
    code, hint = LIMITS.get(error.errno or 0, ("start-refused", ""))
    return LaunchFailed(f"{message}: {error.strerror or error}{filename}.", code=code, hint=hint)


def check_rank_count(ranks: int, cores: int, *, oversubscribe: bool = False, slots: int = 0) -> tuple[str, str]:
    """Return why one machine rejects this number of ranks, and the remedy, or ("", ""); the reason has no full stop.

    ``oversubscribe`` allows any number; ``slots`` is the configured number of processes of the machine.
    """
    limit = max(_ALWAYS_ALLOWED_RANKS, _RANKS_PER_CORE * cores, slots)
    if oversubscribe or ranks <= limit:
        return "", ""
    message = f"{plural(ranks, 'process')} are too many for {plural(cores, 'core')}; the limit is {count(limit)}"
    return message, "Use fewer processes, or set oversubscribe=True."


def raise_file_limit(count: int) -> None:
    """Raise the soft limit of open files of this process, as far as allowed, if ``count`` more may exceed it."""
    import resource  # Unix only

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 256
    if soft != resource.RLIM_INFINITY and soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


#: The handlers that Python sets at startup; other signals have the system's default.
_PYTHON_DEFAULTS: dict[int, Any] = {
    signal.SIGPIPE: signal.SIG_IGN,
    signal.SIGXFSZ: signal.SIG_IGN,
    signal.SIGINT: signal.default_int_handler,
}


def reset_signals() -> None:
    """Reset custom and inherited handlers to Python's: ``command &`` in a script, for example, ignores INT and QUIT."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        default = _PYTHON_DEFAULTS.get(number, signal.SIG_DFL)
        if signal.getsignal(number) is not default:
            signal.signal(number, default)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def wake_on_child() -> int:
    """Return a descriptor that becomes readable as soon as a child process ends."""
    read, write = os.pipe()
    for fd in (read, write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def use_huge_pages() -> None:
    """Move this process's private memory to huge pages, where the system supports it, so that its forks are faster.

    A fork copies the list of pages. With torch and Horovod loaded it takes a quarter of the CPU time afterwards.
    """
    import ctypes  # takes some milliseconds; only templates need it

    with contextlib.suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            fields = line.split()
            if "w" in fields[1] and (len(fields) == 5 or fields[5] == "[heap]"):  # belongs to no file
                start, end = (int(address, 16) for address in fields[0].split("-"))
                start, end = -(-start // _HUGE_PAGE) * _HUGE_PAGE, end // _HUGE_PAGE * _HUGE_PAGE
                if start < end:
                    madvise(start, end - start, _MADV_COLLAPSE)


@contextlib.contextmanager
def delay_interrupt() -> Iterator[None]:
    """Delay the first interrupt in the block until the block has ended; a second one is raised immediately."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):  # it receives interrupts
        yield
        return
    frames: list[Any] = []

    def receive(number: int, frame: Any) -> None:
        frames.append(frame)
        if len(frames) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, receive)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if frames:
        handler(signal.SIGINT, frames[0])
