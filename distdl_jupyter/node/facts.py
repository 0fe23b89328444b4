"""What can be said of this host before a job comes: its Python and packages, devices, networks, room and load.

Standard library only. Each part is asked by itself: one that fails is named in ``problems`` and the others are told.
Nothing is imported of what is looked for.
"""

from __future__ import annotations

import getpass
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from distdl_jupyter.node import devices, headroom, interfaces

_PROC = Path("/proc")


def gather(modules: Sequence[str] = (), programs: Sequence[str] = (), packages: Sequence[str] = ()) -> dict[str, Any]:
    """Return what is known of this host as plain data; it never raises.

    ``modules`` are import names to look for, ``programs`` bare names (beside the interpreter, then on the PATH) or
    absolute paths; with ``mpirun`` among them its version is asked, too. ``packages`` are distributions whose versions
    are told where they are installed, as are those of ``modules``. ``time`` and ``until`` are this host's clock before
    and after the rest.
    """
    begin = time.time()
    problems: dict[str, str] = {}
    mpirun = found_program("mpirun") if "mpirun" in programs else ""
    slow = _Answers(problems, gpus=lambda: [gpu._asdict() for gpu in gpus()], mpirun=lambda: _mpirun_version(mpirun))
    quick = {name: _guarded(name, ask, problems) for name, ask in _questions(modules, programs, packages).items()}
    found = {**quick, **slow.wait()}
    return {"time": begin, **found, "problems": problems, "until": time.time()}


def _questions(
    modules: Sequence[str], programs: Sequence[str], packages: Sequence[str]
) -> dict[str, Callable[[], Any]]:
    return {
        "host": socket.gethostname,
        "user": getpass.getuser,
        "system": lambda: sys.platform,
        "python": _python,
        "packages": lambda: _packages(packages, modules),
        "modules": lambda: {name: _is_there(name) for name in modules},
        "programs": lambda: {name: found_program(name) for name in programs},
        "driver": devices.driver,
        "infiniband": devices.infiniband,
        "cores": headroom.cores,
        "load": lambda: os.getloadavg()[0],
        "memory": _memory,
        "room": headroom.room,
        "disk": _disk,
        "interfaces": interfaces.interfaces,
        "ranks": running_ranks,
    }


def _guarded(name: str, ask: Callable[[], Any], problems: dict[str, str]) -> Any:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - one unknown fact must not hide the others
        problems[name] = f"{type(error).__name__}: {error}"
        return None


class _Answers:
    """Questions that start other programs, asked side by side while the rest is looked at."""

    def __init__(self, problems: dict[str, str], **questions: Callable[[], Any]) -> None:
        self._found: dict[str, Any] = dict.fromkeys(questions)
        self._threads = [
            threading.Thread(target=self._ask, args=(name, ask, problems), daemon=True)
            for name, ask in questions.items()
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, name: str, ask: Callable[[], Any], problems: dict[str, str]) -> None:
        self._found[name] = _guarded(name, ask, problems)

    def wait(self) -> dict[str, Any]:
        """Return all answers; each question has a time-out of its own."""
        for thread in self._threads:
            thread.join()
        return self._found


# Python --------------------------------------------------------------------------------------


def _python() -> dict[str, str]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return {"version": version, "executable": sys.executable, "prefix": sys.prefix}


def _packages(packages: Iterable[str], modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of ``packages`` and of the distributions that hold ``modules``, where installed."""
    names = dict.fromkeys((*packages, *(name.partition(".")[0] for name in modules)))
    found = {name: _version(name) for name in names}
    if lacking := [name for name in names if not found[name] and _is_there(name)]:
        found |= _by_contents(lacking)
    return {name: version for name, version in found.items() if version}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _by_contents(modules: list[str]) -> dict[str, str]:
    """Look for modules whose distribution has another name, as yaml of PyYAML."""
    holders = metadata.packages_distributions()
    return {name: _version(holders[name][0]) for name in modules if name in holders}


def _is_there(module: str) -> bool:
    """Say whether a module could be imported, without importing it or its parent."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    return spec is not None and spec.origin is not None  # a bare folder of that name has no origin


def found_program(name: str) -> str:
    """Return the path of a program beside the interpreter or on the PATH, "" for none.

    A name with a slash is a path already: it is returned when something is there.
    """
    if "/" in name:
        return name if Path(name).exists() else ""
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    return beside or shutil.which(name) or ""


def _mpirun_version(program: str) -> str:
    """Return Open MPI's version, "" without an mpirun or for another MPI."""
    if not program:
        return ""
    answer = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=8, check=False, stdin=subprocess.DEVNULL
    )
    found = re.search(r"Open MPI\)?\s*v?(\d+\.\d+\.\d+)", answer.stdout)
    return found[1] if found else ""


# The machine ---------------------------------------------------------------------------------


def _memory() -> dict[str, int]:
    """Return bytes of memory in all and available (proc_meminfo(5) counts in kB of 1024 bytes)."""
    lines = dict(line.split(":", 1) for line in (_PROC / "meminfo").read_text().splitlines() if ":" in line)
    total, available = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return {"total": total, "available": available}


def _disk() -> dict[str, dict[str, Any]]:
    """Return the bytes free to this user where jobs keep files: ``jobs`` and ``temp``."""
    places = {"jobs": _base() or str(Path.home()), "temp": tempfile.gettempdir()}
    return {name: {"path": path, "free": shutil.disk_usage(path).free} for name, path in places.items()}


def _base() -> str:
    """Return the folder to which this package was copied for jobs, as ``BASE/lib/DIGEST``; "" if it is installed."""
    copied = Path(__file__).resolve().parents[3]
    return str(copied.parent) if copied.name == "lib" else ""


#: What nvidia-smi said, and when (monotonic): it takes long and costs the host, and GPUs seldom change.
_known_gpus: tuple[float, list[devices.Gpu]] | None = None
_GPUS_SECONDS = 60.0


def gpus() -> list[devices.Gpu]:
    """Return the GPUs that ranks may use here. Raises OSError or subprocess.SubprocessError."""
    global _known_gpus
    if _known_gpus is None or time.monotonic() - _known_gpus[0] > _GPUS_SECONDS:
        _known_gpus = time.monotonic(), devices.gpus()
    return devices.given(_known_gpus[1], os.environ.get("CUDA_VISIBLE_DEVICES"))


#: Variables that hold a rank's number in its environment: ours, and Open MPI's where its launcher gave them out.
_RANK = (b"DISTDL_RANK", b"OMPI_COMM_WORLD_RANK")


def running_ranks() -> int:
    """Return how many ranks of this user's jobs run here; a rank's own children do not count."""
    return len(rank_marks())


def rank_marks() -> set[tuple[bytes, bytes]]:
    """Return (job, rank) of each rank that runs here."""
    own = _space("self")
    return {mark for entry in _PROC.glob("[0-9]*") if (mark := _mark(entry)) and _space(entry.name) == own}


def _mark(entry: Path) -> tuple[bytes, bytes] | None:
    """Return (job, rank) of a process that carries them; children inherit theirs."""
    try:
        content = (entry / "environ").read_bytes()
    except OSError:  # it ended, or is another user's
        return None
    if b"DISTDL_JOB_ID=" not in content:
        return None
    variables = dict(pair.split(b"=", 1) for pair in content.split(b"\0") if b"=" in pair)
    rank = next((variables[name] for name in _RANK if name in variables), None)
    return (variables[b"DISTDL_JOB_ID"], rank) if rank is not None and b"DISTDL_JOB_ID" in variables else None


def _space(pid: str) -> str:
    """Return the namespace that gives a process its host name: a container is another host."""
    try:
        return str((_PROC / pid / "ns" / "uts").readlink())
    except OSError:
        return ""
