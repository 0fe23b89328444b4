"""Manage a job's folder on this host, and transfer files from and to a folder as tar streams.

If this host shares the job's folder, the agent uses it; otherwise it uses a copy that is removed at the end. The
supervisor writes a random text into the job's folder; an agent that reads the same text there shares the folder.
Streams are not trusted in either direction: nothing is read through a link that leads out of the folder, and nothing is
written outside the folder, whatever names the archive or links the folder contains.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import IO, NamedTuple, cast

from distdl_jupyter import permissions
from distdl_jupyter.node.channels import Inbox

#: Bytes of one read or write; a multiple of tar's block size of 512.
_CHUNK_BYTES = 64 * 1024


class TransferRefused(ValueError):
    """An archive or a path was rejected, for example because it leads out of the folder; the message says why."""


class TransferSummary(NamedTuple):
    """The number of files transferred, their bytes, and the paths skipped because they are not files in the folder."""

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()


# pack a folder -------------------------------------------------------------------------------------


def pack(folder: Path, paths: Iterable[str], write: Callable[[bytes], object]) -> TransferSummary:
    """Write the files below ``paths``, relative to ``folder``, as one tar; missing paths are skipped.

    Raises TransferRefused for a path outside the folder, and OSError if a path cannot be read.
    """
    root, requested = folder.resolve(), {split_path(path) for path in paths}
    outermost = [path for path in sorted(requested) if not any(path[:end] in requested for end in range(1, len(path)))]
    files = byte_count = 0
    skipped: list[str] = []
    target = cast("IO[bytes]", SimpleNamespace(write=lambda content: content and write(bytes(content))))
    with tarfile.open(fileobj=target, mode="w|", bufsize=_CHUNK_BYTES, format=tarfile.PAX_FORMAT) as archive:
        for name in (name for path in outermost for name in _list_files(root, "/".join(path))):
            if (file := _open_regular_file(root, name)) is None:
                skipped.append(name)
                continue
            with file:
                status = os.fstat(file.fileno())
                info = tarfile.TarInfo(name)
                info.size, info.mtime, info.mode = status.st_size, status.st_mtime, status.st_mode & 0o700
                # Padded, because the file may be truncated while it is read.
                padded = SimpleNamespace(read=lambda size, file=file: file.read(size).ljust(size, b"\0"))
                archive.addfile(info, cast("IO[bytes]", padded))
                files, byte_count = files + 1, byte_count + info.size
    return TransferSummary(files, byte_count, tuple(skipped))


def split_path(name: str) -> tuple[str, ...]:
    """Return the parts of a relative path. Raises TransferRefused for an absolute path and for ``..``."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise TransferRefused(f"{name!r} points outside the folder.")
    return path.parts


def _list_files(root: Path, path: str) -> Iterator[str]:
    """Yield everything below ``path`` except folders, relative to ``root``; links to folders are not followed."""
    if not (root / path).is_dir() or (root / path).is_symlink():
        if os.path.lexists(root / path):
            yield path
        return
    for parent, folders, names in os.walk(root / path):
        folder = Path(parent)
        links = [name for name in folders if (folder / name).is_symlink()]
        yield from (str((folder / name).relative_to(root)) for name in sorted(names + links))


def _open_regular_file(root: Path, name: str) -> io.BufferedReader | None:
    """Open a regular file inside ``root``; return None for anything else, a link out of it, or if it is unreadable."""
    with contextlib.suppress(OSError):
        target = (root / name).resolve(strict=True)
        if target.is_relative_to(root) and stat.S_ISREG(target.stat().st_mode):
            # O_NONBLOCK: do not block if the file was replaced by a named pipe.
            return os.fdopen(os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    return None


# unpack into a folder ------------------------------------------------------------------------------


def unpack(
    folder: Path, stream: IO[bytes] | Inbox, accepts: Callable[[str, int], bool] = lambda _name, _size: True
) -> TransferSummary:
    """Write the files of a tar into ``folder``, replacing existing files and skipping those that ``accepts`` rejects.

    Raises TransferRefused for a member that is outside the folder or neither a file nor a folder, tarfile.TarError for
    an invalid tar, and OSError.
    """
    files = byte_count = 0
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|", bufsize=_CHUNK_BYTES) as archive:
            for member in archive:
                if not (member.isreg() or member.isdir()):
                    raise TransferRefused(f"{member.name!r} is neither a regular file nor a folder.")
                *parents, name = split_path(member.name)
                if member.isdir():
                    os.close(_open_folder(root, [*parents, name]))
                elif accepts(member.name, member.size):
                    _extract(archive, member, root, parents, name)
                    files, byte_count = files + 1, byte_count + member.size
    finally:
        os.close(root)
    return TransferSummary(files, byte_count)


def _open_folder(root: int, names: Iterable[str]) -> int:
    """Open the folder ``names`` below ``root``; create missing folders and reject links."""
    fd = os.dup(root)
    for name in names:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=fd)
        try:
            child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        except OSError:
            raise TransferRefused(f"{name!r} is not a folder.") from None
        finally:
            os.close(fd)
        fd = child
    return fd


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, root: int, parents: Iterable[str], name: str) -> None:
    parent = _open_folder(root, parents)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600 | (member.mode & 0o100), dir_fd=parent)
        with open(fd, "wb") as file:  # noqa: PTH123
            source = archive.extractfile(member)
            assert source is not None, "a regular file has content"
            while content := source.read(_CHUNK_BYTES):
                file.write(content)
        os.utime(name, (member.mtime, member.mtime), dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(parent)


def receive_files(
    folder: Path, inbox: Inbox, accepts: Callable[[str, int], bool] = lambda _name, _size: True
) -> TransferSummary:
    """Unpack a tar as it arrives, then close the inbox. Raises OSError, and TransferRefused for an invalid archive."""
    try:
        summary = unpack(folder, inbox, accepts)
        while inbox.read(_CHUNK_BYTES):  # a tar may be padded after its end
            pass
    except tarfile.TarError as error:
        raise TransferRefused(f"The received data is not a valid tar archive: {error}.") from None
    finally:
        inbox.close()
    return summary


# the folder of a job -------------------------------------------------------------------------------


DEFAULT_BASE = "~/.cache/distdl"
#: Folders that ranks write to; kept if a job ends before they are collected.
RESULT_FOLDERS = ("outputs", "results")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: Folders that every copied folder of a job contains until it is collected.
_JOB_FOLDERS = ("code", *RESULT_FOLDERS)


class Workdir(NamedTuple):
    """The folder of a job's files; ``is_copy`` if it belongs to this agent alone."""

    folder: Path
    is_copy: bool


def find_workdir(job: str, folder: str, proof: tuple[str, str] | None, base: str) -> Workdir:
    """Return the job's folder if it contains the proof (name and text of a file), else a new folder below ``base``.

    Raises OSError, for example if other users could write to it, and ValueError if the job's or proof's name is a path.
    """
    if proof is not None:
        path = Path(folder) / check_name(proof[0])
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path.read_text(encoding="utf-8") == proof[1]:
                return Workdir(Path(folder), is_copy=False)
    jobs = _get_jobs_folder(base)
    base_path = jobs / check_name(job)
    permissions.make_folder(jobs.parent)
    permissions.make_private(jobs)
    for number in itertools.count(1):  # several agents may share this home or machine
        path = base_path if number == 1 else base_path.with_name(f"{job}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            break
    for name in _JOB_FOLDERS:
        (path / name).mkdir(mode=0o700)
    return Workdir(path, is_copy=True)


def check_name(name: str) -> str:
    """Return the name unchanged. Raises ValueError if it is a path."""
    if not _NAME_PATTERN.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid name.")
    return name


def _get_jobs_folder(base: str) -> Path:
    return Path(base or DEFAULT_BASE).expanduser() / "jobs"


def find_copied_folders(job: str, base: str) -> Iterator[Path]:
    """Yield the copied folders that agents of a job have left below ``base``."""
    folder = _get_jobs_folder(base) / check_name(job)
    for number in itertools.count(2):
        if not folder.is_dir():
            return
        if permissions.is_own(folder) and any((folder / name).is_dir() for name in _JOB_FOLDERS):
            yield folder
        folder = folder.with_name(f"{job}-{number}")


def remove_except_results(folder: Path) -> None:
    """Remove a copied folder that was not collected, except for results and outputs."""
    result_names = [name for name in RESULT_FOLDERS if any((folder / name).glob("*"))]
    if not result_names:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink() and entry.name not in result_names:
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name not in result_names:
            entry.unlink(missing_ok=True)
