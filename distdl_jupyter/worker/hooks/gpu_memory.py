"""Explains a GPU out-of-memory error with data from torch's message and ``/proc``.

With ``record_gpu_memory``, the lines of the user's code that allocated the memory are added, if torch has the private
functions for that (``torch.cuda.memory._record_memory_history`` and ``_snapshot``, only used here).

The data is a JSON object; unknown fields are missing, and sizes are in bytes::

    {"device", "requested", "total", "free", "this_process" (with CUDA itself), "allocated" (by tensors),
     "pools" (part of it in private pools, for example of CUDA graphs), "unused" (reserved, but not used by tensors),
     "recorded" (bool), "variable" (the environment variable that configures torch's allocator),
     "processes": [{"pid", "size", "kind", "name", "user", "job", "rank"}],
     "lines": [{"label", "line", "size" and "count" of the live blocks that the line allocated}]}

``kind`` is job (a rank of ``job``), own (another process of this user), other (a process of ``user``) or hidden (for
example outside the container).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.hooks.imports import HookFinder

#: Environment variable that ``record_gpu_memory`` sets.
RECORD_VARIABLE = "DISTDL_RECORD_GPU_MEMORY"
#: Maximum number of lines and of processes in the message, and the minimum share of the GPU's memory to be listed.
_MAX_LINES, _MAX_PROCESSES, _MIN_SHARE = 3, 3, 0.01
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"(?P<size>[\d.]+) (?P<unit>bytes|[KMGT]iB)"
_PROCESS = re.compile(rf"Process (?P<pid>\d+) has {_SIZE} memory in use")
#: Patterns for the sizes in torch's error message.
_PATTERNS = {
    "requested": rf"Tried to allocate {_SIZE}",
    "total": rf"has a total capacity of {_SIZE}",
    "free": rf"of which {_SIZE} is free",
    "this_process": rf"this process has {_SIZE} memory in use",
    "allocated": rf"{_SIZE} is allocated by PyTorch",
    "pools": rf"{_SIZE} allocated in private pools",
    "unused": rf"{_SIZE} is reserved by PyTorch but unallocated",
}
_ALLOCATOR_VARIABLE = re.compile(r"PYTORCH_(?:[A-Z]+_)?ALLOC_CONF")
_DEVICE = re.compile(r"\bGPU (\d+)[ ;]")
#: Pattern for the status codes of CUDA libraries for a failed allocation.
_STATUS = re.compile(r"CU[A-Z]+_STATUS_ALLOC_FAILED")
_DEVICE_WORDS = ("cuda", "hip ", "xpu", "mps ", "gpu", "device")

#: Returns the label and line of the first of these files and lines in the user's code, or ("", 0) if there is none.
FrameLocator = Callable[[Iterable[tuple[str, int]]], tuple[str, int]]


def install_hooks(finder: HookFinder) -> None:
    """Record which lines allocate memory after torch is imported, if the job enables this."""

    def start(torch: ModuleType) -> None:
        try:
            if torch.cuda.is_available():
                record = torch.cuda.memory._record_memory_history  # noqa: SLF001
                record(enabled="state", context="state", stacks="python")
        except Exception as error:  # noqa: BLE001  a private function may change
            text = f"GPU memory is not recorded: {error!s:.200}. Update torch."
            channel.notify("warning", text, "gpu-memory-not-recorded")

    if os.environ.get(RECORD_VARIABLE):
        finder.hook("torch", start)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is a GPU out-of-memory error."""
    text = str(error).lower()
    mentions_gpu_memory = "out of memory" in text and any(term in text for term in _DEVICE_WORDS)
    return isinstance(error, RuntimeError) and (mentions_gpu_memory or _STATUS.search(str(error)) is not None)


def collect(error: BaseException, locate: FrameLocator) -> dict[str, Any]:
    """Return the data about a GPU out-of-memory error. Call it before tensors are freed."""
    memory = parse(str(error))
    if os.environ.get(RECORD_VARIABLE):
        with contextlib.suppress(Exception):  # queries can fail on a full GPU
            snapshot = sys.modules["torch"].cuda.memory._snapshot()  # noqa: SLF001
            memory |= {"lines": list_lines(snapshot, memory.get("device"), locate), "recorded": True}
    memory["processes"] = identify_processes(memory)
    return {name: value for name, value in memory.items() if value != []}


def parse(text: str) -> dict[str, Any]:
    """Return the sizes and processes in torch's error message."""
    memory: dict[str, Any] = {
        key: _parse_size(match) for key, pattern in _PATTERNS.items() if (match := re.search(pattern, text)) is not None
    }
    if (device := _DEVICE.search(text)) is not None:
        memory["device"] = int(device[1])
    variable = _ALLOCATOR_VARIABLE.search(text)
    memory |= {"recorded": False, "variable": "PYTORCH_CUDA_ALLOC_CONF" if variable is None else variable[0]}
    memory["processes"] = [{"pid": int(row["pid"]), "size": _parse_size(row)} for row in _PROCESS.finditer(text)]
    return memory


def _parse_size(match: re.Match[str]) -> int:
    return round(float(match["size"]) * _UNITS[match["unit"]])


def list_lines(snapshot: Mapping[str, Any], device: int | None, locate: FrameLocator) -> list[dict[str, Any]]:
    """Return the lines of the user's code with the largest live blocks in torch's memory snapshot."""
    sizes: dict[tuple[str, int], list[int]] = {}
    for segment in snapshot.get("segments", ()):
        if device is not None and segment.get("device", device) != device:
            continue
        for block in segment.get("blocks", ()):
            # A block that was freed while another stream uses it has the state "active_pending_free".
            if str(block.get("state", "")).startswith("active") and block.get("frames"):
                positions = ((str(row.get("filename", "")), int(row.get("line", 0))) for row in block["frames"])
                sizes.setdefault(locate(positions), []).append(int(block["size"]))
    lines: list[dict[str, Any]] = [
        {"label": label, "line": line, "size": sum(blocks), "count": len(blocks)}
        for (label, line), blocks in sizes.items()
        if label
    ]
    return sorted(lines, key=lambda line: line["size"], reverse=True)[:_MAX_LINES]


def identify_processes(memory: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the other processes, largest first.

    In a container the driver reports process ids of the host, so a hidden process may be this one. Hidden processes are
    therefore left out, unless torch's message says which one is this process.
    """
    processes = memory["processes"]
    others = [process | _read_process(process["pid"]) for process in processes if process["pid"] != os.getpid()]
    is_listed = "this_process" in memory or len(others) < len(processes)
    others = [process for process in others if is_listed or process["kind"] != "hidden"]
    return sorted(others, key=lambda process: process["size"], reverse=True)


def _read_process(pid: int) -> dict[str, str]:
    """Return the kind, name and owner of a process from ``/proc``."""
    folder, details = Path("/proc", str(pid)), {"kind": "hidden", "name": "", "user": "", "job": "", "rank": ""}
    try:
        owner = folder.stat().st_uid
        command = [part.decode(errors="replace") for part in (folder / "cmdline").read_bytes().split(b"\0") if part]
    except OSError:
        return details
    # Arguments other than the script or module are omitted, because they may be secret.
    script = next((Path(argument).name for argument in command[1:] if argument.endswith(".py")), "")
    script = f"-m {command[2]}" if command[1:2] == ["-m"] and len(command) > 2 else script
    name = f"{Path(command[0]).name} {script}".rstrip() if command else ""
    details |= {"kind": "own", "name": name}
    if owner != os.getuid():
        details |= {"kind": "other", "user": str(owner)}
        with contextlib.suppress(KeyError):  # the owner has no name
            details["user"] = pwd.getpwuid(owner).pw_name
    with contextlib.suppress(OSError):  # the process belongs to another user, or has exited
        pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        if (job := variables.get("DISTDL_JOB_ID")) and owner == os.getuid():
            details |= {"kind": "job", "job": job, "rank": variables.get("DISTDL_RANK", "")}
    return details


def explain(memory: Mapping[str, Any], job: str = "") -> str:
    """Return a message with each cause and its fix. ``job`` is the short id of the job."""
    requested, total, free = memory.get("requested"), memory.get("total"), memory.get("free")
    parts = [] if requested is None else [f"{_format_size(requested)} requested"]
    if free is not None:
        parts.append(f"{_format_size(free)} free" + ("" if total is None else f" of {_format_size(total)}"))
    head = f"GPU memory is full{': ' if parts else ''}{', '.join(parts)}."
    if requested is not None and total is not None and requested > total:
        return f"{head} This allocation alone exceeds the GPU's memory. Use a smaller batch or tensor."
    min_size = _MIN_SHARE * (total or 0)
    processes = memory.get("processes", [])[:_MAX_PROCESSES]
    causes = [_format_process(process) for process in processes if process["size"] >= min_size]
    unused = memory.get("unused", 0) - memory.get("pools", 0)
    if unused > max(min_size, (requested or 0) - (free or 0)):
        causes.append(
            f"torch has reserved {_format_size(unused)} in unused blocks that are too small for this allocation. "
            f"Start the job with `--env {memory['variable']}=expandable_segments:True`."
        )
    remedy, lines = "Use a smaller batch, gradient checkpointing or torch.autocast.", memory.get("lines", [])
    if memory.get("allocated") or lines:
        usage = f"Tensors on this rank use {_format_size(memory.get('allocated', 0))}"
        usages = [
            f"{_format_size(line['size'])} from {line['label']}, line {line['line']} "
            f"({line['count']:,} block{'s' * (line['count'] != 1)})"
            for line in lines
        ]
        remedy = f"{usage}{', mainly ' * bool(usages)}{'; '.join(usages)}. {remedy}"
        if not memory["recorded"]:
            command = f"distdl rerun {job} --record-gpu-memory" if job else "--record-gpu-memory"
            remedy += f" To see which lines hold the memory, run `{command}`."
    return " ".join([head, *causes, remedy])


def _format_process(process: Mapping[str, Any]) -> str:
    pid, usage, user = process["pid"], f"holds {_format_size(process['size'])}", process["user"]
    if process["kind"] == "job":
        job_id = process["job"].rpartition("-")[2]
        rank = f"Rank {process['rank']}" if process["rank"] else "A process"
        if process["job"] == os.environ.get("DISTDL_JOB_ID"):
            return f"{rank} of this job (process {pid}) {usage} of the same GPU: use fewer processes per node."
        return f"{rank} of your job {job_id} {usage}: wait for that job, or stop it with `distdl stop {job_id}`."
    name = f"Process {pid}" + (f" ({process['name']})" if process["name"] else "")
    if process["kind"] == "own":
        return f"{name} of yours {usage}: stop it with `kill {pid}`, or restart its kernel if it is a notebook."
    if process["kind"] == "hidden":
        return f"{name}, which is not visible from here, {usage}: use another GPU, or check nvidia-smi."
    return f"{name} of user {user} {usage}: ask {user}, or use another GPU."


def _format_size(size: int) -> str:
    """Return a size in torch's format, such as 2.00 GiB or 512 bytes."""
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if size >= _UNITS[unit]), "")
    return f"{size / _UNITS[unit]:.2f} {unit}" if unit else f"{size} bytes"
