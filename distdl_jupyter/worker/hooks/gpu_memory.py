"""Explains a GPU out-of-memory error with data from torch's message and ``/proc``.

torch's message contains the sizes, and the other processes that the driver (NVML) lists. With ``record_gpu_memory``,
the lines of the user's code that allocated the memory are added. Only this module uses torch's private functions for
that (``torch.cuda.memory._record_memory_history`` and ``_snapshot``, torch 2.1 and later). Lines are omitted if torch
does not have these functions.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.hooks.imports import PostImport

#: Environment variable that ``record_gpu_memory`` sets.
VARIABLE = "DISTDL_RECORD_GPU_MEMORY"
#: Environment variable with host name and process id of the process that submitted the job, usually a kernel.
SUBMITTER = "DISTDL_SUBMITTER"
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
_VARIABLE = re.compile(r"PYTORCH_(?:[A-Z]+_)?ALLOC_CONF")
_DEVICE = re.compile(r"\bGPU (\d+)[ ;]")
#: Pattern for the status codes of CUDA libraries for a failed allocation.
_STATUS = re.compile(r"CU[A-Z]+_STATUS_ALLOC_FAILED")
_DEVICE_WORDS = ("cuda", "hip ", "xpu", "mps ", "gpu", "device")

#: Returns the label and line of the user's code in the frames of a memory block, ("", 0) if there is none.
Locate = Callable[[Sequence[Mapping[str, Any]]], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that uses memory of the GPU. ``size`` is in bytes.

    ``kind`` is submitter (the kernel that submitted the job), notebook (another kernel of this user), job (a rank of
    ``job``), own (another process of this user), other (of ``user``), or hidden (for example outside the container).
    """

    pid: int
    size: int
    kind: str = "hidden"
    name: str = ""
    user: str = ""
    job: str = ""
    rank: str = ""


@dataclass(frozen=True, slots=True)
class AllocatingLine:
    """A line of the user's code, with the number and the total size in bytes of the live blocks that it allocated."""

    label: str
    line: int
    size: int
    count: int


@dataclass(slots=True)
class GpuMemory:
    """The memory of one GPU in bytes when an allocation failed. None means unknown."""

    device: int | None = None
    requested: int | None = None
    total: int | None = None
    free: int | None = None
    #: Memory used by this process, including CUDA itself.
    this_process: int | None = None
    #: Memory of tensors, and the part of it in private pools, for example of CUDA graphs.
    allocated: int | None = None
    pools: int | None = None
    #: Memory that torch has reserved but that no tensor uses (free fragments).
    unused: int | None = None
    recorded: bool = False
    #: The environment variable that configures the allocator in this version of torch.
    variable: str = "PYTORCH_CUDA_ALLOC_CONF"
    processes: list[GpuProcess] = field(default_factory=list)
    lines: list[AllocatingLine] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the known fields as plain data."""
        return {name: value for name, value in asdict(self).items() if value not in (None, [])}


# recording ------------------------------------------------------------------------------------


def watch(finder: PostImport) -> None:
    """Record which lines allocate memory after torch is imported, if the job enables this."""
    if os.environ.get(VARIABLE):
        finder.after("torch", _start_recording)


def _start_recording(torch: ModuleType) -> None:
    cuda = torch.cuda
    if not cuda.is_available():
        return
    try:
        cuda.memory._record_memory_history(enabled="state", context="state", stacks="python")  # noqa: SLF001
    except Exception as error:  # noqa: BLE001  a private function may change
        text = f"GPU memory is not recorded: {error!s:.200}. Update torch."
        channel.note("warning", text, "gpu-memory-not-recorded")


def lines_from_snapshot(snapshot: Mapping[str, Any], device: int | None, locate: Locate) -> list[AllocatingLine]:
    """Return the lines of the user's code with the largest live blocks in torch's memory snapshot."""
    sizes: dict[tuple[str, int], list[int]] = {}
    for segment in snapshot.get("segments", ()):
        if device is not None and segment.get("device", device) != device:
            continue
        for block in segment.get("blocks", ()):
            # A block that was freed while another stream uses it has the state "active_pending_free".
            if str(block.get("state", "")).startswith("active") and block.get("frames"):
                sizes.setdefault(locate(block["frames"]), []).append(int(block["size"]))
    lines = [AllocatingLine(label, line, sum(blocks), len(blocks)) for (label, line), blocks in sizes.items() if label]
    return sorted(lines, key=lambda entry: entry.size, reverse=True)[:_MAX_LINES]


# sizes and lines ------------------------------------------------------------------------------


def is_full(error: BaseException) -> bool:
    """Return whether an error is a GPU out-of-memory error."""
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    full = "out of memory" in text and any(term in text for term in _DEVICE_WORDS)
    return full or _STATUS.search(str(error)) is not None


def parse(text: str) -> GpuMemory:
    """Return the sizes and processes in torch's error message."""
    sizes = {name: _bytes(match) for name, form in _PATTERNS.items() if (match := re.search(form, text)) is not None}
    memory = GpuMemory(**sizes)  # type: ignore[arg-type]
    if (device := _DEVICE.search(text)) is not None:
        memory.device = int(device[1])
    if (variable := _VARIABLE.search(text)) is not None:
        memory.variable = variable[0]
    memory.processes = [GpuProcess(int(match["pid"]), _bytes(match)) for match in _PROCESS.finditer(text)]
    return memory


def _bytes(match: re.Match[str]) -> int:
    return round(float(match["size"]) * _UNITS[match["unit"]])


def collect(error: BaseException, locate: Locate) -> GpuMemory:
    """Return the data about a GPU out-of-memory error. Call it before tensors are freed."""
    memory = parse(str(error))
    if os.environ.get(VARIABLE):
        with contextlib.suppress(Exception):  # queries can fail on a full GPU
            snapshot = sys.modules["torch"].cuda.memory._snapshot()  # noqa: SLF001
            memory.lines, memory.recorded = lines_from_snapshot(snapshot, memory.device, locate), True
    memory.processes = _list_processes(memory)
    return memory


# other processes -----------------------------------------------------------------------------


def _list_processes(memory: GpuMemory) -> list[GpuProcess]:
    """Return the other processes with their names, largest first.

    In a container the driver reports process ids of the host, so this process may be listed under an unknown id. It is
    assumed to be the smallest hidden process that uses at least the memory that torch has reserved.
    """
    others = [_identify_process(process) for process in memory.processes if process.pid != os.getpid()]
    is_listed = memory.this_process is not None or len(others) < len(memory.processes)
    reserved = (memory.allocated or 0) + (memory.unused or 0)
    hidden = [process for process in others if process.kind == "hidden" and process.size >= reserved]
    if hidden and not is_listed:
        others.remove(min(hidden, key=lambda process: process.size))
    return sorted(others, key=lambda process: process.size, reverse=True)


def _identify_process(process: GpuProcess) -> GpuProcess:
    """Return the process with its name and owner from ``/proc``."""
    folder, variables = Path("/proc", str(process.pid)), {}
    try:
        owner = folder.stat().st_uid
        command = [part.decode(errors="replace") for part in (folder / "cmdline").read_bytes().split(b"\0") if part]
    except OSError:
        return process
    if owner != os.getuid():
        user = str(owner)
        with contextlib.suppress(KeyError, ImportError):
            import pwd

            user = pwd.getpwuid(owner).pw_name
        return replace(process, kind="other", name=_command_name(command), user=user)
    with contextlib.suppress(OSError):
        pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    kind = "own"
    if job := variables.get("DISTDL_JOB_ID", ""):
        kind = "job"
    elif any("ipykernel" in argument for argument in command):
        is_submitter = os.environ.get(SUBMITTER) == f"{os.uname().nodename}:{process.pid}"
        kind = "submitter" if is_submitter else "notebook"
    rank = variables.get("DISTDL_RANK", "") if job else ""
    return replace(process, kind=kind, name=_command_name(command), job=job, rank=rank)


def _command_name(command: Sequence[str]) -> str:
    """Return the names of the program and its script. Other arguments are omitted because they may be secret."""
    if not command:
        return ""
    program = Path(command[0]).name
    script = next((argument for argument in command[1:] if argument.endswith(".py")), "")
    module = command[2] if command[1:2] == ["-m"] and len(command) > 2 else ""
    return " ".join(filter(None, (program, f"-m {module}" if module else Path(script).name)))


# the message ----------------------------------------------------------------------------------


def explain(memory: GpuMemory, job: str = "") -> str:
    """Return a message with each cause and its fix. ``job`` is the short id of the job."""
    parts = [f"{_size(memory.requested)} requested"] if memory.requested is not None else []
    if memory.free is not None:
        parts.append(f"{_size(memory.free)} free" + (f" of {_size(memory.total)}" if memory.total is not None else ""))
    head = f"The GPU memory is full{': ' if parts else ''}{', '.join(parts)}."
    if memory.requested is not None and memory.total is not None and memory.requested > memory.total:
        return f"{head} This allocation alone is larger than the GPU. Use a smaller batch or tensor."
    min_size = _MIN_SHARE * (memory.total or 0)
    others = [_format_process(process) for process in memory.processes[:_MAX_PROCESSES] if process.size >= min_size]
    unused = (memory.unused or 0) - (memory.pools or 0)
    if unused > max(min_size, (memory.requested or 0) - (memory.free or 0)):
        others.append(
            f"torch holds {_size(unused)} in pieces that no tensor uses and that are too small for this allocation. "
            f"Start the job with --env {memory.variable}=expandable_segments:True"
        )
    usage, hint = "", ""
    if memory.allocated or memory.lines:
        usage = f"Tensors on this rank use {_size(memory.allocated or 0)}"
        if memory.lines:
            usage += ", mainly " + "; ".join(
                f"{_size(entry.size)} from {entry.label}, line {entry.line} "
                f"({entry.count:,} block{'s' * (entry.count != 1)})"
                for entry in memory.lines
            )
        usage += ". "
        if not memory.recorded:
            command = f"distdl rerun {job} --record-gpu-memory" if job else "--record-gpu-memory"
            hint = f" To see which lines hold the memory, run: {command}"
    use_less = f"{usage}Use a smaller batch, gradient checkpointing or torch.autocast.{hint}"
    return " ".join([head, *others, use_less])


def _format_process(process: GpuProcess) -> str:
    usage = f"holds {_size(process.size)}"
    name = f"process {process.pid}" + (f" ({process.name})" if process.name else "")
    if process.kind == "job":
        job_id = process.job.rpartition("-")[2]
        rank = f"Rank {process.rank}" if process.rank else "A process"
        if process.job == os.environ.get("DISTDL_JOB_ID"):
            return f"{rank} of this job (process {process.pid}) {usage} of the same GPU: use fewer processes per node."
        return f"{rank} of your job {job_id} {usage}: wait for that job, or run: distdl stop {job_id}"
    return {
        "submitter": f"The kernel of your notebook (process {process.pid}) {usage}: restart the kernel.",
        "notebook": f"Another notebook kernel of yours (process {process.pid}) {usage}: shut it down in JupyterLab.",
        "own": f"Your {name} {usage}: end it, or run: kill {process.pid}",
        "other": f"{name.capitalize()} of user {process.user} {usage}: ask {process.user}, or use another GPU.",
        "hidden": f"{name.capitalize()}, which is not visible from here, {usage}: use another GPU, or see nvidia-smi.",
    }[process.kind]


def _size(size: int) -> str:
    """Return a size in torch's format, such as 2.00 GiB or 512 bytes."""
    for unit in ("GiB", "MiB", "KiB"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.2f} {unit}"
    return f"{size} bytes"
