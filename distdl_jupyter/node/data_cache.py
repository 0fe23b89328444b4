"""Staged data on the disk of one node: a cache shared by all jobs of a user, and folders of links that ranks see.

``base`` (default: the user's cache folder) contains ``blobs``, with one file for each version of an object,
``staged/<job>/<node>/<source>``, which consists of links to blobs, and ``copies``, folders that were sent from the
submitting machine. A file name is a digest of the object's address, name and version, so a changed object gets a new
file. Several programs can use the cache at once: a file is locked while it is fetched, and renamed when it is complete.
Files that a job links to are kept; the others are removed, least recently used first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import math
import os
import platform
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from distdl_jupyter import permissions
from distdl_jupyter.node.files import DEFAULT_BASE

SPACE_REMEDY = "Free some space, choose another folder for staged data, or stage only a shard on each node."
_FOLDER_REMEDY = "Choose another folder for staged data."
_SHARED_REMEDY = "Use a path that every node can read, or put the data into an object store."
#: Suffix of a file that is being fetched.
PART_SUFFIX = ".part"
#: Names of folders and files that the cache creates; anything else belongs to the user.
_FOLDER_NAME, _FILE_NAME = re.compile(r"[0-9a-f]{2}"), re.compile(r"[0-9a-f]{62}")
_DIGEST = re.compile(r"[0-9a-f]{16,64}")
#: Default limit of the cache: disk size / _SHARE, at most _MAX_BYTES, because ``statvfs`` does not report quotas.
_SHARE, _MAX_BYTES = 10, 100 * 10**9
#: Time of last use of a file that a job links to.
_IN_USE = math.inf
#: Files up to this size are published without fsync, because their length proves that they are complete.
_SMALL_BYTES = 4 * 2**20
#: Error numbers of a file system without hard links, and of a file with too many links.
_NO_LINK_ERRORS = {errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
#: Maximum number of entries of a folder in a fingerprint.
_MAX_ENTRIES = 10_000
_SIGNATURE = re.compile(r"(sig=)[^&\s\"']+", re.IGNORECASE)
_PASSWORD = re.compile(r"(://)[^/\s:@]*:[^/\s@]*@")


class StagingFailed(Exception):
    """Staging failed. ``text`` is one sentence, ``remedy`` the fix, ``source`` the name of the source or ""."""

    def __init__(self, text: str, remedy: str = "", source: str = "") -> None:
        super().__init__(mask_secrets(text))
        self.text = mask_secrets(text)
        self.remedy = mask_secrets(remedy)
        self.source = source


def mask_secrets(text: str) -> str:
    """Return the text without signatures, and without user names and passwords in addresses."""
    return _SIGNATURE.sub(r"\1***", _PASSWORD.sub(r"\1", text))


def format_size(size: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"


def get_default_base() -> Path:
    """Return the cache folder of this user: DISTDL_CACHE, or the system's default."""
    if configured := os.environ.get("DISTDL_CACHE"):
        return Path(configured).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "distdl"
    return Path.home() / ("Library/Caches/distdl" if platform.system() == "Darwin" else ".cache/distdl")


# the cache ------------------------------------------------------------------------------------------


class Cache:
    """Cached files in ``base/blobs``, and links to them in ``base/staged`` on the same disk."""

    def __init__(self, base: str = "") -> None:
        self.base = Path(base).expanduser() if base else get_default_base()
        self.staged = self.base / "staged"
        self._blobs = str(self.base / "blobs")
        self._created: set[str] = set()

    def prepare(self) -> None:
        """Create the folders, accessible only to this user. Raises StagingFailed."""
        try:
            permissions.make_folder(self.base)
            for path in (self.staged, Path(self._blobs)):
                permissions.make_private(path)
        except OSError as error:
            text = f"Cannot store data in {self.base} ({error.strerror})." if error.strerror else f"{error}."
            raise StagingFailed(text, _FOLDER_REMEDY) from None

    def get_path(self, address: str, name: str, version: str) -> str:
        """Return the path for this version of an object. The file need not exist."""
        key = hashlib.sha256(f"{address}\0{name}\0{version}".encode()).hexdigest()
        folder = f"{self._blobs}/{key[:2]}"
        if folder not in self._created:
            permissions.make_private(Path(folder))
            self._created.add(folder)
        return f"{folder}/{key[2:]}"

    def has(self, path: str, size: int) -> bool:
        """Return whether the file is complete and unmodified; remove a modified file."""
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return False
        is_ours = stat.S_ISREG(status.st_mode) and not permissions.find_refusal(status)
        if is_ours and status.st_size == size and int(status.st_mtime) == compute_mtime(path):
            os.utime(path, (time.time(), compute_mtime(path)))
            return True
        Path(path).unlink(missing_ok=True)
        return False

    def make_room(self, needed: int, limit: int | None) -> int:
        """Remove unused files until ``needed`` more bytes fit the limit and the disk. None is the default limit.

        Returns the number of bytes by which the limit is still exceeded. Raises StagingFailed if the disk is too small.
        """
        missing = needed - self._free_bytes()
        if limit is None and not needed and missing <= 0:
            return 0
        entries, disk = sorted(self._list_entries()), os.statvfs(self.base)
        default_limit = min(disk.f_blocks * disk.f_frsize // _SHARE, _MAX_BYTES)
        excess = sum(size for _, size, _ in entries) + needed - (default_limit if limit is None else limit)
        for used_at, size, path in entries:
            if excess <= 0 and missing <= 0:
                break
            if used_at < _IN_USE and _remove(path):
                excess, missing = excess - size, missing - size
        if needed and (free := self._free_bytes()) < needed:
            sizes = f"{format_size(needed)} needed, {format_size(max(free, 0))} free"
            raise StagingFailed(f"Not enough space in {self.base}: {sizes}.", SPACE_REMEDY)
        return max(excess, 0)

    def _free_bytes(self) -> int:
        """Return the usable bytes; 1 % of the disk, at most 64 MiB, is left free."""
        disk = os.statvfs(self.base)
        return disk.f_bavail * disk.f_frsize - min(64 * 2**20, disk.f_blocks * disk.f_frsize // 100)

    def _list_entries(self) -> Iterator[tuple[float, int, str]]:
        """Yield the time of last use (0 if incomplete, ``_IN_USE`` if a job links to it), size and path of each file.

        Only files that the cache created are included, identified by name, owner and (if complete) modification time.
        """
        for folder in os.scandir(self._blobs):
            if not _FOLDER_NAME.fullmatch(folder.name) or not folder.is_dir(follow_symlinks=False):
                continue
            for file in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):
                    status = file.stat(follow_symlinks=False)
                    is_part = file.name.endswith(PART_SUFFIX)
                    is_ours = stat.S_ISREG(status.st_mode) and not permissions.find_refusal(status)
                    if not is_ours or not _FILE_NAME.fullmatch(file.name.removesuffix(PART_SUFFIX)):
                        continue
                    if is_part or int(status.st_mtime) == compute_mtime(file.path):
                        used_at = 0.0 if is_part else _IN_USE if status.st_nlink > 1 else status.st_atime
                        yield used_at, status.st_blocks * 512, file.path


def compute_mtime(path: str) -> int:
    """Return the modification time that every complete cached file has; a file with another time was modified."""
    return 1_000_000_000 + int(path[-7:], 16)


def _remove(path: str) -> bool:
    """Remove a file, unless another program is fetching it; return whether it was removed."""
    try:
        if not path.endswith(PART_SUFFIX):
            Path(path).unlink()
            return True
        with Path(path).open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Path(path).unlink()
    except (FileNotFoundError, BlockingIOError):
        return False
    return True


class PartialFile:
    """A file that is being fetched, initially empty and locked against other programs and threads.

    ``on_wait`` is called if another program is fetching the same file. Raises OSError.
    """

    def __init__(self, path: str, on_wait: Callable[[], None]) -> None:
        self.path = path
        while True:
            self.fd = os.open(path + PART_SUFFIX, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                on_wait()
                fcntl.flock(self.fd, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if Path(path + PART_SUFFIX).stat().st_ino == os.fstat(self.fd).st_ino:
                    break
            os.close(self.fd)  # it was renamed or removed between the two calls
        os.ftruncate(self.fd, 0)

    def write(self, offset: int, content: memoryview) -> None:
        """Write bytes at a position."""
        while content:
            written = os.pwrite(self.fd, content, offset)
            offset, content = offset + written, content[written:]

    def compute_md5(self) -> bytes:
        """Return the MD5 of the content."""
        with open(self.fd, "rb", closefd=False) as file:
            file.seek(0)
            return hashlib.file_digest(file, functools.partial(hashlib.md5, usedforsecurity=False)).digest()

    def publish(self, link: Callable[[str], None]) -> None:
        """Move the complete file to its path; ``link`` is called first, so that the file is never unused."""
        if os.fstat(self.fd).st_size > _SMALL_BYTES:
            os.fsync(self.fd)  # after a system crash, the length alone would not prove that it is complete
        os.fchmod(self.fd, 0o400)
        os.utime(self.fd, (time.time(), compute_mtime(self.path)))
        link(self.path + PART_SUFFIX)
        Path(self.path + PART_SUFFIX).rename(self.path)
        os.close(self.fd)

    def remove(self) -> None:
        """Remove the file. Its descriptor stays open because other threads may still write to it."""
        Path(self.path + PART_SUFFIX).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove and close the file; no thread may still write to it."""
        self.remove()
        os.close(self.fd)


# the folders that ranks read -------------------------------------------------------------------------


class LinkTree:
    """A job's folders on one node, one for each source, with links into the cache. Removes earlier folders."""

    def __init__(self, cache: Cache, job: str, node: int) -> None:
        self._root = cache.staged / job / str(node)
        self._created: set[str] = set()
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir(parents=True, mode=0o700)

    def make_folder(self, source: str, path: str = "") -> str:
        """Return the folder of a source, or one below it; create it if necessary."""
        folder = str(self._root / source / path)
        if folder not in self._created:
            Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
            self._created.add(folder)
        return folder

    def add(self, source: str, path: str, file: str) -> None:
        """Link to ``file`` of the cache as ``path`` below a source's folder.

        Raises FileNotFoundError if the file was removed, FileExistsError if the file system does not distinguish upper
        and lower case and another file has that name, and StagingFailed if it has no hard links.
        """
        folder, _, name = path.rpartition("/")
        link = f"{self.make_folder(source, folder)}/{name}"
        try:
            os.link(file, link)
        except OSError as error:
            if error.errno not in _NO_LINK_ERRORS:
                raise
            reason = f"{self._root} is on a file system without hard links ({error.strerror})."
            raise StagingFailed(reason, _FOLDER_REMEDY, source) from None


def remove_links(job: str, base: str = "") -> None:
    """Remove the job's folders of links on this machine, but not the cached files. Raises OSError."""
    staged = Cache(base).staged
    if permissions.is_own(staged) and permissions.is_own(staged / job):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(staged / job)


# paths that are used in place, and copies of folders ------------------------------------------------


def fingerprint(path: str) -> dict[str, Any]:
    """Return a fingerprint to compare a path between machines: names and sizes of the first level. Raises OSError."""
    root = Path(path)
    if root.is_dir():
        with os.scandir(root) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
        lines = [f"{entry.name}\0{entry.stat().st_size if entry.is_file() else ''}" for entry in entries[:_MAX_ENTRIES]]
        count = len(entries)
    else:
        count, lines = 1, [f"{root.name}\0{root.stat().st_size}"]
    digest = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
    return {"entries": count, "sum": digest[:16]}


def check_path(name: str, path: str, expected: dict[str, Any] | None) -> str:
    """Return the path of a source on this node. Raises StagingFailed if the node cannot access the source."""
    local, problem = str(Path(path).expanduser()), ""
    try:
        actual = fingerprint(local)
        if not os.access(local, os.R_OK | (os.X_OK if Path(local).is_dir() else 0)):
            problem = "is not readable on this node"
        elif expected is not None and expected != actual:
            counts = f"{actual['entries']} on this node, {expected.get('entries')} on the others"
            problem = f"has different files on this node than on the other machines ({counts})"
    except FileNotFoundError:
        problem = "does not exist on this node"
    except OSError as error:
        problem = f"cannot be read on this node ({error.strerror})"
    if problem:
        raise StagingFailed(f"{path} {problem}.", _SHARED_REMEDY, name)
    return local


def find_copy(digest: str, base: str) -> str:
    """Return the copied folder with this content, or "" if there is none.

    Raises ValueError for an invalid digest, and PermissionError if another user could have written it.
    """
    folder = _make_copies_folder(digest, base) / digest
    return str(permissions.make_private(folder)) if os.path.lexists(folder) else ""


def _make_copies_folder(digest: str, base: str) -> Path:
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is not a valid digest.")
    return permissions.make_private(permissions.make_folder(Path(base or DEFAULT_BASE).expanduser()) / "copies")


class FolderCopy:
    """A copy that is received in the hidden ``folder`` and renamed when complete. Raises OSError, ValueError."""

    def __init__(self, digest: str, base: str) -> None:
        self._target = _make_copies_folder(digest, base) / digest
        self.folder = self._target.with_name(f".{digest}-{os.getpid()}")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)

    def finish(self, unpack: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Let ``unpack`` fill the folder, publish it, and return its path with the fields that ``unpack`` returns."""
        try:
            fields = unpack()
            with contextlib.suppress(OSError):  # another job has copied the same folder
                self.folder.rename(self._target)
            if not permissions.is_own(self._target):
                raise OSError(f"{self._target} cannot be created.")
            return {"path": str(self._target), **fields}
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
