"""Slurm's nodes and partitions as ``sinfo`` prints them, and its ways to write GPUs and times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from distdl_jupyter.clusters.slurm import commands

#: How the name of a job ends that this package has submitted (see ``script.job_name``).
OURS = re.compile(r"-\d{8}-\d{6}-[a-z0-9]{4,12}$")


@dataclass(frozen=True, slots=True)
class Node:
    """A node as ``sinfo`` tells it."""

    name: str
    state: str
    cores: int = 0
    gpus: int = 0
    gpu_name: str = ""
    load: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: ``time_limit`` in minutes (None: none) and how many nodes it has."""

    name: str
    up: bool
    time_limit: int | None
    nodes: int
    default: bool


def nodes(partition: str = "") -> list[Node]:
    """Return the nodes, of one partition or of all. Raises SlurmFailed."""
    which = [f"--partition={partition}"] if partition else []
    said = commands.run("sinfo", "--noheader", "--Node", *which, "--format=%N|%T|%c|%O|%G|%E")
    found = {line.split("|", 1)[0]: _node(line.split("|", 5)) for line in said.splitlines() if line.count("|") >= 5}
    return list(found.values())


def ranks() -> dict[str, int]:
    """Return how many ranks of this user's jobs of this package run on each node. Raises SlurmFailed."""
    said = commands.run("squeue", "--noheader", "--me", "--states=RUNNING", "--Format=Name:|,NumTasks:|,NodeList:|")
    found: dict[str, int] = {}
    for line in said.splitlines():
        name, tasks, where = (field.strip() for field in line.split("|")[:3])
        if OURS.search(name) and where:
            names = commands.run("scontrol", "show", "hostnames", where).split()
            for node in names:
                found[node] = found.get(node, 0) + commands.leading_number(tasks) // len(names)
    return found


def _node(fields: Sequence[str]) -> Node:
    name, state_, cores, load, gres, reason = (field.strip() for field in fields)
    gpus, gpu_name = gpus_in(gres)
    return Node(
        name, state_, commands.leading_number(cores), gpus, gpu_name, _float(load), "" if reason == "none" else reason
    )


def gpus_in(gres: str) -> tuple[int, str]:
    """Return how many GPUs and which ones from Slurm's ``gpu:a100:4(S:0-1)`` or from ``a100:4`` or ``4``."""
    count, names = 0, []
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        words = part.removeprefix("gpu:").split(":")
        if (part.startswith("gpu") or ":" not in gres or not gres.count("gpu")) and words[-1].isdigit():
            count += int(words[-1])
            names += words[:-1]
    return count, ", ".join(dict.fromkeys(names))


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def partitions() -> list[Partition]:
    """Return the partitions. Raises SlurmFailed."""
    said = commands.run("sinfo", "--noheader", "--format=%P|%a|%l|%D")
    merged: dict[str, Partition] = {}
    for line in said.splitlines():
        name, up, limit, count = (field.strip() for field in line.split("|"))
        plain = name.rstrip("*")
        before = merged[plain].nodes if plain in merged else 0
        merged[plain] = Partition(
            plain, up == "up", minutes(limit), before + commands.leading_number(count), name.endswith("*")
        )
    return list(merged.values())


def minutes(limit: str) -> int | None:
    """Return Slurm's time limit in minutes, rounded up; None for no limit.

    It is written as minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes or
    days-hours:minutes:seconds (sbatch(1), ``--time``). Raises ValueError.
    """
    if limit.strip().lower() in ("infinite", "unlimited", "n/a", ""):
        return None
    days, dash, clock = limit.strip().rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if len(parts) > 3 or any(part < 0 for part in parts):
        raise ValueError(limit)
    if dash:
        hours, mins, seconds = [*parts, 0, 0][:3]
        return int(days) * 1440 + hours * 60 + mins + (seconds > 0)
    if len(parts) == 3:
        return parts[0] * 60 + parts[1] + (parts[2] > 0)
    return parts[0] + (len(parts) == 2 and parts[1] > 0)
