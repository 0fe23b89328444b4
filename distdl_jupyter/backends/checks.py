"""Checks that know a framework: GPU memory held by this kernel, CUDA without a GPU, Horovod's build, Keras 3.

A backend yields its own from ``Backend.checks``.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from distdl_jupyter.backends.usage import STRATEGY, TENSORFLOW, Package, may_share_gpus
from distdl_jupyter.core import machine
from distdl_jupyter.core.findings import Check, Finding
from distdl_jupyter.core.humanize import plural, size
from distdl_jupyter.core.source import Call, Code
from distdl_jupyter.core.spec import JobSpec

#: Below this a kernel only holds its CUDA context.
_WORTH_TELLING = 50_000_000
#: Names in code that finds out itself whether there is a GPU.
_ASKS_FOR_GPU = ("is_available", "device_count", "is_initialized", "accelerator")
#: What torch.cuda does without one.
_HARMLESS = ("manual_seed", "manual_seed_all", "empty_cache", "reset_peak_memory_stats")
_DEVICE = re.compile(r"cuda(:\d+)?")
#: Lines that import Horovod's wrappers of Keras.
_WRAPPERS = re.compile(r"\s*(?:import|from) horovod(?:\.tensorflow)?(?:\.keras\b| import .*\bkeras\b)")
#: Lets ``tf.keras`` be Keras 2, from the package tf_keras.
_LEGACY = "TF_USE_LEGACY_KERAS"


def kernel_memory(modules: Mapping[str, Any] = sys.modules) -> Check | None:
    """The kernel leaves the GPUs to the ranks; None when it has never used one (torch is not imported to find out)."""
    cuda = getattr(modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    findings = tuple(_held(cuda))
    return Check("GPU memory", "used by this kernel" if findings else "not used by this kernel", findings)


def _held(cuda: Any) -> Iterator[Finding]:
    for device in range(cuda.device_count()):
        held = cuda.memory_reserved(device)
        if held >= _WORTH_TELLING:
            yield Finding(
                "warning",
                "kernel-holds-gpu",
                f"This kernel uses {size(held)} on GPU {device}, which ranks cannot use.",
                "Delete the tensors and call torch.cuda.empty_cache(), or restart the kernel.",
            )


def cuda(code: Code, spec: JobSpec, devices: Sequence[int] | None = None) -> Check | None:
    """Code that uses CUDA finds a GPU on this machine; None for code that does not, or that checks for one.

    ``devices`` are the GPUs here, detected by default. Other machines have their own checks.
    """
    if spec.cluster != "local" or code.uses(*_ASKS_FOR_GPU):
        return None
    calls = [call for call in code.calls if _uses_cuda(call)]
    if not calls:
        return None
    visible = machine.gpu_numbers() if devices is None else devices
    if visible:
        return Check("CUDA", f"{plural(len(visible), 'GPU')} here")
    first = next((call for call in calls if call.label in code.own), calls[0])
    finding = Finding(
        "warning",
        "no-gpu",
        f"{ast.unparse(first.node)[:60]} in {first.place} needs a GPU, but this machine has none. Every rank would "
        "fail there.",
        'Use device = "cuda" if torch.cuda.is_available() else "cpu", or a compute_target with GPUs.',
    )
    return Check("CUDA", "no GPU on this machine", (finding,))


def nccl(
    code: Code, spec: JobSpec, devices: Sequence[int] | None = None, environment: Mapping[str, str] = os.environ
) -> Check | None:
    """Code that uses NCCL finds a GPU for each process of this machine; None for code that does not.

    NCCL refuses two ranks on one GPU, unless it is 2.32 or newer and NCCL_MULTI_RANK_GPU_ENABLE is set.
    """
    calls = [(call, _transport(call)) for call in code.calls if call.name == "torch.distributed.init_process_group"]
    first = next((call for call, transport in calls if transport == "nccl"), None)
    if spec.cluster != "local" or first is None or may_share_gpus(_variables(spec, environment)):
        return None
    count = len(machine.gpu_numbers() if devices is None else devices)
    processes = plural(spec.process_count, "process")
    summary = f"{plural(count, 'GPU')} for {processes}"
    if count >= spec.process_count:
        return Check("NCCL", summary)
    is_certain = all(transport == "nccl" for _, transport in calls)
    if not count and not is_certain:
        return None  # the code has another transport for machines without GPUs
    finding = Finding(
        "error" if is_certain else "warning",
        "nccl-call-needs-gpus",
        f"NCCL in {first.place} needs {plural(spec.process_count, 'GPU')} for {processes}, but this machine has "
        f"{plural(count, 'GPU') if count else 'none'}.",
        f'{f"Type -p {count}, or use Gloo" if count else "Use Gloo"}: init_process_group("gloo").',
    )
    return Check("NCCL", summary, (finding,))


def _transport(call: Call) -> str:
    """Return the transport that a call of ``init_process_group`` names, "" where it is not a plain text."""
    named = next((keyword.value for keyword in call.node.keywords if keyword.arg == "backend"), None)
    transport = named or next(iter(call.node.args), None)
    return str(transport.value).lower() if isinstance(transport, ast.Constant) else ""


def _uses_cuda(call: Call) -> bool:
    if call.name.startswith("torch.cuda.") or (call.last == "cuda" and isinstance(call.node.func, ast.Attribute)):
        return call.last not in _HARMLESS
    arguments = [*call.node.args, *(keyword.value for keyword in call.node.keywords)]
    texts = [
        argument.value
        for argument in arguments
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
    return call.last != "print" and any(_DEVICE.fullmatch(text) for text in texts)


def horovod_build(code: Code, spec: JobSpec, built_for: Collection[Package]) -> Check | None:
    """Horovod here was built for TensorFlow where the code uses it with that; None where it does not, or elsewhere."""
    calls = [call for call in code.calls if call.name.startswith(("horovod.tensorflow.", "horovod.keras."))]
    if spec.cluster != "local" or not calls or not built_for:
        return None
    if TENSORFLOW in built_for:
        return Check("Horovod's build", "with TensorFlow")
    finding = Finding(
        "error",
        "horovod-without-tensorflow",
        f"This Horovod was built without TensorFlow, so {ast.unparse(calls[0].node)[:60]} in {calls[0].place} fails on "
        "every rank.",
        'Run "distdl install horovod --framework torch,tensorflow", or use the backend tensorflow '
        "(MultiWorkerMirroredStrategy).",
    )
    return Check("Horovod's build", "without TensorFlow", (finding,))


def elastic(code: Code, spec: JobSpec) -> Check | None:
    """Code with ``hvd.elastic.run`` runs as an ordinary job; None for other code."""
    if spec.process_count == 1 or not (code.needs("horovod") and code.uses("elastic")):
        return None
    finding = Finding(
        "info",
        "not-elastic-job",
        "The code uses hvd.elastic, but all processes end when one fails: lost processes are not replaced.",
        "Save checkpoints in checkpoint_dir(), and set max_restarts and, for fewer nodes, min_node_count.",
    )
    return Check("Elastic", "all processes end when one fails", (finding,))


def keras(code: Code, spec: JobSpec, environment: Mapping[str, str] = os.environ) -> Check | None:
    """Keras trains with averaged gradients under Horovod; None when the two do not meet.

    Horovod's Keras wrappers override a method that Keras 3 no longer calls, so training goes on without any error and
    without averaging.
    """
    wrapped = any(call.name.startswith(("horovod.keras", "horovod.tensorflow.keras")) for call in code.calls)
    if spec.process_count == 1 or not wrapped:
        return None
    version = _keras_version()
    if version < 3 or _variables(spec, environment).get(_LEGACY) == "1":
        return Check("Keras", f"Keras {version}" if version else "not installed")
    finding = Finding(
        "error",
        "keras-3",
        f"Keras {version} with Horovod's Keras wrappers does not average gradients and raises no error.",
        _averaging(code),
    )
    return Check("Keras", "gradients would not be averaged", (finding,))


def _averaging(code: Code) -> str:
    """Return which line to change into which."""
    lines = [line.strip() for piece in code.texts for line in piece.text.splitlines() if _WRAPPERS.match(line)]
    name = re.search(r"\bas (\w+)", lines[0]) if lines else None
    return (
        f'Change "{lines[0] if lines else "import horovod.keras"}" to '
        f'"import distdl_jupyter.compat.horovod.keras as {name[1] if name else "hvd"}", which averages them.'
    )


def keras_fit(code: Code, spec: JobSpec, environment: Mapping[str, str] = os.environ) -> Check | None:
    """``Model.fit`` works under MultiWorkerMirroredStrategy; None when the two do not meet.

    Keras 3 gives the strategy's distributed batches to TensorFlow as they are, which ends with "Attempt to convert a
    value (PerReplica" (https://github.com/keras-team/keras/issues/20585); tf_keras knows them.
    """
    strategy, fit = code.called(*STRATEGY), code.called("fit")
    if spec.process_count == 1 or strategy is None or fit is None:
        return None
    version, legacy = _keras_version(), any(_LEGACY in piece.text for piece in code.texts)
    if version < 3 or legacy or _variables(spec, environment).get(_LEGACY) == "1" or code.needs("tf_keras"):
        return Check("Keras", "Keras 2 is supported" if version else "not installed")
    finding = Finding(
        "warning",
        "keras-3-fit",
        f"fit() in {fit.place} fails, because Keras {version} does not train under MultiWorkerMirroredStrategy.",
        f'Run "pip install tf-keras", and put os.environ["{_LEGACY}"] = "1" before the first import of TensorFlow.',
    )
    return Check("Keras", "does not support this strategy", (finding,))


def _variables(spec: JobSpec, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that the ranks will have."""
    return {**environment, **spec.environment_variables}


def _keras_version() -> int:
    try:
        return int(metadata.version("keras").partition(".")[0])
    except (metadata.PackageNotFoundError, ValueError):
        return 0
