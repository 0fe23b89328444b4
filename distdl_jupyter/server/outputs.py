"""The files that a job's training wrote for keeping: a list, and each as a download.

A checkpoint that the ranks have written in parts is one line of the list and comes as one archive. Nothing outside the
job's ``outputs`` folder is ever read, whatever a path or a link says.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.node import files
from distdl_jupyter.server.base import Handler, answers
from distdl_jupyter.server.jobs import attached
from distdl_jupyter.server.schema import Output, OutputList
from distdl_jupyter.worker.watch import frameworks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CHUNK = 1 << 20
#: Files that are listed at most.
MOST = 10_000
_SHARD = re.compile(frameworks.SHARDS)


class Outputs(Handler):
    """The list of files."""

    @answers(OutputList, refuses=(404,))
    async def get(self, id_: str) -> OutputList:
        """List the files in the job's outputs."""
        return await self.run_in_thread(_listed, id_)


def _listed(id_: str) -> OutputList:
    root = attached(id_).folder.outputs
    found = _together(itertools.islice(_files(root), MOST))
    return OutputList(tuple(sorted(found, key=lambda one: one.path)))


def _together(found: Iterable[Output]) -> Iterator[Output]:
    """Yield the files, those of a sharded checkpoint as one."""
    folders: dict[str, list[Output]] = {}
    for one in found:
        folders.setdefault(one.path.rpartition("/")[0], []).append(one)
    for folder, inside in folders.items():
        if folder and _is_sharded(one.path for one in inside):
            yield Output(folder, sum(one.size for one in inside), max(one.modified for one in inside), len(inside))
        else:
            yield from inside


def _is_sharded(paths: Iterable[str]) -> bool:
    return any(_SHARD.fullmatch(path.rpartition("/")[2]) for path in paths)


def _files(root: Path) -> Iterator[Output]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            known = _status(root, path)
            if known is not None:
                yield Output(_shown(path.relative_to(root).as_posix()), known.st_size, known.st_mtime)


def _shown(path: str) -> str:
    """Return a path as text; bytes that are no UTF-8 cannot be asked for and are shown as question marks."""
    return path.encode("utf-8", "replace").decode()


def _status(root: Path, path: Path) -> os.stat_result | None:
    """Return the status of a regular file below ``root``, None for anything else and for what lies outside."""
    try:
        if not path.resolve(strict=True).is_relative_to(root.resolve(strict=True)):
            return None
        known = path.stat()
    except (OSError, RuntimeError, ValueError):
        return None
    return known if stat.S_ISREG(known.st_mode) else None


class OutputFile(Handler):
    """One file, or a sharded checkpoint as a tar archive."""

    @answers(media="application/octet-stream", refuses=(404,))
    async def get(self, id_: str, path: str) -> None:
        """Download one file, or a sharded checkpoint as a tar archive."""
        await send(self, await self.run_in_thread(_opened, id_, path), Path(path).name)


async def send(handler: Handler, file: BinaryIO, name: str) -> None:
    """Answer with an open file as a download, in pieces, and close it; what is no regular file is an archive."""
    try:
        known = os.fstat(file.fileno())
        left = known.st_size if stat.S_ISREG(known.st_mode) else sys.maxsize
        if left < sys.maxsize:
            handler.set_header("Content-Length", left)
        handler.set_header("Content-Type", "application/octet-stream")
        handler.set_attachment_header(name + (".tar" if left == sys.maxsize else ""))
        handler.set_header("Cache-Control", "no-store")
        # A file that still grows is sent as long as it was.
        while left > 0 and (chunk := await handler.run_in_thread(file.read, min(_CHUNK, left))):
            handler.write(chunk)
            await handler.flush()
            left -= len(chunk)
    finally:
        file.close()
    handler.finish(set_content_type="application/octet-stream")


def _opened(id_: str, path: str) -> BinaryIO:
    root = attached(id_).folder.outputs
    if "\0" not in path and _status(root, root / path) is not None:
        # Between the look and the opening nobody but the user's own processes can put a link here.
        return (root / path).resolve().open("rb")
    if any(one.path == path and one.files > 1 for one in _listed(id_).outputs):
        return _packed(root, path)
    raise JobNotFound(f"Job {id_} has no such output file.", code="output-unknown", hint="Reload the list of outputs.")


def _packed(root: Path, path: str) -> BinaryIO:
    """Return what is below ``path`` as a tar archive, made while it is read."""
    end, begin = os.pipe()

    def pack() -> None:
        # Who reads may be gone before the end.
        with contextlib.suppress(OSError, files.Refused), open(begin, "wb") as archive:  # noqa: PTH123
            files.pack(root, [path], archive.write)

    threading.Thread(target=pack, name="distdl archive", daemon=True).start()
    return open(end, "rb")  # noqa: PTH123  a number, not a path
