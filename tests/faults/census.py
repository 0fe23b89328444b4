"""What a process holds, counted from outside of it, and what jobs leave lying about on this machine."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.conftest import wait_for


@dataclass(frozen=True)
class Census:
    """Open descriptors, threads, children and megabytes in memory of one process."""

    descriptors: int
    threads: int
    children: int
    memory: float

    def no_more_than(self, before: Census, memory: float) -> bool:
        """Say whether nothing but memory has grown, and that by so many megabytes at most."""
        held = (self.descriptors, self.threads, self.children), (before.descriptors, before.threads, before.children)
        return all(now <= then for now, then in zip(*held, strict=True)) and self.memory - before.memory <= memory


def of(pid: int) -> Census:
    """Count what a process holds now."""
    process = psutil.Process(pid)
    memory = process.memory_info().rss / 2**20
    return Census(process.num_fds(), process.num_threads(), len(process.children()), memory)


def settled(pid: int, before: Census, memory: float, timeout: float = 90.0) -> Census:
    """Wait until a process holds no more than before, and return what it holds."""
    until = time.monotonic() + timeout
    while not (now := of(pid)).no_more_than(before, memory):
        assert time.monotonic() < until, f"process {pid} held {before} and holds {now}; {described(pid)}"
        time.sleep(0.2)
    return now


def described(pid: int) -> str:
    """Return what the descriptors of a process are, and the names of its threads."""
    found = []
    for entry in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError):
            found.append(f"{entry.name} {os.readlink(entry)}")
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found.append(f"thread {(task / 'comm').read_text().strip()}")
    return ", ".join(found)


def shared_memory() -> set[str]:
    """Return what lies in shared memory."""
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def nothing_left(folder: Path, shared: set[str]) -> None:
    """Assert that the temporary folder holds no run's pipes, and shared memory nothing new of this user's jobs."""
    wait_for(lambda: not list(folder.glob("distdl-????????-????????")), 30, "the pipes of all runs gone")
    new = shared_memory() - shared
    wait_for(lambda: not (shared_memory() & new), 60, f"{new} gone from shared memory")
