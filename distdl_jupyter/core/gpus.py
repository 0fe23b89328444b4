"""The NVIDIA GPUs that this process may use (``node.devices``), detected once."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence

from distdl_jupyter.node import devices as node_devices
from distdl_jupyter.node.devices import Gpu


@functools.cache
def devices() -> tuple[Gpu, ...]:
    """Return the GPUs that ranks may use, limited by CUDA_VISIBLE_DEVICES; none if the driver does not respond."""
    try:
        return tuple(node_devices.visible())
    except (OSError, subprocess.SubprocessError):
        return ()


def visible() -> list[int]:
    """Return their numbers."""
    return [gpu.number for gpu in devices()]


def name(gpus: Sequence[Gpu] | None = None) -> str:
    """Return the model of the first of ``gpus`` (default: ``devices()``), or "" if there are none."""
    return next((gpu.name for gpu in (devices() if gpus is None else gpus)), "")
