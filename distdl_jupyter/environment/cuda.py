"""What a Horovod with NCCL is built from on a machine with GPUs: nvcc, NCCL and the GPUs' compute capabilities."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from distdl_jupyter.environment.inspection import Inspection
from distdl_jupyter.environment.toolchain import Missing

_CUDA_HOME = Path("/usr/local/cuda")
_NCCL_WHEEL = re.compile(r"nvidia-nccl-cu\d+")


@dataclass(frozen=True, slots=True)
class Cuda:
    """A CUDA toolkit with nvcc, NCCL's header and library, and the compute capabilities to compile for."""

    home: Path
    nccl_header: Path
    nccl_library: Path
    capabilities: tuple[str, ...]
    """Such as ``("80", "90")``."""

    @property
    def label(self) -> str:
        """One word for the key of a built wheel, such as ``nccl-sm90``."""
        return "-".join(["nccl", *(f"sm{capability}" for capability in self.capabilities)])

    def build_variables(self, workspace: Path) -> dict[str, str]:
        """Return Horovod's build variables. Makes a folder in ``workspace`` in which CMake finds this NCCL."""
        nccl = workspace / "nccl"
        (nccl / "lib").mkdir(parents=True)
        (nccl / "include").symlink_to(self.nccl_header.parent)
        (nccl / "lib" / "libnccl.so").symlink_to(self.nccl_library)
        return {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_NCCL_LINK": "SHARED",
            "HOROVOD_NCCL_HOME": str(nccl),
            "HOROVOD_CUDA_HOME": str(self.home),
            "CUDA_HOME": str(self.home),
            **({"HOROVOD_BUILD_CUDA_CC_LIST": ",".join(self.capabilities)} if self.capabilities else {}),
        }


def find_cuda(inspection: Inspection) -> Cuda | Missing | None:
    """Return what to build NCCL operations from, what is missing for it, or None on a machine that needs none.

    A machine needs them when torch is a CUDA build and sees a GPU. ``HOROVOD_CUDA_HOME`` and ``CUDA_HOME`` name the
    toolkit; else nvcc is searched on PATH and in ``/usr/local/cuda``.
    """
    if not (inspection.torch_cuda and inspection.gpu_names):
        return None
    home = _toolkit()
    if home is None:
        return Missing(
            "Horovod is built without NCCL because nvcc was not found.",
            f"Install the CUDA {inspection.torch_cuda} toolkit or set CUDA_HOME, then run `distdl install horovod`.",
        )
    version = _nvcc_version(home)
    if version.partition(".")[0] != inspection.torch_cuda.partition(".")[0]:
        return Missing(
            f"Horovod is built without NCCL because nvcc {version or '(unknown version)'} in {home} does not match "
            f"torch's CUDA {inspection.torch_cuda}.",
            f"Install the CUDA {inspection.torch_cuda} toolkit or set CUDA_HOME, then run `distdl install horovod`.",
        )
    for header, library in (*_nccl_wheels(), *_nccl_system(home)):
        return Cuda(home, header, library, inspection.gpu_capabilities)
    major = inspection.torch_cuda.partition(".")[0]
    return Missing(
        "Horovod is built without NCCL because nccl.h and libnccl were not found.",
        f"Run `pip install nvidia-nccl-cu{major}`, then `distdl install horovod`.",
    )


def _toolkit() -> Path | None:
    named = [Path(os.environ[name]) for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME") if os.environ.get(name)]
    on_path = shutil.which("nvcc")
    homes = [*named, *([Path(on_path).resolve().parent.parent] if on_path else []), _CUDA_HOME]
    return next((home for home in homes if _is_toolkit(home)), None)


def _is_toolkit(home: Path) -> bool:
    """Whether nvcc and CUDA's headers are in this folder; an nvcc on PATH may be a script that calls another one."""
    headers = (home / "include", *home.glob("targets/*/include"))
    return (home / "bin" / "nvcc").exists() and any((folder / "cuda_runtime.h").exists() for folder in headers)


def _nvcc_version(home: Path) -> str:
    try:
        result = subprocess.run(
            [str(home / "bin" / "nvcc"), "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"release (\d+\.\d+)", result.stdout)
    return match[1] if match else ""


def _nccl_wheels() -> Iterator[tuple[Path, Path]]:
    """Yield header and library of NCCL's wheels: torch loads this library, so Horovod must be built for it."""
    for distribution in metadata.distributions():
        if not _NCCL_WHEEL.fullmatch((distribution.metadata["Name"] or "").lower()):
            continue
        files = {file.name: Path(str(distribution.locate_file(file))) for file in distribution.files or ()}
        if "nccl.h" in files and "libnccl.so.2" in files:
            yield files["nccl.h"], files["libnccl.so.2"]


def _nccl_system(home: Path) -> Iterator[tuple[Path, Path]]:
    """Yield header and library of an NCCL of the system or of the CUDA toolkit."""
    roots = [Path(os.environ["HOROVOD_NCCL_HOME"])] if os.environ.get("HOROVOD_NCCL_HOME") else []
    for root in (*roots, home, Path("/usr"), Path("/usr/local")):
        header = root / "include" / "nccl.h"
        libraries = [*root.glob("lib*/libnccl.so*"), *root.glob("lib/*-linux-gnu/libnccl.so*")]
        if header.exists() and libraries:
            yield header, min(libraries)
