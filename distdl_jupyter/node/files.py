"""Files of a job as a tar stream, out of a folder and into one, for either end of a connection.

Neither direction trusts what it meets: nothing is read through a link that leads out of the folder, and nothing is
written outside of it, whatever names the archive holds or links the folder has.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, Protocol, cast

#: Bytes that are written or read at once; a multiple of tar's 512.
_PIECE = 64 * 1024


class Refused(ValueError):
    """An archive or a list of paths would lead out of the folder; the text says where."""


class Moved(NamedTuple):
    """How many files were moved, their bytes, and what was left out because it is no file of the folder."""

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return ``size`` bytes, fewer only at the end."""


# out of a folder -----------------------------------------------------------------------------------


def pack(folder: Path, paths: Iterable[str], write: Callable[[bytes], object]) -> Moved:
    """Write the files below ``paths``, which are relative to ``folder``, as one tar; a path that is not there is none.

    Raises Refused for a path out of the folder, OSError for what cannot be read.
    """
    root = folder.resolve()
    files = count = 0
    skipped: list[str] = []
    with tarfile.open(fileobj=_Writer(write), mode="w|", bufsize=_PIECE, format=tarfile.PAX_FORMAT) as archive:
        for path in _without_inner({parts(one) for one in paths}):
            for name in _below(root, "/".join(path)):
                size = _add(archive, root, name)
                if size is None:
                    skipped.append(name)
                else:
                    files, count = files + 1, count + size
    return Moved(files, count, tuple(skipped))


def parts(name: str) -> tuple[str, ...]:
    """Return the parts of a relative path. Raises Refused for an absolute one and for one with ``..``."""
    found = PurePosixPath(name)
    if found.is_absolute() or not found.parts or ".." in found.parts or "\0" in name:
        raise Refused(f"{name!r} points outside the folder.")
    return found.parts


def _without_inner(paths: Collection[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Leave out paths that lie below another one."""
    return [path for path in sorted(paths) if not any(path[:length] in paths for length in range(1, len(path)))]


def _below(root: Path, path: str) -> Iterator[str]:
    """Yield what is below ``path`` and no folder, relative to ``root``; links to folders are not entered."""
    if not (root / path).is_dir() or (root / path).is_symlink():
        if os.path.lexists(root / path):
            yield path
        return
    for parent, folders, names in os.walk(root / path):
        at = Path(parent)
        links = [name for name in folders if (at / name).is_symlink()]
        yield from (str((at / name).relative_to(root)) for name in sorted(names + links))


def _add(archive: tarfile.TarFile, root: Path, name: str) -> int | None:
    """Add one file and return its size; None for what is no regular file, or a link out of the folder."""
    file = _opened(root, name)
    if file is None:
        return None
    with file:
        about = os.fstat(file.fileno())
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = about.st_size, about.st_mtime, about.st_mode & 0o700
        archive.addfile(info, _Exactly(file, info.size))
        return info.size


def _opened(root: Path, name: str) -> io.BufferedReader | None:
    """Open a regular file inside of ``root``; None for anything else and for what cannot be read."""
    with contextlib.suppress(OSError):
        target = (root / name).resolve(strict=True)
        if target.is_relative_to(root) and stat.S_ISREG(target.stat().st_mode):
            # O_NONBLOCK: a named pipe put in its place meanwhile would be waited for.
            return os.fdopen(os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    return None


class _Writer(io.RawIOBase):
    """A file that only takes."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def write(self, content: bytes) -> int:  # type: ignore[override]
        self._write(bytes(content))
        return len(content)


class _Exactly(io.RawIOBase):
    """A file as long as it was promised: one that is written to meanwhile may have become shorter or longer."""

    def __init__(self, file: io.BufferedReader, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1, /) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        content = self._file.read(wanted)
        self._left -= wanted
        return content + bytes(wanted - len(content))


# into a folder -------------------------------------------------------------------------------------


def unpack(folder: Path, stream: Readable, wanted: Callable[[str, int], bool] = lambda _name, _size: True) -> Moved:
    """Write the files of a tar into ``folder``; one that is there is replaced, one that is not ``wanted`` left out.

    Raises Refused for a member that is neither file nor folder or leads out, OSError, and tarfile.TarError for what is
    no tar.
    """
    files = count = 0
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|", bufsize=_PIECE) as archive:
            for member in archive:
                if not (member.isreg() or member.isdir()):
                    raise Refused(f"{member.name!r} is neither a regular file nor a folder.")
                *above, name = parts(member.name)
                if member.isdir():
                    os.close(_enter(root, [*above, name]))
                elif wanted(member.name, member.size):
                    _write(archive, member, root, above, name)
                    files, count = files + 1, count + member.size
    finally:
        os.close(root)
    return Moved(files, count)


def _enter(root: int, names: Iterable[str]) -> int:
    """Open the folder ``names`` below ``root``, making what is missing; a link on the way is refused."""
    fd = os.dup(root)
    for name in names:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=fd)
        try:
            deeper = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        except OSError:
            raise Refused(f"{name!r} is not a folder.") from None
        finally:
            os.close(fd)
        fd = deeper
    return fd


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, root: int, above: Iterable[str], name: str) -> None:
    parent = _enter(root, above)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600 | (member.mode & 0o100), dir_fd=parent)
        with open(fd, "wb") as file:  # noqa: PTH123
            source = archive.extractfile(member)
            assert source is not None, "a regular file has content"
            while content := source.read(_PIECE):
                file.write(content)
        os.utime(name, (member.mtime, member.mtime), dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(parent)
