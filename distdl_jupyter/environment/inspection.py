"""What a fresh interpreter of this environment says about torch and Horovod.

Importing is the only proof that a compiled extension fits: Horovod's own ``horovodrun --check-build`` can claim a
framework that was not built. The imports happen in a subprocess, so this process stays free of torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

CONTROLLER_NAMES = {"gloo": "Gloo", "mpi": "MPI"}
"""Horovod's controllers as people write them."""

_MARK = "distdl-inspection:"

_SCRIPT = f"""
import json, sys
facts = {{}}
try:
    import torch
    facts["torch_version"] = str(torch.__version__)
    facts["cxx11abi"] = bool(torch.compiled_with_cxx11_abi())
    facts["torch_cuda"] = torch.version.cuda or ""
    facts["gpu_names"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
except Exception as error:
    facts["torch_error"] = f"{{type(error).__name__}}: {{error}}"
try:
    import horovod
    facts["horovod_version"] = str(horovod.__version__)
    import horovod.torch as hvd
    facts.update(gloo=bool(hvd.gloo_built()), mpi=bool(hvd.mpi_built()), nccl=bool(hvd.nccl_built()))
except Exception as error:
    facts["horovod_error"] = f"{{type(error).__name__}}: {{error}}"
sys.stdout.write("\\n{_MARK}" + json.dumps(facts) + "\\n")
"""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Facts from a real import; an error is the exception's type and message, "" when the import worked."""

    torch_version: str = ""
    cxx11abi: bool = True
    torch_cuda: str = ""
    """CUDA version of the torch build, "" for a CPU build."""
    gpu_names: tuple[str, ...] = ()
    torch_error: str = ""
    horovod_version: str = ""
    gloo: bool = False
    mpi: bool = False
    nccl: bool = False
    horovod_error: str = ""

    @property
    def horovod_works(self) -> bool:
        """Whether ``import horovod.torch`` succeeded."""
        return bool(self.horovod_version) and not self.horovod_error

    @property
    def controllers(self) -> tuple[str, ...]:
        """The controllers compiled in: ``gloo``, ``mpi``."""
        return tuple(name for name, built in (("gloo", self.gloo), ("mpi", self.mpi)) if built)


def inspect_environment(python: str = sys.executable, timeout_seconds: float = 180.0) -> Inspection:
    """Import torch and horovod.torch in a new process of ``python`` and return what they say.

    Takes 2 to 10 seconds, nearly all of it torch's import. Never raises: a crash or a time-out is an error field.
    """
    try:
        # -P keeps a torch.py or horovod/ in the current directory from standing in for the installed one.
        done = subprocess.run(
            [python, "-P", "-c", _SCRIPT], capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return _broken(f"importing torch took longer than {timeout_seconds:.0f} s")
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return _from_json(json.loads(line.removeprefix(_MARK)))
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return _broken(f"the interpreter ended with code {done.returncode}: {last}")


def _from_json(facts: dict[str, Any]) -> Inspection:
    return Inspection(**{**facts, "gpu_names": tuple(facts.get("gpu_names", ()))})


def _broken(reason: str) -> Inspection:
    return Inspection(torch_error=reason, horovod_error=reason)
