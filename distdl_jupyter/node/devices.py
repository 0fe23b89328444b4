"""List the accelerators and fast networks of this host, read the utilization of NVIDIA GPUs, and report free memory.

No framework is imported and no device is opened. A partitioned GPU (MIG) counts as its instances, each of which serves
one process. NVML is read through nvidia-ml-py; it reports memory for an instance, but not its utilization.

The bytes of memory that this user has left are read anew in every call; None means unlimited or unknown. The kernel
counts out-of-memory kills for each control group and for the whole host (cgroups(7): memory.events of version 2,
memory.oom_control of version 1, and oom_kill in /proc/vmstat); it does not name processes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_INFINIBAND = Path("/sys/class/infiniband")
#: The version of the kernel's NVIDIA driver (sysfs, ABI/stable/sysfs-module: MODULE_VERSION).
_DRIVER_VERSION_FILE = Path("/sys/module/nvidia/version")
#: Timeout in seconds for nvidia-smi, which takes seconds to load the driver without persistence mode.
_TIMEOUT_SECONDS = 8.0
#: Seconds for which the output of nvidia-smi is cached.
_CACHE_SECONDS = 60.0
#: Lines of ``nvidia-smi -L``: a GPU, and a MIG instance of the GPU above.
_GPU_LINE = re.compile(r"GPU (\d+): (.*) \(UUID: ([^)]+)\)")
_MIG_LINE = re.compile(r"\s+(MIG \S+)\s+Device\s+\d+: \(UUID: ([^)]+)\)")


class Gpu(NamedTuple):
    """One GPU or MIG instance. ``identifier`` is its name in ``CUDA_VISIBLE_DEVICES``, ``uuid`` is unique."""

    number: int
    identifier: str
    uuid: str
    name: str


def list_visible() -> list[Gpu]:
    """Return the GPUs that ranks may use here, limited by CUDA_VISIBLE_DEVICES. Raises the errors of ``list_gpus``."""
    gpus, variable = list_gpus(int(time.monotonic() // _CACHE_SECONDS)), os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is None:
        return list(gpus)
    matches = match_identifiers(variable, [(gpu.identifier, gpu.uuid) for gpu in gpus])
    return [gpus[index]._replace(identifier=identifier) for index, identifier in matches.items()]


@functools.lru_cache(maxsize=1)
def list_gpus(_period: int) -> list[Gpu]:
    """Return the NVIDIA GPUs of this host. The result is cached for each period, because nvidia-smi is slow.

    MIG instances are numbered after whole GPUs, or from 0 if every GPU is partitioned. Raises OSError or
    subprocess.SubprocessError if the driver does not respond.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    result = subprocess.run(
        [program, "-L"], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True, stdin=subprocess.DEVNULL
    )
    gpus: list[tuple[Gpu, list[Gpu]]] = []
    for line in result.stdout.splitlines():
        if match := _GPU_LINE.fullmatch(line.rstrip()):
            gpus.append((Gpu(int(match[1]), match[1], match[3], match[2]), []))
        elif (match := _MIG_LINE.fullmatch(line.rstrip())) and gpus:
            parent, parts = gpus[-1]
            parts.append(Gpu(0, match[2], match[2], f"{parent.name} ({match[1]})"))
    whole_gpus = [gpu for gpu, parts in gpus if not parts]
    first = max((gpu.number for gpu in whole_gpus), default=-1) + 1
    instances = [part for _, parts in gpus for part in parts]
    return whole_gpus + [part._replace(number=number) for number, part in enumerate(instances, first)]


def read_driver_version() -> str:
    """Return the version of the NVIDIA driver, or "" if it is missing or unknown."""
    try:
        return _DRIVER_VERSION_FILE.read_text().strip()
    except OSError:
        return ""


def match_identifiers(visible: str, devices: Sequence[tuple[str, str]]) -> dict[int, str]:
    """Return {position in ``devices``: identifier} for the devices that ``CUDA_VISIBLE_DEVICES`` names.

    ``devices`` has (index, UUID) pairs. An identifier is an index or a prefix of a UUID, as in CUDA. Ignores others.
    """
    matches: dict[int, str] = {}
    for identifier in filter(None, map(str.strip, visible.split(","))):
        for position, (index, uuid) in enumerate(devices):
            is_uuid = identifier.startswith(("GPU-", "MIG-")) and uuid.startswith(identifier)
            if identifier == index if identifier.isdigit() else is_uuid:
                matches.setdefault(position, identifier)
                break
    return matches


def build_cuda_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's GPU variables with this host's CUDA identifiers instead of numbers, or {} if they are unknown."""
    if not variables.get("CUDA_VISIBLE_DEVICES"):
        return {}
    try:
        identifiers = {str(gpu.number): gpu.identifier for gpu in list_visible()}
    except (OSError, subprocess.SubprocessError):
        return {}
    return {
        name: ",".join(identifiers.get(number, number) for number in variables[name].split(","))
        for name in ("CUDA_VISIBLE_DEVICES", "DISTDL_GPU")
        if variables.get(name)
    }


def list_infiniband() -> list[str]:
    """Return the InfiniBand (or RoCE) devices that have a port in the state ACTIVE."""
    states = _INFINIBAND.glob("*/ports/*/state")
    return sorted({state.parents[2].name for state in states if "ACTIVE" in state.read_text()})


class GpuSampler:
    """Samples the GPUs of ranks through NVML. ``visible`` has the CUDA_VISIBLE_DEVICES of each rank. Never raises."""

    def __init__(self, visible: Mapping[int, str]) -> None:
        #: The handle and the ranks of each GPU, by number.
        self._gpus: dict[int, tuple[Any, list[int]]] = {}
        self._problem = ""
        self._nvml: Any = None
        if not read_driver_version():
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            handles = self._list_handles()
        except ImportError:
            self._problem = "GPU utilization cannot be read without nvidia-ml-py. Run: pip install nvidia-ml-py"
        except Exception as error:  # noqa: BLE001  a driver that does not respond must not stop the ranks
            self._problem = f"GPU utilization cannot be read: {error}."
        else:
            for rank, identifiers in visible.items():
                for index in match_identifiers(identifiers, [(number, uuid) for number, uuid, _handle in handles]):
                    self._gpus.setdefault(index, (handles[index][2], []))[1].append(rank)

    def _list_handles(self) -> list[tuple[str, str, Any]]:
        """Return the number (as text), UUID and handle of each GPU, then of each MIG instance, which has no number."""
        nvml, gpus, instances = self._nvml, [], []
        for number in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(number)
            gpus.append((str(number), nvml.nvmlDeviceGetUUID(gpu), gpu))
            for index in range(self._query("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0):
                with contextlib.suppress(nvml.NVMLError):  # no instance with this number
                    instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
                    instances.append(("", nvml.nvmlDeviceGetUUID(instance), instance))
        return gpus + instances

    def describe(self) -> tuple[list[dict[str, Any]], str]:
        """Return number, name, memory (bytes) and ranks of each GPU. The text is the reason if they cannot be read."""
        return [
            {
                "number": number,
                "name": self._query("nvmlDeviceGetName", handle) or "",
                "memory": getattr(self._query("nvmlDeviceGetMemoryInfo", handle), "total", None),
                "ranks": ranks,
            }
            for number, (handle, ranks) in self._gpus.items()
        ], self._problem

    def sample(self) -> dict[str, list[float | None]]:
        """Return {number: [utilization in percent, bytes used, watts]}. Unknown values are None."""
        usage: dict[str, list[float | None]] = {}
        for number, (handle, _) in self._gpus.items():
            power = self._query("nvmlDeviceGetPowerUsage", handle)  # milliwatts
            usage[str(number)] = [
                getattr(self._query("nvmlDeviceGetUtilizationRates", handle), "gpu", None),
                getattr(self._query("nvmlDeviceGetMemoryInfo", handle), "used", None),
                None if power is None else power / 1000,
            ]
        return usage

    def _query(self, function: str, handle: Any) -> Any:
        try:
            return getattr(self._nvml, function)(handle)
        except self._nvml.NVMLError:
            return None


_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")
#: Version 1 of control groups reports "no limit" as the largest multiple of a page.
_UNLIMITED = 1 << 60


def read_free_memory() -> int | None:
    """Return the available bytes of memory, including reclaimable caches."""
    amounts = [read_meminfo("MemAvailable")]
    for group in _list_groups("memory"):
        for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            if (remaining := _get_remaining(group / limit, group / usage)) is not None:
                # A group counts cached files as used but reclaims them first.
                cached = _read_number(group / "memory.stat", "inactive_file", "total_inactive_file")
                amounts.append(remaining + (cached or 0))
    return _find_minimum(amounts)


def read_memory_limit() -> int | None:
    """Return the memory limit in bytes of this process: that of the host or of a control group.

    ``read_memory_limit() - read_free_memory()`` is in use.
    """
    amounts = [read_meminfo("MemTotal")]
    for group in _list_groups("memory"):
        amounts += [_get_remaining(group / name) for name in ("memory.max", "memory.limit_in_bytes")]
    return _find_minimum(amounts)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_meminfo(name: str) -> int | None:
    """Return the bytes that the kernel reports under this name, such as "MemTotal"."""
    value = _read_number(_PROC / "meminfo", name)
    return None if value is None else value * 1024  # proc_meminfo(5): "kB" is 1024 bytes


def _read_number(path: Path, *names: str) -> int | None:
    """Return the number after the first of ``names`` in a file of lines "name number" or "name: number kB"."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text(encoding="ascii").splitlines():
            name, value = line.split()[:2]
            if name.rstrip(":") in names:
                return int(value)
    return None


def _list_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups with ``controller``, the innermost first.

    A container may see its own group as the root group (cgroup_namespaces(7)).
    """
    with contextlib.suppress(OSError):
        for line in (_PROC / "self" / "cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = _GROUPS / controller if controllers else _GROUPS
            group = root / name.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder == root or root in folder.parents)


def _get_remaining(limit_path: Path, usage_path: Path | None = None) -> int | None:
    """Return the limit of a control group minus its usage, or None if it has no limit."""
    with contextlib.suppress(OSError, ValueError):  # "max" is not a number
        if (limit := int(limit_path.read_text())) < _UNLIMITED:
            return max(0, limit - (int(usage_path.read_text()) if usage_path else 0))
    return None


def _find_minimum(amounts: Iterable[int | None]) -> int | None:
    return min((amount for amount in amounts if amount is not None), default=None)


# out-of-memory kills -------------------------------------------------------------------------------


def count_oom_kills() -> dict[str, int]:
    """Return the readable counters of out-of-memory kills: {source: count}, the narrowest scope first."""
    names = ("memory.events", "memory.oom_control")
    sources = [("The control group", group / name) for group in _list_groups("memory") for name in names]
    sources += [("The host's control group", _GROUPS / "memory.events"), ("The kernel", _PROC / "vmstat")]
    counts: dict[str, int] = {}
    for source, path in sources:
        if (count := _read_number(path, "oom_kill")) is not None:
            counts.setdefault(source, count)
    return counts


def describe_oom_kills(old_counts: dict[str, int]) -> str:
    """Return one sentence if a counter is above its value in ``old_counts`` or memory is nearly full, else ""."""
    for source, count in count_oom_kills().items():
        if (kill_count := count - old_counts.get(source, count)) > 0:
            subject = f"{kill_count} process{'es' if kill_count > 1 else ''}"
            return f"{source} reports {subject} killed for lack of memory since the start."
    available, total = read_meminfo("MemAvailable"), read_meminfo("MemTotal")
    if available is not None and total is not None and available < 0.02 * total:
        return f"Only {available // 2**20} MB of {total // 2**20} MB of memory is free."
    return ""
