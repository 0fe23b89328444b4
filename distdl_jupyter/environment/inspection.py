"""What fresh interpreters of this environment say about torch, TensorFlow and Horovod.

Importing is the only proof that a compiled extension fits: Horovod's own ``horovodrun --check-build`` can claim a
framework that was not built. The imports happen in subprocesses, so this process stays free of torch; TensorFlow has
one of its own, which runs where Horovod was built for it.
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
import json, pathlib, sys
facts = {{}}
try:
    import torch
    facts["torch_version"] = str(torch.__version__)
    facts["cxx11abi"] = bool(torch.compiled_with_cxx11_abi())
    facts["torch_cuda"] = torch.version.cuda or ""
    gpus = range(torch.cuda.device_count())
    facts["gpu_names"] = [torch.cuda.get_device_name(i) for i in gpus]
    facts["gpu_capabilities"] = sorted(set("%d%d" % torch.cuda.get_device_capability(i) for i in gpus))
except Exception as error:
    facts["torch_error"] = f"{{type(error).__name__}}: {{error}}"
try:
    import horovod
    facts["horovod_version"] = str(horovod.__version__)
    facts["built_for_tensorflow"] = any(pathlib.Path(horovod.__file__).parent.glob("tensorflow/mpi_lib*"))
    import horovod.torch as hvd
    facts.update(gloo=bool(hvd.gloo_built()), mpi=bool(hvd.mpi_built()), nccl=bool(hvd.nccl_built()))
except Exception as error:
    facts["horovod_error"] = f"{{type(error).__name__}}: {{error}}"
sys.stdout.write("\\n{_MARK}" + json.dumps(facts) + "\\n")
"""


_TENSORFLOW_SCRIPT = f"""
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
facts = {{}}
try:
    import tensorflow
    facts["tensorflow_version"] = str(tensorflow.__version__)
    import horovod.tensorflow as hvd
    hvd.gloo_built()
except Exception as error:
    facts["tensorflow_error"] = f"{{type(error).__name__}}: {{error}}"
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
    gpu_capabilities: tuple[str, ...] = ()
    """Compute capabilities of the GPUs, each once, such as ``("80", "90")``."""
    torch_error: str = ""
    horovod_version: str = ""
    gloo: bool = False
    mpi: bool = False
    nccl: bool = False
    horovod_error: str = ""
    tensorflow: bool = False
    """Whether Horovod was built for TensorFlow."""
    tensorflow_version: str = ""
    """The version of TensorFlow that Horovod works with, "" where it was not built for it."""
    tensorflow_error: str = ""
    """Why ``import horovod.tensorflow`` fails where it was built."""

    @property
    def horovod_works(self) -> bool:
        """Whether ``import horovod.torch`` succeeded."""
        return bool(self.horovod_version) and not self.horovod_error

    @property
    def tensorflow_works(self) -> bool:
        """Whether ``import horovod.tensorflow`` succeeded."""
        return self.tensorflow and not self.tensorflow_error

    @property
    def frameworks(self) -> tuple[str, ...]:
        """What Horovod works with, for people."""
        return ("torch", "TensorFlow") if self.tensorflow_works else ("torch",)

    @property
    def controllers(self) -> tuple[str, ...]:
        """The controllers compiled in: ``gloo``, ``mpi``."""
        return tuple(name for name, built in (("gloo", self.gloo), ("mpi", self.mpi)) if built)


def inspect_environment(python: str = sys.executable, timeout_seconds: float = 180.0) -> Inspection:
    """Import torch and horovod.torch in a new process of ``python`` and return what they say.

    Takes 2 to 10 seconds, nearly all of it torch's import, and about as long again where Horovod was built for
    TensorFlow. Never raises: a crash or a time-out is an error field.
    """
    try:
        facts = _said(python, _SCRIPT, timeout_seconds)
    except _Silent as error:
        return Inspection(torch_error=str(error), horovod_error=str(error))
    if facts.pop("built_for_tensorflow", False):
        facts["tensorflow"] = True
        try:
            facts |= _said(python, _TENSORFLOW_SCRIPT, timeout_seconds)
        except _Silent as error:
            facts["tensorflow_error"] = str(error)
    facts |= {name: tuple(facts.get(name, ())) for name in ("gpu_names", "gpu_capabilities")}
    return Inspection(**facts)


#: How the error of an import begins that was given up.
SLOW = "the import took longer than"


class _Silent(Exception):
    """An interpreter that has not said what it was asked; the message says why."""


def _said(python: str, script: str, timeout_seconds: float) -> dict[str, Any]:
    """Return what a script tells. Raises _Silent."""
    try:
        # -P keeps a torch.py or horovod/ in the current directory from standing in for the installed one.
        done = subprocess.run(
            [python, "-P", "-c", script], capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise _Silent(f"{SLOW} {timeout_seconds:.0f} s") from None
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            found: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return found
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    raise _Silent(f"the interpreter exited with code {done.returncode}: {last}")
