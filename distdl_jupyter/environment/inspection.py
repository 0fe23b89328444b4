"""Imports torch, TensorFlow and Horovod in new processes, and reports their versions and features.

Only an import proves that a compiled extension works: ``horovodrun --check-build`` can list a framework that was not
built. TensorFlow is imported in a separate process, and only if Horovod was built for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: The start of the line with the results as JSON.
_RESULTS_PREFIX = "distdl-inspection:"

#: The program that imports packages. Its arguments are the prefix and the names of the packages.
_SCRIPT = """
import json, os, pathlib, sys

results = {}

def inspect_torch():
    import torch
    results["torch_version"] = str(torch.__version__)
    results["cxx11abi"] = bool(torch.compiled_with_cxx11_abi())
    results["torch_cuda"] = torch.version.cuda or ""
    gpus = range(torch.cuda.device_count())
    results["gpu_names"] = [torch.cuda.get_device_name(i) for i in gpus]
    results["gpu_capabilities"] = sorted(set("%d%d" % torch.cuda.get_device_capability(i) for i in gpus))

def inspect_horovod():
    import horovod
    results["horovod_version"] = str(horovod.__version__)
    results["has_tensorflow"] = any(pathlib.Path(horovod.__file__).parent.glob("tensorflow/mpi_lib*"))
    import horovod.torch as hvd
    results.update(has_gloo=bool(hvd.gloo_built()), has_mpi=bool(hvd.mpi_built()), has_nccl=bool(hvd.nccl_built()))

def inspect_tensorflow():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import horovod.tensorflow as hvd
    hvd.gloo_built()

for name in sys.argv[2:]:
    try:
        globals()["inspect_" + name]()
    except Exception as error:
        results[name + "_error"] = f"{type(error).__name__}: {error}"
print("\\n" + sys.argv[1] + json.dumps(results))
"""

#: The start of the error message of an import that timed out.
TIMEOUT_MESSAGE = "the import took longer than"
#: The exit code of a program that timed out, as in timeout(1).
TIMEOUT_EXIT_CODE = 124


@dataclass(frozen=True, slots=True)
class Inspection:
    """The results of imports. An error is the exception's type and message, or "" if the import succeeded."""

    torch_version: str = ""
    cxx11abi: bool = True
    #: The CUDA version of the torch build, or "" for a CPU build.
    torch_cuda: str = ""
    gpu_names: Sequence[str] = ()
    #: The distinct compute capabilities of the GPUs, such as ``("80", "90")``.
    gpu_capabilities: Sequence[str] = ()
    torch_error: str = ""
    horovod_version: str = ""
    has_gloo: bool = False
    has_mpi: bool = False
    has_nccl: bool = False
    horovod_error: str = ""
    #: Whether Horovod was built for TensorFlow.
    has_tensorflow: bool = False
    #: The reason why ``import horovod.tensorflow`` fails.
    tensorflow_error: str = ""

    @property
    def is_horovod_usable(self) -> bool:
        """Whether ``import horovod.torch`` succeeded."""
        return bool(self.horovod_version) and not self.horovod_error

    @property
    def is_tensorflow_usable(self) -> bool:
        """Whether ``import horovod.tensorflow`` succeeded."""
        return self.has_tensorflow and not self.tensorflow_error

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks that Horovod supports, as display names."""
        return ("torch", "TensorFlow") if self.is_tensorflow_usable else ("torch",)

    @property
    def controllers(self) -> tuple[str, ...]:
        """The controllers that Horovod includes: Gloo, MPI."""
        return tuple(name for name, is_built in (("Gloo", self.has_gloo), ("MPI", self.has_mpi)) if is_built)


def inspect_environment(timeout_seconds: float = 180.0) -> Inspection:
    """Import torch and horovod.torch in a new process, and horovod.tensorflow in another one if it was built.

    Takes 2 to 10 seconds for torch, and as long again for TensorFlow. Never raises: a crash or a timeout is reported in
    an error field.
    """
    results = _inspect(timeout_seconds, "torch", "horovod")
    if results.get("has_tensorflow"):
        results |= _inspect(timeout_seconds, "tensorflow")
    return Inspection(**results)


def _inspect(timeout_seconds: float, *names: str) -> dict[str, Any]:
    """Import ``names`` in a new process; return the results, with the error of each import that failed."""
    # -P: do not import a torch.py or horovod/ in the current directory.
    command = [sys.executable, "-P", "-c", _SCRIPT, _RESULTS_PREFIX, *names]
    result = run_program(*command, timeout_seconds=timeout_seconds)
    for line in result.stdout.splitlines():
        if line.startswith(_RESULTS_PREFIX):
            results: dict[str, Any] = json.loads(line.removeprefix(_RESULTS_PREFIX))
            return results
    last_line = (result.stderr.strip().splitlines() or ["no output"])[-1]
    exit_text = f"the interpreter exited with code {result.returncode}: {last_line}"
    problem = f"{TIMEOUT_MESSAGE} {timeout_seconds:.0f} s" if result.returncode == TIMEOUT_EXIT_CODE else exit_text
    return {f"{name}_error": problem for name in names}


def run_program(*command: str, timeout_seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Run a program and return its output and exit code: 127 if it cannot start, ``TIMEOUT_EXIT_CODE`` on a timeout."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        problem = f"{command[0]} did not respond within {timeout_seconds:.0f} s"
        return subprocess.CompletedProcess(command, TIMEOUT_EXIT_CODE, "", problem)
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))
