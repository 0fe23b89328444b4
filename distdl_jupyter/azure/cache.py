"""Answers of Azure that are kept in the user's cache, each with the moment at which it was given.

They hold no token. A file that cannot be read or written costs a question more and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distdl_jupyter.core import atomic_write
from distdl_jupyter.core.caches import cache_directory


@dataclass(frozen=True, slots=True)
class Kept:
    """``data`` as it was given at ``when`` (epoch seconds)."""

    when: float
    data: Any

    @property
    def day(self) -> str:
        """The local day as ISO text."""
        return time.strftime("%Y-%m-%d", time.localtime(self.when))


def read(*name: str) -> Kept | None:
    """Return the answer of this name, None where there is none."""
    path = _path(name)
    try:
        return _read(path, path.stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, TypeError):
        return None


@functools.lru_cache(maxsize=32)
def _read(path: Path, _changed: int) -> Kept:
    document = json.loads(path.read_text(encoding="utf-8"))
    return Kept(float(document["when"]), document["data"])


def write(*name: str, data: Any) -> Kept:
    """Keep an answer given now under this name and return it."""
    kept = Kept(time.time(), data)
    path = _path(name)
    with contextlib.suppress(OSError):
        atomic_write.write(path, {"when": kept.when, "data": data})
    return kept


def _path(name: tuple[str, ...]) -> Path:
    words = [re.sub(r"[^A-Za-z0-9_]+", "_", word) for word in name]
    return cache_directory() / "azure" / f"{'-'.join(words)}.json"
