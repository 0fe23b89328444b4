"""Whether what lies on a disk is this user's alone: what is run, imported or unpickled from there runs as the user.

A file or folder that belongs to another user, or that others may write, is not used. The owner's private group (the
group of the user's own name, without other members) is nobody else: with it many systems make every folder.

``node``, ``worker`` and the first program on a host (``clusters.package``) use it: the standard library only.
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


def refusal(status: os.stat_result, *, closed: bool = False) -> str:
    """Return why another user could have created or changed it, "" if none could.

    ``closed``: no other user can enter its folder, or it is a link, so its mode does not matter.
    """
    if _CONTAINER in os.environ:
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (uid {status.st_uid})"
    if not closed and is_open(status):
        return "is writable by others (run chmod go-w on it)"
    return ""


def is_open(status: os.stat_result) -> bool:
    """Return whether others may write it; the sticky bit of a folder protects the user's files there."""
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return False
    return bool(status.st_mode & 0o002 or (status.st_mode & 0o020 and not _is_private_group(status.st_gid)))


def _is_private_group(number: int) -> bool:
    import grp
    import pwd

    if os.geteuid() == 0:
        return False
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    is_primary = user.pw_gid == number and group.gr_name == user.pw_name
    return is_primary and set(group.gr_mem) <= {user.pw_name}


def user_folder(folder: Path) -> Path:
    """Return a folder that the user configured, created (0700) if missing. Raises PermissionError, OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    reason = refusal(folder.stat())
    if reason or folder.lstat().st_uid not in (os.geteuid(), folder.stat().st_uid, 0):
        raise PermissionError(f"{folder} {reason or 'is a link of another user'}. Use a folder that belongs to you")
    return folder


def private_folder(folder: Path) -> Path:
    """Return a folder of this package below a configured one, created (0700) if missing.

    Removes write access of other users. Raises PermissionError for a link or another user's folder; OSError.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{folder} is a link or a file, not a folder. Remove it")
    if refusal(status) and status.st_uid == os.geteuid():
        folder.chmod(stat.S_IMODE(status.st_mode) & ~0o022)
        status = folder.lstat()
    if reason := refusal(status):
        raise PermissionError(f"{folder} {reason}, so nothing in it is used")
    return folder


def tree_refusal(path: Path) -> str:
    """Return which file or folder in a tree another user could have created or changed and why, "" for none.

    A missing tree has none. Raises OSError.
    """
    if not os.path.lexists(path):
        return ""
    closed = not path.parent.stat().st_mode & _ENTER
    if reason := refusal(path.lstat(), closed=closed or path.is_symlink()):
        return f"{path} {reason}"
    closed = closed or not path.stat().st_mode & _ENTER
    for parent, folders, files in os.walk(path):
        for name in (*folders, *files):
            status = os.lstat(inner := os.path.join(parent, name))  # noqa: PTH118 - may be thousands
            if reason := refusal(status, closed=closed or stat.S_ISLNK(status.st_mode)):
                return f"{inner} {reason}"
    return ""


def is_own(path: str | os.PathLike[str]) -> bool:
    """Return whether a file or folder exists, is not a link, and no other user could have created or changed it."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return not stat.S_ISLNK(status.st_mode) and not refusal(status)
