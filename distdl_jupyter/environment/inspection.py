"""Imports torch, TensorFlow and Horovod in new processes and reports facts about them.

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

_FACTS_PREFIX = "distdl-inspection:"

_SCRIPT = """
import json, os, pathlib, sys

facts = {}

def inspect_torch():
    import torch
    facts["torch_version"] = str(torch.__version__)
    facts["cxx11abi"] = bool(torch.compiled_with_cxx11_abi())
    facts["torch_cuda"] = torch.version.cuda or ""
    gpus = range(torch.cuda.device_count())
    facts["gpu_names"] = [torch.cuda.get_device_name(i) for i in gpus]
    facts["gpu_capabilities"] = sorted(set("%d%d" % torch.cuda.get_device_capability(i) for i in gpus))

def inspect_horovod():
    import horovod
    facts["horovod_version"] = str(horovod.__version__)
    facts["has_tensorflow"] = any(pathlib.Path(horovod.__file__).parent.glob("tensorflow/mpi_lib*"))
    import horovod.torch as hvd
    facts.update(has_gloo=bool(hvd.gloo_built()), has_mpi=bool(hvd.mpi_built()), has_nccl=bool(hvd.nccl_built()))

def inspect_tensorflow():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import horovod.tensorflow as hvd
    hvd.gloo_built()

for name in sys.argv[2:]:
    try:
        globals()["inspect_" + name]()
    except Exception as error:
        facts[name + "_error"] = f"{type(error).__name__}: {error}"
print("\\n" + sys.argv[1] + json.dumps(facts))
"""

#: The start of the error message of an import that timed out.
TIMEOUT_MESSAGE = "the import took longer than"
#: The exit code of a program that timed out, as in timeout(1).
TIMEOUT_EXIT_CODE = 124


@dataclass(frozen=True, slots=True)
class Inspection:
    """Facts from an import; an error is the exception's type and message, "" if the import succeeded."""

    torch_version: str = ""
    cxx11abi: bool = True
    #: The CUDA version of the torch build, "" for a CPU build.
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
    #: Whether Horovod was built for TensorFlow, and why ``import horovod.tensorflow`` fails.
    has_tensorflow: bool = False
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
    facts = _inspect(timeout_seconds, "torch", "horovod")
    if facts.get("has_tensorflow"):
        facts |= _inspect(timeout_seconds, "tensorflow")
    return Inspection(**facts)


def _inspect(timeout_seconds: float, *names: str) -> dict[str, Any]:
    """Import ``names`` in a new process; return the facts, and the error of each import that failed."""
    # -P: do not import a torch.py or horovod/ in the current directory.
    command = [sys.executable, "-P", "-c", _SCRIPT, _FACTS_PREFIX, *names]
    result = run_program(*command, timeout_seconds=timeout_seconds)
    for line in result.stdout.splitlines():
        if line.startswith(_FACTS_PREFIX):
            facts: dict[str, Any] = json.loads(line.removeprefix(_FACTS_PREFIX))
            return facts
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
