"""What must be here before Horovod can be compiled, each with the command that brings it.

Checked in full before any work starts, so that nobody waits minutes for a missing compiler.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import machinery, metadata
from pathlib import Path

from distdl_jupyter.core.errors import PluginUnavailable
from distdl_jupyter.core.machine import installed_version
from distdl_jupyter.worker.watch import frameworks

_PROBE_PROGRAM = "#include <string_view>\nint main() { return std::string_view().empty() ? 0 : 1; }\n"

_FREE_BYTES_NEEDED = 1_500_000_000


@dataclass(frozen=True, slots=True)
class Missing:
    """A prerequisite that is not met: what, and the sentence that says how to mend it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}"


def system_install(debian: str, fedora: str, mac: str) -> str:
    """Return the command that installs a system package here, by the package manager that is found."""
    if platform.system() == "Darwin":
        return f"`{mac}`"
    if shutil.which("apt-get"):
        return f"`apt-get install {debian}` (as root)"
    if shutil.which("dnf"):
        return f"`dnf install {fedora}` (as root)"
    return f"your system's package manager (Debian's name: {debian})"


def compiler_command() -> str | None:
    """Return the C++ compiler: ``$CXX`` when set (``ccache g++`` is fine), else the first that is on PATH."""
    if named := os.environ.get("CXX"):
        return named if shutil.which(shlex.split(named)[0]) else None
    return next((found for name in ("g++", "c++", "clang++") if (found := shutil.which(name))), None)


def check_platform() -> Missing | None:
    """Ask for Linux or macOS: Horovod builds nowhere else."""
    if os.name == "posix":
        return None
    return Missing("Horovod does not build on Windows.", "Use WSL: run `wsl --install`, then work inside it.")


def check_pip() -> Missing | None:
    """Ask for pip in this very environment: it builds and installs the wheel."""
    if machinery.PathFinder.find_spec("pip") is not None:  # past setuptools' own finder, which warns in some processes
        return None
    return Missing(
        f"The environment of {sys.executable} has no pip.", f"Run `{sys.executable} -m ensurepip --upgrade`."
    )


def check_environment() -> Missing | None:
    """Ask for an environment that takes packages; a system Python may be locked by its distributor (PEP 668)."""
    marker = Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED"
    if sys.prefix != sys.base_prefix or not marker.exists():
        return None
    return Missing(
        "This Python belongs to the operating system, so packages cannot be installed into it.",
        "Create an environment with `python3 -m venv .venv`, then run the command with `.venv/bin/python`.",
    )


def check_torch() -> Missing | None:
    """Ask for torch: Horovod is compiled against the one that is installed."""
    try:
        metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Missing(
            "Horovod is compiled against the installed torch, but torch is not installed.",
            "First run `pip install 'distdl-jupyter[torch]'`.",
        )
    return None


def tensorflow_version() -> str:
    """Return the version of the installed TensorFlow, under whatever name it was installed; "" without one."""
    return installed_version(*frameworks.TENSORFLOW)


def check_tensorflow() -> Missing | None:
    """Ask for TensorFlow: Horovod is compiled against the one that is installed."""
    if tensorflow_version():
        return None
    return Missing(
        "Horovod is compiled against the installed TensorFlow, but TensorFlow is not installed.",
        "First run `pip install 'distdl-jupyter[tensorflow]'`.",
    )


def check_compiler() -> Missing | None:
    """Ask for a C++17 compiler that really compiles: a driver without headers is as good as none."""
    remedy = f"Install one with {system_install('g++', 'gcc-c++', 'xcode-select --install')}."
    command = compiler_command()
    if command is None:
        return Missing("Building Horovod needs a C++ compiler, but none is on PATH.", remedy)
    if not _compiles(command):
        return Missing(f"The C++ compiler `{command}` cannot compile a small C++17 program.", remedy)
    return None


def _compiles(command: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cc")
        source.write_text(_PROBE_PROGRAM)
        try:
            done = subprocess.run(
                [*shlex.split(command), "-std=c++17", str(source), "-o", str(Path(folder, "probe"))],
                capture_output=True,
                timeout=120,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


def check_make() -> Missing | None:
    """Ask for make, through which CMake drives the compiler."""
    if shutil.which("make"):
        return None
    remedy = f"Install it with {system_install('make', 'make', 'xcode-select --install')}."
    return Missing("Building Horovod needs `make`, but it is not on PATH.", remedy)


def check_python_headers() -> Missing | None:
    """Ask for Python.h, which the extension includes."""
    if Path(sysconfig.get_path("include"), "Python.h").exists():
        return None
    remedy = f"Install them with {system_install('python3-dev', 'python3-devel', 'brew install python')}."
    return Missing("Building Horovod needs Python's C headers (Python.h), but they are not installed.", remedy)


def check_libuv() -> Missing | None:
    """Ask for libuv on macOS, where Gloo speaks through it and finds it with pkg-config."""
    if platform.system() != "Darwin":
        return None
    config = shutil.which("pkg-config")
    if config and subprocess.run([config, "--exists", "libuv"], check=False).returncode == 0:
        return None
    return Missing("Building Gloo on macOS needs libuv and pkg-config.", "Run `brew install libuv pkg-config`.")


def check_disk(folder: Path) -> Missing | None:
    """Ask for the room that the objects and tools of one build take for a while."""
    present = next(place for place in (folder, *folder.parents) if place.exists())
    if shutil.disk_usage(present).free >= _FREE_BYTES_NEEDED:
        return None
    return Missing(
        f"Building Horovod temporarily needs 1.5 GB of disk space, but {present} has less.",
        "Free some space, or set DISTDL_CACHE to a folder on another disk.",
    )


_TO_INSTALL: tuple[Callable[[], Missing | None], ...] = (check_platform, check_pip, check_environment, check_torch)
_TO_BUILD: tuple[Callable[[], Missing | None], ...] = (
    check_compiler,
    check_make,
    check_python_headers,
    check_libuv,
)


def missing_to_install() -> list[Missing]:
    """Return what keeps any Horovod, cached or not, from being installed here."""
    return [missing for check in _TO_INSTALL if (missing := check())]


def missing_to_build(cache: Path) -> list[Missing]:
    """Return what keeps Horovod from being compiled here; ``cache`` is where the build takes its room."""
    found = [missing for check in _TO_BUILD if (missing := check())]
    return [*found, *([no_room] if (no_room := check_disk(cache)) else [])]


def require(missing: list[Missing]) -> None:
    """Raise ``PluginUnavailable`` with one line per missing prerequisite; nothing happens when none is missing."""
    if missing:
        first, *others = missing
        rest = "".join(f"\n{other}" for other in others)
        raise PluginUnavailable(first.what, code="horovod-prerequisite-missing", hint=first.remedy + rest)
