"""Where each rank of an allocation listens itself: it tells an address and ports of its node, and reads the others'.

It is for backends whose ranks open ports of their own, as TensorFlow's workers do; where rank 0 alone is looked for,
``meeting`` is enough. The files are there from the beginning, as a network file system shows new ones late.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter.host.meeting import PATIENCE, NoMeeting

_LOOK = 0.1


def tell(folder: Path, rank: int, address: str, ports: Sequence[int]) -> None:
    """Let the other ranks read where this one listens. Raises OSError."""
    path = _file(folder, rank)
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.write_text(json.dumps({"address": address, "ports": list(ports)}), encoding="utf-8")
    hidden.replace(path)


def gather(
    folder: Path, ranks: int, stopped: Callable[[], object] = bool, patience: float = PATIENCE
) -> dict[str, str]:
    """Return the words for every rank's address and ports. Raises NoMeeting, also when ``stopped`` says so."""
    until = time.monotonic() + patience
    words: dict[str, str] = {}
    for rank in range(ranks):
        while (seat := _read(_file(folder, rank))) is None:
            if stopped():
                raise NoMeeting("It was stopped before it began.")
            if time.monotonic() > until:
                raise NoMeeting(f"The node of rank {rank} has not begun within {patience:g} s.")
            time.sleep(_LOOK)
        words |= _words(rank, seat)
    return words


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.seat"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _words(rank: int, seat: Any) -> dict[str, str]:
    ports = {f"@rank-{rank}-port-{number}@": str(port) for number, port in enumerate(seat["ports"])}
    return {f"@rank-{rank}-address@": str(seat["address"])} | ports
