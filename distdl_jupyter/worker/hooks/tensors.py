"""Helpers for the arrays, random numbers and threads of numerical libraries, without importing these libraries."""

from __future__ import annotations

import contextlib
import math
import sys
from typing import Any

#: Libraries whose ``get_shape`` and ``dtype`` are plain attributes.
ARRAY_LIBRARIES = ("torch", "numpy", "tensorflow", "keras", "jax", "jaxlib", "pandas", "scipy", "cupy", "polars")


def get_shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of an array or tensor of a known library, or None for another value."""
    libraries = {str(getattr(base, "__module__", "")).partition(".")[0] for base in type(value).__mro__}
    with contextlib.suppress(Exception):  # the library's attribute can raise anything
        return None if libraries.isdisjoint(ARRAY_LIBRARIES) else tuple(int(size) for size in value.shape)
    return None


def count_parameters(value: Any) -> int | None:
    """Return the number of parameters of a torch module, or None for another value."""
    module: Any = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", ())
    return sum(math.prod(parameter.shape) for parameter in value.parameters()) if isinstance(value, module) else None


def is_on_gpu(value: Any) -> bool:
    """Return whether a value is a CUDA tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is getattr(torch, "Tensor", None) and bool(value.is_cuda)


def copy_to_cpu(tensor: Any) -> Any:
    """Return a CPU copy of a GPU tensor."""
    return tensor.detach().cpu().requires_grad_(tensor.requires_grad)


def to_own_gpu(tensor: Any) -> Any:
    """Move a tensor that was on a GPU to the rank's GPU, if there is one. Called in a rank."""
    import torch

    is_available = torch.cuda.is_available()
    return tensor.detach().cuda().requires_grad_(tensor.requires_grad) if is_available else tensor


def record_cuda_event(device: Any) -> Any:
    """Return an event that completes when all work queued so far on the CUDA device's current stream is done."""
    cuda = sys.modules["torch"].cuda
    event = cuda.Event()
    event.record(cuda.current_stream(device))
    return event


def reseed() -> None:
    """Reseed the random number generators in a forked process."""
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()


def has_threads() -> bool:
    """Return whether a loaded library has a separate thread count (in addition to that for linear algebra)."""
    return "torch" in sys.modules


def set_threads(count: int) -> None:
    """Set the number of threads of that library."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)
