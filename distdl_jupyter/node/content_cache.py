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

from distdl_jupyter.node import permissions
from distdl_jupyter.node.workdir import DEFAULT_BASE

_DIGEST = re.compile(r"[0-9a-f]{16,64}")


def path(digest: str, base: str) -> str:
    """Return the folder of this content, "" when it is not here. Raises ValueError for what is no digest.

    Raises PermissionError where somebody else could have put it there.
    """
    folder = _folder(digest, base)
    if not os.path.lexists(folder):
        return ""
    permissions.chosen(folder.parents[1])
    permissions.own(folder.parent)
    return str(permissions.own(folder))


def _folder(digest: str, base: str) -> Path:
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is not a valid digest.")
    return Path(base or DEFAULT_BASE).expanduser() / "copies" / digest


class Copy:
    """One copy on its way into ``folder``. Raises OSError, ValueError."""

    def __init__(self, digest: str, base: str) -> None:
        self._final = _folder(digest, base)
        permissions.chosen(self._final.parents[1])
        permissions.own(self._final.parent)
        self.folder = self._final.with_name(f".{digest}-{os.getpid()}")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)

    def finish(self, unpack: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Let ``unpack`` fill the folder, show it, and return where it is with what ``unpack`` says."""
        try:
            answer = unpack()
            with contextlib.suppress(OSError):  # another job brought the same meanwhile
                self.folder.rename(self._final)
            if not permissions.is_own(self._final):
                raise OSError(f"{self._final} cannot be created.")
            return {"path": str(self._final), **answer}
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
