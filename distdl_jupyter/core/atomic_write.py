"""Atomic writes of small files that only their owner may read."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any


def write(path: Path, data: Any) -> None:
    """Replace the file with ``data`` as JSON; its folder is created (0700) if it is missing. Raises OSError.

    The data is synced to the disk when this returns.
    """
    import tempfile  # a job's start writes caches only

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            json.dump(data, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def keep(path: Path, content: str | bytes) -> None:
    """Replace the file with text or bytes, without a sync to the disk. Raises OSError.

    The folder is never created: a cache must not bring back the folder of a job that was deleted.
    """
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{threading.get_ident()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
