"""Asks ranks of this machine to record some steps: a file for each, in the run's private folder.

What a rank does with it is said in ``worker.watch.profile``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def ask(folder: Path, ranks: Iterable[int], request: Mapping[str, Any]) -> None:
    """Leave the request for each rank; a later one takes its place. Raises OSError."""
    for rank in ranks:
        path = folder / f"rank-{rank}.profile"
        hidden = folder / f".{path.name}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(hidden, flags, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123  a descriptor
            json.dump(dict(request), file)
        hidden.replace(path)
