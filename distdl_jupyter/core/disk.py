"""What a disk's refusal means to a user, as one sentence with its remedy."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import TYPE_CHECKING

from distdl_jupyter.core import limits
from distdl_jupyter.core.errors import DiskRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

_ELSEWHERE = "set DISTDL_HOME to a folder on another disk"
_REMEDIES = {
    errno.ENOSPC: f"Free space on that disk, or {_ELSEWHERE}.",
    errno.EDQUOT: f"Your disk quota is used up. Delete files, or {_ELSEWHERE}.",
    errno.EFBIG: "The limit for file sizes is reached. Raise it with 'ulimit -f'.",
    **{number: limits.remedy(OSError(number, "")) for number in (errno.EMFILE, errno.ENFILE)},
    errno.EIO: f"The disk is damaged or not available: {_ELSEWHERE}.",
}
#: The codes of the errors with these remedies.
CODES = {
    **{number: limits.CODES[number] for number in (errno.EMFILE, errno.ENFILE)},
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-quota",
    errno.EFBIG: "file-size-limit",
    errno.EIO: "disk-damaged",
}
_NOT_YOURS = "Set DISTDL_HOME to a folder that you can write to."


def refusal(error: OSError, place: Path, what: str = "written") -> DiskRefused:
    """Return what is told when ``place`` could not be written, or read."""
    reason = error.strerror or str(error)
    number = error.errno or 0
    return DiskRefused(
        f"{place} cannot be {what}: {reason}.",
        code=CODES.get(number, "disk-not-writable"),
        hint=_REMEDIES.get(number, _NOT_YOURS),
    )


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Raise DiskRefused for any OSError inside."""
    try:
        yield
    except OSError as error:
        raise refusal(error, place) from error


def file_system(path: Path) -> str:
    """Return the kind of file system on which a path lies and where that is mounted: ``lustre at /scratch``."""
    found, at = "of an unknown type", Path()
    with contextlib.suppress(OSError):
        place = path.resolve()
        # proc_pid_mountinfo(5): ID PARENT DEVICE ROOT MOUNTPOINT OPTIONS TAGS... - KIND SOURCE OPTIONS
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            before, _, behind = line.partition(" - ")
            point = Path(before.split()[4].replace("\\040", " "))
            if place.is_relative_to(point) and len(point.parts) >= len(at.parts):
                found, at = f"{behind.split()[0]} at {point}", point
    return found
