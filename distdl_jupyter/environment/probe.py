"""Facts about this environment, read and not judged: ``doctor`` says what they mean.

Metadata where that is enough; everything slow or able to crash (torch, nvidia-smi, mpirun) runs in subprocesses side by
side with a time-out. Importing this module imports no framework.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from distdl_jupyter.core.caches import cache_directory
from distdl_jupyter.core.machine import installed_version
from distdl_jupyter.core.store import home
from distdl_jupyter.environment import toolchain
from distdl_jupyter.environment.inspection import Inspection, inspect_environment
from distdl_jupyter.environment.toolchain import Mpi, find_mpi
from distdl_jupyter.node import devices

_LAB_EXTENSIONS = ("@jupyter-widgets/jupyterlab-manager", "distdl-jupyter")
"""The prebuilt JupyterLab extensions that draw this package's panels."""

_INFINIBAND = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True)
class JobsDisk:
    """The place of the job folders: ``error`` says why nothing can be written there ("" when it can)."""

    path: Path
    free_bytes: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Slurm:
    """Slurm's commands; ``error`` says why its controller does not answer ("" when it does)."""

    version: str  # "" where the commands do not even tell that without a configuration
    nodes: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Environment:
    """One look at this environment. Versions are "" where the package is not installed."""

    python: str
    executable: str
    system: str
    inspection: Inspection
    """torch and Horovod as a real import shows them."""
    mpi: Mpi | None
    gpus: tuple[str, ...]
    driver: str
    """Version of the NVIDIA driver, "" without one."""
    infiniband: tuple[str, ...]
    """Names of the InfiniBand devices."""
    ssh: str
    """What ``ssh -V`` says, as "OpenSSH 9.2"; "" without ssh."""
    slurm: Slurm | None
    """None where no ``sbatch`` is."""
    compiler_missing: str
    """Why Horovod could not be compiled here, with the remedy ("" when it could)."""
    jupyterlab: str
    ipywidgets: str
    lab_extensions_missing: tuple[str, ...]
    server_extension: bool
    """Whether Jupyter servers load the package's extension."""
    widgets_built: bool
    """Whether the panels' bundled front end is in the package."""
    jobs: JobsDisk


def probe(timeout_seconds: float = 180.0) -> Environment:
    """Look around once. Takes as long as torch's import (2 to 10 s); never raises for anything that is missing."""
    with ThreadPoolExecutor(max_workers=6) as pool:
        inspection = pool.submit(inspect_environment, sys.executable, timeout_seconds)
        gpus = pool.submit(_nvidia_smi)
        mpi = pool.submit(find_mpi)
        ssh = pool.submit(_ssh)
        slurm = pool.submit(_slurm)
        missing = pool.submit(lambda: toolchain.missing_to_build(cache_directory()))
        return Environment(
            python=platform.python_version(),
            executable=sys.executable,
            system=f"{platform.system()} {platform.machine()}",
            inspection=inspection.result(),
            mpi=mpi.result(),
            gpus=gpus.result() or inspection.result().gpu_names,
            driver=devices.driver(),
            infiniband=infiniband_devices(),
            ssh=ssh.result(),
            slurm=slurm.result(),
            compiler_missing=" ".join(map(str, missing.result())),
            jupyterlab=installed_version("jupyterlab"),
            ipywidgets=installed_version("ipywidgets"),
            lab_extensions_missing=_missing_lab_extensions(),
            server_extension=_has_server_extension(),
            widgets_built=any((Path(__file__).parents[1] / "widgets" / "static").glob("*.js")),
            jobs=jobs_disk(home()),
        )


def infiniband_devices(folder: Path = _INFINIBAND) -> tuple[str, ...]:
    """Return the names of this machine's InfiniBand devices (Linux lists them as folders)."""
    return tuple(sorted(entry.name for entry in folder.iterdir())) if folder.is_dir() else ()


def jobs_disk(folder: Path) -> JobsDisk:
    """Return the room for jobs in ``folder``, which need not exist yet; nothing is created."""
    present = next(place for place in (folder, *folder.parents) if place.exists())
    if not present.is_dir():
        return JobsDisk(folder, 0, f"{present} is not a folder")
    writable = os.access(present, os.W_OK | os.X_OK)
    return JobsDisk(folder, shutil.disk_usage(present).free, "" if writable else f"{present} is not writable")


def _nvidia_smi() -> tuple[str, ...]:
    done = _said("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return _lines(done.stdout) if done is not None and done.returncode == 0 else ()


def _ssh() -> str:
    done = _said("ssh", "-V")
    return done.stderr.partition(",")[0].strip().replace("_", " ") if done is not None else ""


def _slurm() -> Slurm | None:
    if shutil.which("sbatch") is None:
        return None
    version = _said("sbatch", "--version")
    nodes = _said("sinfo", "--noheader", "--Node", "--format=%N")
    shown = version.stdout.strip().removeprefix("slurm-wlm ").removeprefix("slurm ") if version is not None else ""
    if nodes is None:
        return Slurm(shown, 0, "sinfo did not respond within 30 s")
    if nodes.returncode != 0:
        return Slurm(shown, 0, (_lines(nodes.stderr) or ("sinfo failed",))[-1].removeprefix("sinfo: "))
    return Slurm(shown, len(set(_lines(nodes.stdout))))


def _said(program: str, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    """Return what a program said, None when it is not here or says nothing for 30 s."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _missing_lab_extensions() -> tuple[str, ...]:
    from jupyter_core.paths import jupyter_path

    folders = [Path(folder) for folder in jupyter_path("labextensions")]
    return tuple(name for name in _LAB_EXTENSIONS if not any(_is_extension(folder / name) for folder in folders))


def _has_server_extension() -> bool:
    from jupyter_core.paths import jupyter_config_path

    files = (Path(folder) / "jupyter_server_config.d" / "distdl_jupyter.json" for folder in jupyter_config_path())
    return any(file.is_file() for file in files)


def _is_extension(folder: Path) -> bool:
    try:
        return "jupyterlab" in json.loads((folder / "package.json").read_text())
    except (OSError, ValueError):
        return False
