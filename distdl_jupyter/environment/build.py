"""Compile Horovod's last release for the torch, and the TensorFlow, that are installed here.

Horovod 0.28.1 (2023) stops on its own against any torch since 2.1, for reasons that are mended from outside:

- it asks for C++11 and C++14 where torch's headers need C++17: a ``CXX`` wrapper rewrites the flag;
- its copy of Gloo asks for a CMake that CMake 4 no longer imitates: CMake 3 comes from PyPI;
- it must see the installed torch: no build isolation, its other build tools come from a private folder;
- it finds Python.h through distutils, which Python 3.12 dropped: the compiler is told by ``CPLUS_INCLUDE_PATH``;
- its XLA operations need headers that TensorFlow's wheels do not hold: their file is compiled as an empty one, so that
  ``HOROVOD_ENABLE_XLA_OPS`` is all that is lost.

Nothing of this touches the user's environment. Must not know how wheels are cached or installed.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from distdl_jupyter.core.machine import cores
from distdl_jupyter.environment.build_steps import BuildSteps
from distdl_jupyter.environment.compiler_wrapper import wrapper_script
from distdl_jupyter.environment.mpi import Mpi

HOROVOD_VERSION = "0.28.1"

_SOURCE_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
"""Of horovod-0.28.1.tar.gz, the source distribution on the Python package index."""

_BUILD_TOOLS = ("cmake>=3.18,<4", "setuptools<81", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml", "cffi")

_BYTES_PER_COMPILER = 2 * 1024**3
"""A unit that includes torch's headers takes 1 to 2 GB."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One build: the compiler command, the MPI to include (None for Gloo alone), GPU operations and frameworks."""

    compiler: str
    mpi: Mpi | None
    gpu_operations: str = ""
    tensorflow: bool = False


def build_wheel(recipe: Recipe, workspace: Path, log: Path, progress: Callable[[str], None]) -> Path:
    """Build the wheel below ``workspace`` (an empty folder, left to the caller to remove) and return its path.

    Everything the tools print goes to ``log``. Raises ``BuildFailed`` with the log's tail.
    """
    wrapper = workspace / "cxx"
    keep_rpaths = recipe.mpi is not None and not recipe.mpi.moves_with_environment
    wrapper.write_text(wrapper_script(recipe.compiler, keep_rpaths=keep_rpaths))
    wrapper.chmod(0o755)
    steps = BuildSteps(log, progress)
    steps.run("fetching the build tools", [*pip("install"), "--target", str(workspace / "tools"), *_BUILD_TOOLS], None)
    requirement = workspace / "horovod.txt"
    requirement.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{_SOURCE_SHA256}\n")
    steps.run("compiling Horovod", _wheel_command(requirement, workspace), build_environment(recipe, workspace))
    return next((workspace / "wheel").glob("horovod-*.whl"))


def pip(command: str) -> list[str]:
    """Return the start of a pip command line for this interpreter."""
    return [sys.executable, "-m", "pip", command, "--disable-pip-version-check", "--no-input"]


def _wheel_command(requirement: Path, workspace: Path) -> list[str]:
    # pip remembers wheels that it built from a source distribution by version alone: with its cache a build for
    # another torch would come back. -v shows the compiler's progress.
    options = ["-v", "--no-cache-dir", "--no-deps", "--no-build-isolation", "--require-hashes"]
    options += ["--no-binary", "horovod", "--wheel-dir", str(workspace / "wheel")]
    return [*pip("wheel"), *options, "-r", str(requirement)]


def build_environment(recipe: Recipe, workspace: Path) -> dict[str, str]:
    """Return the environment variables of the build, on top of this process's own."""
    tools = workspace / "tools"
    first = [str(recipe.mpi.bin_directory)] if recipe.mpi else []
    return {
        **os.environ,
        "CXX": str(workspace / "cxx"),
        "CPLUS_INCLUDE_PATH": _joined(sysconfig.get_path("include"), os.environ.get("CPLUS_INCLUDE_PATH")),
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
        **({"HOROVOD_GPU_OPERATIONS": recipe.gpu_operations} if recipe.gpu_operations else {}),
    }


def _joined(*parts: str | None) -> str:
    return os.pathsep.join(part for part in parts if part)


def parallel_compilers() -> int:
    """Return how many compilers may run at once: one per usable core, fewer where memory is short."""
    return max(1, min(cores(), int(psutil.virtual_memory().available) // _BYTES_PER_COMPILER))
