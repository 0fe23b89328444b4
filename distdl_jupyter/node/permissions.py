"""Whether what lies on a disk is this user's alone: what is run, imported or unpickled from there runs as the user.

A file or folder that belongs to another user, or that others may write, is not used. The owner's private group (the
group of the user's own name, without other members) is nobody else: with it many systems make every folder.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

#: A container of Azure ML belongs to one job, and the file systems in it tell no owners.
_CONTAINER = "AZUREML_RUN_ID"
#: The right of others to enter a folder.
_ENTER = 0o011


def refusal(seen: os.stat_result, *, closed: bool = False) -> str:
    """Return why somebody else could have put or changed it, "" when nobody could.

    ``closed``: nobody else gets there, or it is a link, so that its mode says nothing.
    """
    if _CONTAINER in os.environ:
        return ""
    if seen.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (number {seen.st_uid})"
    if not closed and is_open(seen):
        return "is writable by others (run chmod go-w on it)"
    return ""


def is_open(seen: os.stat_result) -> bool:
    """Say whether others may write it; in a folder with the sticky bit they may not touch what is the user's."""
    if stat.S_ISDIR(seen.st_mode) and seen.st_mode & stat.S_ISVTX:
        return False
    return bool(seen.st_mode & 0o002 or (seen.st_mode & 0o020 and not _is_private_group(seen.st_gid)))


def _is_private_group(number: int) -> bool:
    import grp
    import pwd

    if os.geteuid() == 0:
        return False
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    own = user.pw_gid == number and group.gr_name == user.pw_name
    return own and set(group.gr_mem) <= {user.pw_name}


def chosen(folder: Path) -> Path:
    """Return a folder that a user has named, made (0700) where it is missing. Raises PermissionError, OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    reason = refusal(folder.stat())
    if reason or folder.lstat().st_uid not in (os.geteuid(), folder.stat().st_uid, 0):
        raise PermissionError(f"{folder} {reason or 'is a link of another user'}. Use a folder that belongs to you")
    return folder


def own(folder: Path) -> Path:
    """Return a folder that this package has made for itself below a chosen one, made (0700) where it is missing.

    Others' right to write there is taken back. Raises PermissionError where it is another's or a link; OSError.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode):
        raise PermissionError(f"{folder} is a link or a file, not a folder. Remove it")
    if refusal(seen) and seen.st_uid == os.geteuid():
        folder.chmod(stat.S_IMODE(seen.st_mode) & ~0o022)
        seen = folder.lstat()
    if reason := refusal(seen):
        raise PermissionError(f"{folder} {reason}, so nothing in it is used")
    return folder


def tree_refusal(path: Path) -> str:
    """Return which file or folder in a tree somebody else could have put or changed and why, "" when there is none.

    A tree that is not there has none. Raises OSError.
    """
    if not os.path.lexists(path):
        return ""
    closed = not path.parent.stat().st_mode & _ENTER
    if reason := refusal(path.lstat(), closed=closed or path.is_symlink()):
        return f"{path} {reason}"
    closed = closed or not path.stat().st_mode & _ENTER
    for parent, folders, files in os.walk(path):
        for name in (*folders, *files):
            seen = os.lstat(inner := os.path.join(parent, name))  # noqa: PTH118 - may be thousands
            if reason := refusal(seen, closed=closed or stat.S_ISLNK(seen.st_mode)):
                return f"{inner} {reason}"
    return ""


def is_own(path: str | os.PathLike[str]) -> bool:
    """Say whether a file or folder is there, is no link, and nobody else could have put or changed it."""
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return not stat.S_ISLNK(seen.st_mode) and not refusal(seen)
