"""Check that no other user could have created or changed a file whose code or pickles run as this user.

A file or folder is not used if it belongs to another user or if others can write to it. The user's private group (named
after the user, with no other members) may write to it, because many systems create every folder with that group.

Standard library only, because ``node``, ``worker`` and the first program on a host (``clusters.environment``) use it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

#: Set in an Azure ML container, which belongs to a single job and whose file systems do not report owners.
_CONTAINER_VARIABLE = "AZUREML_RUN_ID"
#: Mode bits that let other users enter a folder.
_ENTER_BITS = 0o011


def find_refusal(status: os.stat_result, *, is_closed: bool = False) -> str:
    """Return why another user could have created or changed a file or folder, or "" if none could.

    ``is_closed``: no other user can enter its folder, or it is a link, so its mode is ignored.
    """
    if _CONTAINER_VARIABLE in os.environ:
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (uid {status.st_uid})"
    if not is_closed and is_open(status):
        return "is writable by others (run chmod go-w on it)"
    return ""


def is_open(status: os.stat_result) -> bool:
    """Return whether others can write to it. A sticky folder is not open, because the user's files are protected."""
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return False
    return bool(status.st_mode & 0o002 or (status.st_mode & 0o020 and not _is_private_group(status.st_gid)))


def _is_private_group(group_id: int) -> bool:
    import grp
    import pwd

    if os.geteuid() == 0:
        return False
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(group_id)
    except KeyError:
        return False
    is_primary = user.pw_gid == group_id and group.gr_name == user.pw_name
    return is_primary and set(group.gr_mem) <= {user.pw_name}


def make_folder(folder: Path) -> Path:
    """Return a folder that the user configured; create it (0700) if missing. Raises PermissionError, OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    reason = find_refusal(folder.stat())
    if reason or folder.lstat().st_uid not in (os.geteuid(), folder.stat().st_uid, 0):
        raise PermissionError(f"{folder} {reason or 'is a link of another user'}. Use a folder that belongs to you")
    return folder


def make_private(folder: Path) -> Path:
    """Return a folder of this package inside a configured one; create it (0700) if missing.

    Revokes write access of other users. Raises PermissionError for a link or another user's folder; OSError.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{folder} is a link or a file, not a folder. Remove it")
    if find_refusal(status) and status.st_uid == os.geteuid():
        folder.chmod(stat.S_IMODE(status.st_mode) & ~0o022)
        status = folder.lstat()
    if reason := find_refusal(status):
        raise PermissionError(f"{folder} {reason}, so nothing in it is used")
    return folder


def find_tree_refusal(path: Path) -> str:
    """Return the first path in a tree that another user could have created or changed, with the reason, or "".

    Return "" for a missing tree. Raises OSError.
    """
    if not os.path.lexists(path):
        return ""
    is_closed = not path.parent.stat().st_mode & _ENTER_BITS
    if reason := find_refusal(path.lstat(), is_closed=is_closed or path.is_symlink()):
        return f"{path} {reason}"
    is_closed = is_closed or not path.stat().st_mode & _ENTER_BITS
    for parent, folders, files in os.walk(path):
        for name in (*folders, *files):
            status = os.lstat(inner := os.path.join(parent, name))  # noqa: PTH118 - may be thousands
            if reason := find_refusal(status, is_closed=is_closed or stat.S_ISLNK(status.st_mode)):
                return f"{inner} {reason}"
    return ""


def is_own(path: str | os.PathLike[str]) -> bool:
    """Return whether a file or folder exists, is not a link, and no other user could have created or changed it."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return not stat.S_ISLNK(status.st_mode) and not find_refusal(status)
