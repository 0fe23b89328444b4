"""Folders that were copied to this host, by their content: a second job with the same data finds them here.

A copy appears whole, by renaming; one that broke off is a hidden folder, which the next one of that content replaces.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distdl_jupyter.host.workplace import DEFAULT_BASE

_DIGEST = re.compile(r"[0-9a-f]{16,64}")


def path(digest: str, base: str) -> str:
    """Return the folder of this content, "" when it is not here. Raises ValueError for what is no digest."""
    folder = _folder(digest, base)
    return str(folder) if folder.is_dir() else ""


def _folder(digest: str, base: str) -> Path:
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is no digest.")
    return Path(base or DEFAULT_BASE).expanduser() / "copies" / digest


class Copy:
    """One copy on its way into ``folder``. Raises OSError, ValueError."""

    def __init__(self, digest: str, base: str) -> None:
        self._final = _folder(digest, base)
        self._final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = self._final.with_name(f".{digest}-{os.getpid()}")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)

    def finish(self, unpack: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Let ``unpack`` fill the folder, show it, and return where it is with what ``unpack`` says."""
        try:
            told = unpack()
            with contextlib.suppress(OSError):  # another job brought the same meanwhile
                self.folder.rename(self._final)
            if not self._final.is_dir():
                raise OSError(f"{self._final} cannot be made.")
            return {"path": str(self._final), **told}
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
