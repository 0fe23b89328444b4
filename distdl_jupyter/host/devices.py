"""The accelerators and fast networks of this host, asked without importing a framework or touching a device."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_INFINIBAND = Path("/sys/class/infiniband")
#: Seconds for nvidia-smi; without its persistence mode it wakes the driver first, which takes seconds.
_PATIENCE = 8.0


def gpus() -> list[dict[str, Any]]:
    """Return ``index``, ``name``, ``memory`` (bytes), ``driver`` and ``uuid`` of each NVIDIA GPU, [] for none.

    Raises OSError or subprocess.SubprocessError when the driver does not answer.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    answer = subprocess.run(
        [program, "--query-gpu=index,name,memory.total,driver_version,uuid", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, timeout=_PATIENCE, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return [_gpu(line) for line in answer.stdout.splitlines() if line.count(",") >= 4]


def named(visible: str, present: Sequence[tuple[str, str]]) -> dict[int, str]:
    """Return the places among the devices ``present`` (index, UUID) that ``CUDA_VISIBLE_DEVICES`` names, with its word.

    A word is an index, or a UUID or its beginning, as CUDA reads it; one that is neither names nothing.
    """
    found: dict[int, str] = {}
    for word in filter(None, map(str.strip, visible.split(","))):
        for at, (index, uuid) in enumerate(present):
            if word == index if word.isdigit() else word.startswith(("GPU-", "MIG-")) and uuid.startswith(word):
                found.setdefault(at, word)
                break
    return found


def given(found: Sequence[dict[str, Any]], visible: str | None) -> list[dict[str, Any]]:
    """Return those of the GPUs that a scheduler has given, as ``CUDA_VISIBLE_DEVICES`` names them (None: all)."""
    if visible is None:
        return list(found)
    return [found[at] for at in named(visible, [(str(gpu["index"]), gpu["uuid"]) for gpu in found])]


def _gpu(line: str) -> dict[str, Any]:
    index, name, memory, driver, uuid = (word.strip() for word in line.split(",", 4))
    mebibytes = int(memory) if memory.isdigit() else 0
    return {"index": int(index), "name": name, "memory": mebibytes * 2**20, "driver": driver, "uuid": uuid}


def infiniband() -> list[str]:
    """Return the InfiniBand (or RoCE) devices that have a port in the state ACTIVE."""
    devices = sorted(_INFINIBAND.iterdir()) if _INFINIBAND.is_dir() else []
    return [device.name for device in devices if _is_active(device)]


def _is_active(device: Path) -> bool:
    return any("ACTIVE" in state.read_text() for state in device.glob("ports/*/state"))
