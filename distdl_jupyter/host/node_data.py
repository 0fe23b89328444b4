"""The data of a job's nodes as tasks in an allocation of Slurm take part in it: who brings it, who waits, who tidies.

Ranks that Slurm starts bring it themselves, the first one of each node; before a launcher a step of Slurm's does, one
task on each node.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from distdl_jupyter.host import bringing
from distdl_jupyter.host.allotment import Place
from distdl_jupyter.host.meeting import NoMeeting


def of_rank(place: Place, rank: int, stopped: Callable[[], object]) -> dict[str, str]:
    """Bring the data of this node, as its first rank does, and wait for all nodes' own. Raises NoMeeting."""
    if not place.plan.get("data"):
        return {}
    node, local_rank = divmod(rank, place.plan["per_node"])
    if local_rank == 0:
        bringing.bring(place.folder, node, place.node, stopped)
    return bringing.wait(place.folder, node, place.plan["nodes"], stopped)


def forget_after(place: Place, rank: int) -> None:
    """Take the data's folders of this node away when this was the last of its ranks."""
    if place.plan.get("data"):
        per_node = place.plan["per_node"]
        node = rank // per_node
        mine = [place.folder / f"rank-{one}.exit" for one in range(node * per_node, (node + 1) * per_node)]
        if all(_is_told(path) for path in mine):
            bringing.forget(place.folder, node)


def _is_told(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


# before and after a launcher ------------------------------------------------------------------------


def everywhere(place: Place, stopped: Callable[[], object]) -> list[dict[str, str]]:
    """Bring the data of all nodes before a launcher starts; return each node's variables. Raises NoMeeting."""
    nodes = int(place.plan["nodes"])
    if not place.plan.get("data"):
        return [{} for _ in range(nodes)]
    step = subprocess.Popen(_on_each_node(place, "stage"), stdin=subprocess.DEVNULL)

    def over() -> bool:
        return bool(stopped()) or (step.poll() is not None and _lacking(place))

    try:
        return [bringing.wait(place.folder, node, nodes, over) for node in range(nodes)]
    finally:
        step.terminate()
        step.wait()


def _lacking(place: Place) -> bool:
    """Say whether a node has told nothing of its data."""
    return not all(_is_told(place.folder / f"node-{node}.{bringing.DATA}") for node in range(place.plan["nodes"]))


def forget_everywhere(place: Place) -> None:
    """Take the data's folders of all nodes away."""
    if place.plan.get("data"):
        subprocess.run(_on_each_node(place, "forget"), stdin=subprocess.DEVNULL, check=False)


def _on_each_node(place: Place, word: str) -> list[str]:
    count = len(place.nodes)
    return ["srun", "--overlap", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--mpi=none",
            "--export=ALL", str(place.folder / "start"), word]  # fmt: skip


def stage_node(place: Place) -> int:
    """Bring the data of this node (``FOLDER stage``); why it is not there stands where the launcher's task waits."""
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: asked.append(number))
    with contextlib.suppress(NoMeeting):
        bringing.bring(place.folder, int(os.environ["SLURM_NODEID"]), place.node, lambda: asked)
    return 0


def forget_node(place: Place) -> int:
    """Take the data's folders of this node away (``FOLDER forget``)."""
    bringing.forget(place.folder, int(os.environ["SLURM_NODEID"]))
    return 0
