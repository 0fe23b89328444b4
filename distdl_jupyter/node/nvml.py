"""How busy the NVIDIA GPUs of this host are, their memory and power, asked of the driver by NVML (nvidia-ml-py).

Only GPUs that ranks were given count. A part of a divided GPU (MIG) has memory, and no number for how busy it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from distdl_jupyter.node import devices

_MISSING = "GPU utilization cannot be read because nvidia-ml-py is not installed. Run: pip install nvidia-ml-py"


class Gpus:
    """The GPUs of ranks. ``visible`` is what each has as CUDA_VISIBLE_DEVICES; it raises nothing."""

    def __init__(self, visible: Mapping[int, str]) -> None:
        self._found: dict[int, tuple[Any, list[int]]] = {}
        self._why = ""
        self._nvml: Any = None
        if devices.driver():
            self._open(visible)

    def _open(self, visible: Mapping[int, str]) -> None:
        try:
            import pynvml
        except ImportError:
            self._why = _MISSING
            return
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            handles = self._handles()
        except Exception as error:  # noqa: BLE001  a driver that does not answer must not end the ranks
            self._why = f"GPU utilization cannot be read: {error}."
            return
        present = [
            (str(number) if not uuid.startswith("MIG") else "", uuid) for number, (uuid, _) in enumerate(handles)
        ]
        for rank, words in visible.items():
            for at in devices.named(words, present):
                self._found.setdefault(at, (handles[at][1], []))[1].append(rank)

    def _handles(self) -> list[tuple[str, Any]]:
        """Return UUID and handle of each GPU, then of each part of a divided one."""
        nvml, whole, parts = self._nvml, [], []
        for number in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(number)
            whole.append((_text(nvml.nvmlDeviceGetUUID(gpu)), gpu))
            with contextlib.suppress(nvml.NVMLError):
                for at in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
                    with contextlib.suppress(nvml.NVMLError):  # no part has this number
                        part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, at)
                        parts.append((_text(nvml.nvmlDeviceGetUUID(part)), part))
        return whole + parts

    def about(self) -> tuple[list[dict[str, Any]], str]:
        """Return each GPU's number, name, memory (bytes) and ranks; and why there are none although a driver is."""
        return [
            {
                "number": number,
                "name": _text(self._ask("nvmlDeviceGetName", handle) or ""),
                "memory": getattr(self._ask("nvmlDeviceGetMemoryInfo", handle), "total", None),
                "ranks": ranks,
            }
            for number, (handle, ranks) in self._found.items()
        ], self._why

    def sample(self) -> dict[str, list[float | None]]:
        """Return {number: [percent of the time in which it was busy, bytes used, watts]}; None: it does not say."""
        found: dict[str, list[float | None]] = {}
        for number, (handle, _) in self._found.items():
            power = self._ask("nvmlDeviceGetPowerUsage", handle)  # milliwatts
            found[str(number)] = [
                getattr(self._ask("nvmlDeviceGetUtilizationRates", handle), "gpu", None),
                getattr(self._ask("nvmlDeviceGetMemoryInfo", handle), "used", None),
                None if power is None else power / 1000,
            ]
        return found

    def _ask(self, function: str, handle: Any) -> Any:
        try:
            return getattr(self._nvml, function)(handle)
        except self._nvml.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    """Return a text; early versions of the library give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
