"""Compile Horovod's last release for the torch, and the TensorFlow, that are installed here.

Horovod 0.28.1 (2023) does not compile against any torch since 2.1, or with GCC 13 and newer. Its source is downloaded
by hash, unpacked, patched (``patches`` names each edit and its reason) and built without isolation, so that it sees the
installed torch; its other build tools come from a private folder. The user's environment is not touched. Must not know
how wheels are cached or installed.
"""

from __future__ import annotations

import os
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from distdl_jupyter.core.machine import cores
from distdl_jupyter.environment import patches
from distdl_jupyter.environment.build_steps import BuildSteps
from distdl_jupyter.environment.cuda import Cuda
from distdl_jupyter.environment.mpi import Mpi

HOROVOD_VERSION = "0.28.1"

_SOURCE_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
"""Of horovod-0.28.1.tar.gz, the source distribution on the Python package index."""

_BUILD_TOOLS = ("cmake>=3.18", "setuptools<81", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml", "cffi")

_BYTES_PER_COMPILER = 2 * 1024**3
"""A unit that includes torch's headers takes 1 to 2 GB."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One build: the compiler command, the MPI to include (None for Gloo alone), CUDA with NCCL, and frameworks."""

    compiler: str
    mpi: Mpi | None
    cuda: Cuda | None = None
    tensorflow: bool = False


def build_wheel(recipe: Recipe, workspace: Path, log: Path, progress: Callable[[str], None]) -> Path:
    """Build the wheel below ``workspace`` (an empty folder, left to the caller to remove) and return its path.

    Everything the tools print goes to ``log``. Raises ``BuildFailed`` with the first errors in the log.
    """
    steps = BuildSteps(log, progress)
    steps.run("fetching the build tools", [*pip("install"), "--target", str(workspace / "tools"), *_BUILD_TOOLS], None)
    environment = build_environment(recipe, workspace)
    steps.run("fetching Horovod's source", _download_command(workspace), environment)
    source = _unpack(workspace)
    patches.apply(source, system_mpi=recipe.mpi is not None and not recipe.mpi.moves_with_environment)
    steps.run("compiling Horovod", _wheel_command(source, workspace), environment)
    return next((workspace / "wheel").glob("horovod-*.whl"))


def pip(command: str) -> list[str]:
    """Return the start of a pip command line for this interpreter."""
    return [sys.executable, "-m", "pip", command, "--disable-pip-version-check", "--no-input"]


def _download_command(workspace: Path) -> list[str]:
    requirement = workspace / "horovod.txt"
    requirement.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{_SOURCE_SHA256}\n")
    options = ["--no-deps", "--no-build-isolation", "--require-hashes", "--no-binary", "horovod"]
    return [*pip("download"), *options, "--dest", str(workspace / "source"), "-r", str(requirement)]


def _unpack(workspace: Path) -> Path:
    folder = workspace / "source"
    with tarfile.open(next(folder.glob("horovod-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"horovod-{HOROVOD_VERSION}"


def _wheel_command(source: Path, workspace: Path) -> list[str]:
    # -v shows the compiler's progress.
    options = ["-v", "--no-cache-dir", "--no-deps", "--no-build-isolation", "--wheel-dir", str(workspace / "wheel")]
    return [*pip("wheel"), *options, str(source)]


def build_environment(recipe: Recipe, workspace: Path) -> dict[str, str]:
    """Return the environment variables of the build, on top of this process's own."""
    tools = workspace / "tools"
    first = [str(recipe.mpi.bin_directory)] if recipe.mpi else []
    return {
        **(recipe.cuda.build_variables(workspace) if recipe.cuda else {}),
        **os.environ,
        "CXX": recipe.compiler,
        "PYTHONPATH": _joined(str(tools), os.environ.get("PYTHONPATH")),
        "PATH": _joined(*first, str(tools / "bin"), os.environ.get("PATH")),
        "PYTHONUNBUFFERED": "1",
        "MAKEFLAGS": f"-j{parallel_compilers()}",
        "TMPDIR": str(workspace),
        "HOROVOD_CMAKE": str(tools / "bin" / "cmake"),
        "HOROVOD_WITH_PYTORCH": "1",
        ("HOROVOD_WITH_TENSORFLOW" if recipe.tensorflow else "HOROVOD_WITHOUT_TENSORFLOW"): "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        **({"HOROVOD_WITH_MPI": "1"} if recipe.mpi else {"HOROVOD_WITHOUT_MPI": "1"}),
    }


def _joined(*parts: str | None) -> str:
    return os.pathsep.join(part for part in parts if part)


def parallel_compilers() -> int:
    """Return how many compilers may run at once: one per usable core, fewer where memory is short."""
    return max(1, min(cores(), int(psutil.virtual_memory().available) // _BYTES_PER_COMPILER))
