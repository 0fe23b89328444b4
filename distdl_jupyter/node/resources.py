"""Resource usage of the ranks and this host, sampled once a second from /proc, control groups and NVML.

A sample is plain data, sent in the agent's message ``resources``. Numbers that this system does not report are None:
outside Linux, only those of psutil are available.

===================== ========================================================================================
``t``                 epoch seconds
``node``              cpu (percent of one core, of all processes of the host), memory and limit (bytes; the
                      lowest limit of the machine and this process's control groups), disk_read, disk_written,
                      received, sent (bytes a second; without the loopback interface)
``ranks``             {rank: [cpu, memory]}: percent of one core and resident bytes of its process tree
``gpus``              {number: [busy, memory, power]}: percent, bytes, watts (see ``devices.GpuSampler``)
``about``             in the first sample: host, cores, gpus: [{number, name, memory, ranks}], and no_gpus, the
                      reason why GPUs cannot be sampled
===================== ========================================================================================
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from distdl_jupyter.node import devices, processes

#: Seconds between two samples.
SAMPLE_SECONDS = 1.0
_PROC = Path("/proc")
_BLOCK = Path("/sys/block")
_NET = Path("/sys/class/net")
_INFINIBAND = Path("/sys/class/infiniband")
#: Maximum fraction of the time to spend on reading the process table.
_MAX_TIME_FRACTION = 0.002
#: Bytes of a sector in proc_diskstats(5), and of a word in the counters of InfiniBand ports.
_SECTOR_BYTES, _WORD_BYTES = 512, 4
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _Usage(NamedTuple):
    """One process: start time (clock ticks since boot), CPU seconds, resident bytes."""

    started: int
    cpu: float
    memory: int


class Sampler:
    """Samples the resource usage of one job's ranks and this host. The first sample has no rates."""

    def __init__(self) -> None:
        #: The time of the next sample, on the clock ``time.monotonic``.
        self.due_at = self._sampled_at = time.monotonic()
        self._trees: dict[int, set[int]] = {}
        self._trees_due_at = 0.0
        self._usage: dict[int, _Usage] = {}
        #: Resident bytes of each child process that are already counted for its parent.
        self._shared_bytes: dict[int, int] = {}
        self._counters: dict[str, float] = {}
        self._gpus: devices.GpuSampler | None = None

    def sample(self, pids: Mapping[int, int], launchers: Collection[int], gpus: Mapping[int, str]) -> dict[str, Any]:
        """Return a sample.

        ``pids`` is {rank: pid}, ``launchers`` are the pids of processes whose descendants are ranks, and ``gpus``
        has the CUDA_VISIBLE_DEVICES of each rank.
        """
        now = time.monotonic()
        seconds, self._sampled_at = now - self._sampled_at, now
        self.due_at = max(self.due_at + SAMPLE_SECONDS, now + SAMPLE_SECONDS / 2)
        if now >= self._trees_due_at or not pids.keys() <= self._trees.keys():
            self._find_trees(pids, launchers)
        previous, self._usage = self._usage, {}
        ranks = {str(rank): self._sample_rank(rank, previous, seconds) for rank in self._trees}
        sample: dict[str, Any] = {
            "t": time.time(),
            "node": self._sample_node(seconds),
            "ranks": {rank: numbers for rank, numbers in ranks.items() if numbers is not None},
        }
        if self._gpus is None:
            self._gpus = devices.GpuSampler(gpus)
            gpu_list, gpu_problem = self._gpus.describe()
            machine = {"host": socket.gethostname(), "cores": devices.cores()}
            sample["about"] = {**machine, "gpus": gpu_list, "no_gpus": gpu_problem}
        return {**sample, "gpus": self._gpus.sample()}

    def _find_trees(self, pids: Mapping[int, int], launchers: Collection[int]) -> None:
        """Update the process tree of each rank, as often as the time budget allows."""
        start = time.monotonic()
        running = processes.read_table()
        roots = dict(pids)
        if launchers:
            for pid in processes.find_workers(processes.find_descendants(launchers, running)):
                variables = processes.read_environment(pid)
                names = (b"DISTDL_RANK", b"OMPI_COMM_WORLD_RANK", b"HOROVOD_RANK", b"RANK")
                ranks = [variables[name] for name in names if variables.get(name, b"").isdigit()]
                if ranks:  # otherwise the rank is not known yet
                    roots.setdefault(int(ranks[0]), pid)
        self._trees = {rank: processes.find_descendants([pid], running) for rank, pid in roots.items()}
        children = {pid for rank, tree in self._trees.items() for pid in tree if pid != roots[rank]}
        self._shared_bytes = {pid: _read_shared(pid) for pid in children}
        elapsed = time.monotonic() - start
        self._trees_due_at = start + max(SAMPLE_SECONDS / 2, elapsed / _MAX_TIME_FRACTION)

    def _sample_rank(self, rank: int, previous: Mapping[int, _Usage], seconds: float) -> list[float | None] | None:
        """Return CPU use since the last sample (% of a core) and resident bytes, or None if all processes exited."""
        tree = {pid: usage for pid in self._trees[rank] if (usage := _read_usage(pid)) is not None}
        self._usage |= tree
        if not tree:
            return None
        measured = [pid for pid, usage in tree.items() if pid in previous and previous[pid].started == usage.started]
        cpu = sum(tree[pid].cpu - previous[pid].cpu for pid in measured)
        memory = sum(max(0, usage.memory - self._shared_bytes.get(pid, 0)) for pid, usage in tree.items())
        return [round(100 * cpu / seconds, 1) if measured and seconds > 0 else None, memory]

    def _sample_node(self, seconds: float) -> dict[str, float | None]:
        limit, available = devices.read_memory_limit(), devices.read_free_memory()
        previous, self._counters = self._counters, {**_read_cpu(), **_read_disk(), **_read_network()}
        rates: dict[str, float | None] = dict.fromkeys(("cpu", "disk_read", "disk_written", "received", "sent"))
        for name in self._counters.keys() & previous.keys():
            rate = max(0.0, self._counters[name] - previous[name]) / max(seconds, 1e-9)
            rates[name] = round(100 * rate, 1) if name == "cpu" else round(rate)
        memory = None if limit is None or available is None else max(0, limit - available)
        return {"cpu": rates.pop("cpu"), "memory": memory, "limit": limit, **rates}


def _read_usage(pid: int) -> _Usage | None:
    """Return the usage of a process (proc_pid_stat(5)), or None if it is exiting or has exited."""
    if _PROC.is_dir():
        fields = processes.read_stat(pid)
        # The list begins with field 3. Fields 14 and 15 are user and system time, 22 is the start time, and 24 the
        # number of resident pages, which is 0 in an exiting process.
        if not fields or fields[0] in (b"Z", b"X") or fields[21] == b"0":
            return None
        cpu_seconds = (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
        return _Usage(int(fields[19]), cpu_seconds, int(fields[21]) * _PAGE_BYTES)
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        times = process.cpu_times()
        return _Usage(int(process.create_time()), times.user + times.system, process.memory_info().rss)
    return None


def _read_shared(pid: int) -> int:
    """Return the resident bytes that a process, such as a data loader, shares with others (proc_pid_smaps(5))."""
    lines = processes.read_file(pid, "smaps_rollup").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith((b"Shared_Clean:", b"Shared_Dirty:")))


# counters of the node -------------------------------------------------------------------------


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _read_cpu() -> dict[str, float]:
    """Return the busy time of all cores of the host in seconds (proc_stat(5))."""
    for line in _read_lines(_PROC / "stat")[:1]:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, line.split()[1:9])
        return {"cpu": (user + nice + system + irq + softirq + steal) / _TICKS_PER_SECOND}
    return {}


def _read_disk() -> dict[str, float]:
    """Return the bytes read from and written to all disks, without partitions, loop and stacked devices."""
    rows = [line.split() for line in _read_lines(_PROC / "diskstats")]
    disks = [fields for fields in rows if len(fields) > 9 and (_BLOCK / fields[2] / "device").exists()]
    columns = {"disk_read": 5, "disk_written": 9} if disks else {}
    return {name: float(_SECTOR_BYTES * sum(int(row[column]) for row in disks)) for name, column in columns.items()}


def _read_network() -> dict[str, float]:
    """Return the bytes received and sent over physical devices, or virtual ones if there are none, without loopback.

    InfiniBand traffic that bypasses the kernel is counted by its ports.
    """
    totals = {}
    for line in _read_lines(_PROC / "net/dev")[2:]:
        name, _, numbers = line.partition(":")
        counters = numbers.split()
        if name.strip() != "lo" and len(counters) > 8:
            totals[name.strip()] = int(counters[0]), int(counters[8])
    physical = {name: counts for name, counts in totals.items() if (_NET / name / "device").exists()}
    rows = list((physical or totals).values())
    for port in _INFINIBAND.glob("*/ports/*/counters"):
        with contextlib.suppress(OSError, ValueError):
            received, sent = (int((port / name).read_text()) for name in ("port_rcv_data", "port_xmit_data"))
            rows.append((received * _WORD_BYTES, sent * _WORD_BYTES))
    if not rows:
        return {}
    return {"received": float(sum(row[0] for row in rows)), "sent": float(sum(row[1] for row in rows))}
