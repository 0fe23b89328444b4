"""The cache of one user on one machine: a file for each version of a blob, which nobody may write to.

A file's name is made of the blob's address, name and ETag, so a changed blob is another file. Several programs use it
at once: what is in the making is locked, what is whole appears by renaming, and what goes meanwhile is fetched again.
What a job's folder links to is in use and stays; of the rest, what was not used for the longest time goes first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from distdl_jupyter.node import permissions
from distdl_jupyter.node.processes import boot
from distdl_jupyter.node.staging.failure import Failure, readable

#: Bytes of a range: the service tells the MD5 of none that is longer
#: (learn.microsoft.com/rest/api/storageservices/get-blob, x-ms-range-get-content-md5).
RANGE = 4 * 2**20
#: The word before the run of the machine in the list of a file's ranges.
BOOT = "boot"
#: Ends of names: what is in the making, and which of its ranges are there.
PART, RANGES = ".part", ".ranges"
#: A file in the folder of a job's node that tells that it has symbolic links.
SYMBOLIC = ".symbolic"
MORE_ROOM = "Free some space, choose another folder for staged data, or stage only a shard on each node."
_OTHER = "Choose another folder for staged data."
#: Folders and files of the cache: nothing else in its place is ours.
_FOLDER, _FILE = re.compile(r"[0-9a-f]{2}"), re.compile(r"[0-9a-f]{62}")
#: The share of the disk, and the bytes, that the cache holds where no limit is given: what a user may have on a disk is
#: often less than what is free there, and ``statvfs`` tells no quota.
_SHARE, _MOST = 10, 100 * 10**9
#: Seconds that nobody worked at something in the making before it may go.
_ABANDONED = 3600.0


def usual_base() -> Path:
    """Return the folder that is taken where an order names none: the one for all that this package can get again."""
    if own := os.environ.get("DISTDL_CACHE"):
        return Path(own).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "distdl"
    return Path.home() / ("Library/Caches/distdl" if platform.system() == "Darwin" else ".cache/distdl")


class Kept(NamedTuple):
    """A file of the cache."""

    used: float
    size: int
    path: str
    in_use: bool


class Cache:
    """``base/blobs``, and ``base/staged`` beside it on the same disk."""

    def __init__(self, base: str = "") -> None:
        self.base = Path(base).expanduser() if base else usual_base()
        self.staged = self.base / "staged"
        self._blobs = str(self.base / "blobs")
        self._made: set[str] = set()

    def prepare(self) -> None:
        """Make the folders, which only this user may enter. Raises Failure."""
        try:
            permissions.chosen(self.base)
            for path in (self.staged, Path(self._blobs)):
                permissions.own(path)
        except OSError as error:
            why = error.strerror
            raise Failure(f"Cannot store data in {self.base} ({why})." if why else f"{error}.", _OTHER) from None

    def path(self, address: str, name: str, etag: str) -> str:
        """Return where this version of a blob is, or would be."""
        key = hashlib.sha256(f"{address}\0{name}\0{etag}".encode()).hexdigest()
        folder = f"{self._blobs}/{key[:2]}"
        if folder not in self._made:
            permissions.own(Path(folder))
            self._made.add(folder)
        return f"{folder}/{key[2:]}"

    def has(self, path: str, size: int) -> bool:
        """Return whether the file is here as it was fetched; one that somebody has written to is taken away."""
        try:
            about = os.lstat(path)
        except FileNotFoundError:
            return False
        ours = stat.S_ISREG(about.st_mode) and not permissions.refusal(about)
        if ours and about.st_size == size and int(about.st_mtime) == stamp(path):
            if size > RANGE and not _of_this_run(path):
                return self._demote(path)
            os.utime(path, (time.time(), stamp(path)))
            return True
        Path(path).unlink(missing_ok=True)
        return False

    def _demote(self, path: str) -> bool:
        """Make a file one in the making again, whose ranges are looked at one by one; return that it is not here."""
        with contextlib.suppress(FileNotFoundError):  # by another program, at the same time
            os.chmod(path, 0o600)  # noqa: PTH101
            Path(path).rename(path + PART)
        return False

    def begun(self, path: str) -> int:
        """Return how many bytes of the disk a file in the making has."""
        try:
            return os.lstat(path + PART).st_blocks * 512
        except FileNotFoundError:
            return 0

    # room ---------------------------------------------------------------------------------------

    def make_room(self, needed: int, limit: int | None) -> int:
        """Let go of what is not in use until ``needed`` more bytes fit the limit (None: the usual one) and the disk.

        Returns by how many bytes the limit is too small all the same. Raises Failure when the disk is.
        """
        missing = needed - self._free()
        if limit is None and not needed and missing <= 0:
            return 0
        kept = sorted(self._kept())
        over = sum(one.size for one in kept) + needed - (self._usual_limit() if limit is None else limit)
        for one in kept:
            if over <= 0 and missing <= 0:
                break
            if not one.in_use and _let_go(one):
                over, missing = over - one.size, missing - one.size
        if (free := self._free()) < needed:
            raise Failure(
                f"{self.base} has {readable(max(free, 0))} free, but {readable(needed)} must be copied.", MORE_ROOM
            )
        return max(over, 0)

    def let_go(self) -> None:
        """Let go of all that is not in use: the disk, or what the user may have of it, is full."""
        for one in self._kept():
            if not one.in_use:
                _let_go(one)

    def _usual_limit(self) -> int:
        disk = os.statvfs(self.base)
        return min(disk.f_blocks * disk.f_frsize // _SHARE, _MOST)

    def _free(self) -> int:
        """Return the bytes that may be used; a hundredth of the disk, at most 64 MiB, is left to others."""
        disk = os.statvfs(self.base)
        return disk.f_bavail * disk.f_frsize - min(64 * 2**20, disk.f_blocks * disk.f_frsize // 100)

    def _kept(self) -> Iterator[Kept]:
        """Yield the files that the cache has made: by name, owner and, of whole ones, the time of change."""
        linked = _linked(self.staged)
        for folder in os.scandir(self._blobs):
            if not _FOLDER.fullmatch(folder.name) or not folder.is_dir(follow_symlinks=False):
                continue
            for entry in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    whole = not entry.name.endswith(PART)
                    if not _is_made(entry.name.removesuffix(PART), about):
                        continue
                    if whole and int(about.st_mtime) != stamp(entry.path):
                        continue
                    in_use = about.st_nlink > 1 or entry.path in linked
                    if not whole:
                        in_use = time.time() - about.st_mtime < _ABANDONED
                    yield Kept(about.st_atime, about.st_blocks * 512, entry.path, in_use)


def _is_made(name: str, about: os.stat_result) -> bool:
    return bool(_FILE.fullmatch(name)) and stat.S_ISREG(about.st_mode) and not permissions.refusal(about)


def stamp(path: str) -> int:
    """Return the time of change that a whole file of the cache bears: any other tells that somebody wrote to it.

    It belongs to the version of the blob, so that it is the same wherever and whenever it is fetched.
    """
    return 1_000_000_000 + int(path[-7:], 16)


def _let_go(kept: Kept) -> bool:
    """Remove a file with the list of its ranges; return whether it went: one that somebody took up meanwhile stays."""
    try:
        if not kept.path.endswith(PART):
            Path(kept.path + RANGES).unlink(missing_ok=True)
            Path(kept.path).unlink()
            return True
        with Path(kept.path).open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Path(kept.path.removesuffix(PART) + RANGES).unlink(missing_ok=True)
            Path(kept.path).unlink()
    except (FileNotFoundError, BlockingIOError):
        return False
    return True


def _of_this_run(path: str) -> bool:
    """Return whether a file of several ranges was written since the machine was switched on, or is surely on disk.

    What another machine wrote and closed is, or it could not be seen here.
    """
    try:
        with Path(path + RANGES).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 400))
            word, _, value = file.read().decode("utf-8", "replace").rstrip("\n").rpartition("\n")[2].partition(" ")
    except FileNotFoundError:
        return True
    (host, _, run), (own_host, _, own_run) = value.partition("/"), boot().partition("/")
    return word == BOOT and (run == own_run or host != own_host)


def _linked(staged: Path) -> set[str]:
    """Return which files are in use by symbolic links, which is what jobs have on disks without other ones."""
    found = set()
    for marker in staged.glob(f"*/*/{SYMBOLIC}"):
        for folder, _, names in os.walk(marker.parent):
            for name in names:
                with contextlib.suppress(OSError):
                    found.add(str(Path(folder, name).readlink()))
    return found
