"""Arrays, random numbers and threads of numerical libraries. No library is imported here."""

from __future__ import annotations

import math
import sys
from typing import Any

#: Libraries whose ``shape`` and ``dtype`` are plain attributes.
ARRAYS = ("torch", "numpy", "tensorflow", "keras", "jax", "jaxlib", "pandas", "scipy", "cupy", "polars")


def shape(value: Any) -> tuple[int, ...] | None:
    """Return the sizes of an array or tensor of a known library, None for anything else."""
    if not any(str(getattr(base, "__module__", "")).split(".")[0] in ARRAYS for base in type(value).__mro__):
        return None
    try:
        return tuple(int(size) for size in value.shape)
    except Exception:  # noqa: BLE001  a library's own attribute
        return None


def parameters(value: Any) -> int | None:
    """Return how many parameters a torch module has, None for anything else."""
    module = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    if module is None or not isinstance(value, module):
        return None
    return sum(int(math.prod(parameter.shape)) for parameter in value.parameters())


def may_be_on_gpu(kind: type) -> bool:
    """Return whether objects of a type can be on a GPU, so that each has to be checked."""
    return str(kind.__module__).partition(".")[0] == "torch"


def is_on_gpu(value: Any) -> bool:
    """Return whether a value is a CUDA tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is getattr(torch, "Tensor", None) and bool(value.is_cuda)


def without_gpu(tensor: Any) -> Any:
    """Return a copy in memory of a tensor on a GPU."""
    return tensor.detach().cpu().requires_grad_(tensor.requires_grad)


def to_own_gpu(tensor: Any) -> Any:
    """Run in a rank: move a tensor that was on a GPU to the rank's own one, when it has any."""
    import torch

    if not torch.cuda.is_available():
        return tensor
    return tensor.detach().cuda().requires_grad_(tensor.requires_grad)


def cuda_event(device: Any) -> Any:
    """Return an event that has come when the work queued on a CUDA device by now is done."""
    cuda = sys.modules["torch"].cuda
    event = cuda.Event()
    event.record(cuda.current_stream(device))
    return event


def reseed() -> None:
    """Give a forked process random numbers of its own."""
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()


def has_threads() -> bool:
    """Return whether a library is loaded that has its own number of threads (besides those for linear algebra)."""
    return "torch" in sys.modules


def set_threads(count: int) -> None:
    """Let that library use ``count`` threads."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)
