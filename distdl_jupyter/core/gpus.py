"""Which NVIDIA GPUs this process may use (``node.devices``), asked once."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence

from distdl_jupyter.node import devices as node_devices
from distdl_jupyter.node.devices import Gpu


@functools.cache
def devices() -> tuple[Gpu, ...]:
    """Return the GPUs that ranks may use, limited by CUDA_VISIBLE_DEVICES; none where the driver does not answer."""
    try:
        return tuple(node_devices.visible())
    except (OSError, subprocess.SubprocessError):
        return ()


def visible() -> list[int]:
    """Return their numbers."""
    return [gpu.number for gpu in devices()]


def name(found: Sequence[Gpu] | None = None) -> str:
    """Return the model of the first of the GPUs, ``devices()`` or those ``found``; "" without any."""
    return next((gpu.name for gpu in (devices() if found is None else found)), "")
