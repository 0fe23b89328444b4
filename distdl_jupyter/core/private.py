"""The folders in which jobs lie belong to one user: made so, and refused where somebody else could put files there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from distdl_jupyter.core.errors import DiskRefused
from distdl_jupyter.node import permissions

if TYPE_CHECKING:
    from pathlib import Path


def make(root: Path, jobs: Path) -> None:
    """Make the data directory and the folder of jobs in it, for this user alone, whatever the umask.

    Raises DiskRefused where the directory belongs to another user, or others may write there; OSError.
    """
    if not jobs.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        for folder in (root, jobs):
            folder.mkdir(mode=0o700, exist_ok=True)
    check(root)
    check(jobs)


def check(folder: Path) -> None:
    """Raise DiskRefused where somebody else could put jobs of theirs into the folder, or take away this user's."""
    seen, me = folder.stat(), os.geteuid()
    # Root reads what others own, as containers do with volumes; files of theirs are not unpickled (worker.owned).
    if me != 0 and seen.st_uid not in (me, 0):
        raise DiskRefused(
            f"{folder} belongs to another user (number {seen.st_uid}).",
            code="folder-of-another-user",
            hint=_ELSEWHERE,
        )
    if permissions.is_open(seen):
        who = "everybody" if seen.st_mode & 0o002 else f"the group with number {seen.st_gid}"
        raise DiskRefused(
            f"{folder} is writable by {who}, who could put code into your jobs.",
            code="folder-writable-by-others",
            hint=f"Remove that permission: chmod go-w '{folder}'",
        )


_ELSEWHERE = "Set DISTDL_HOME to a folder that belongs to you."
