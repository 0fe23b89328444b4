"""HTTP API for the files of a job: its log, outputs, pictures and profile traces.

A checkpoint that ranks wrote in parts is one entry of the list of outputs and is downloaded as one archive. Paths and
links that point outside the job's ``outputs`` folder are never read.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from distdl_jupyter.api.call import BYTES, Context, Download, get, job
from distdl_jupyter.core import logfile
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.humanize import clock, printable
from distdl_jupyter.core.logfile import lines_of
from distdl_jupyter.jobs.reader import JobReader, PageReader
from distdl_jupyter.node import files
from distdl_jupyter.views.job_page import LogChanges, log_changes
from distdl_jupyter.worker.hooks import frameworks

_CHUNK = 1 << 20
#: Maximum number of listed files.
MOST = 10_000
_SHARD = re.compile(frameworks.SHARDS)
_TEXT = "text/plain"


@get("/jobs/{id}/log", media=_TEXT, refuses=(404,))
async def log(
    context: Context,
    id_: str,
    *,
    first: Annotated[int, Meta(ge=0, description="number of the first row")] = 0,
    before: Annotated[int, Meta(ge=0, description="number of the row after the last one")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=10_000, description="maximum number of rows")] = 1000,
    rank: Annotated[int, Meta(ge=0, description="only rows of this rank")] | None = None,
    format: Literal["json", "text"] = "json",  # noqa: A002  its name in the address
) -> LogChanges | Download:
    """Return rows of the log, or all of it as a file (``format=text``).

    The rows are the newest ``limit`` rows from ``first`` on and below ``before``.
    """
    if format == "text":
        name = f"{id_}{'' if rank is None else f'-rank-{rank}'}.log"
        reader = await context.run(lambda: JobReader(job(id_).folder, lines=True))
        return Download(_log_text(reader, rank), f"{_TEXT}; charset=utf-8", name)

    def rows(reading: PageReader) -> LogChanges:
        book = reading.log
        end = book.next if before is None else before
        if rank is None:
            rows = [row for row in reading.window.before(end, limit) if row.n >= first]
        else:
            rows = [row for row in book.between(first, end) if rank in row.lines][-limit:]
        return log_changes(book, rows)

    changes: LogChanges = await context.read_job(id_, rows)
    return changes


def _log_text(follower: JobReader, rank: int | None) -> Generator[bytes, None, None]:
    """Yield the present lines of the log with their time and rank, some megabytes at a time."""
    with_rank = follower.view.process_count > 1 and rank is None
    end = logfile.size(follower.folder.log)
    while follower.log_cursor < end and (batch := follower.read()):
        lines = [line for line in lines_of(batch) if rank is None or line.rank == rank]
        yield "".join(
            f"{clock(line.time)} {_rank_label(line.rank) if with_rank else ''}{printable(line.text, 1 << 20)}\n"
            for line in lines
        ).encode("utf-8", "replace")


def _rank_label(rank: int | None) -> str:
    return "     " if rank is None else f"[{rank}] ".rjust(5)


@dataclass(frozen=True, slots=True)
class Output:
    """One file below a job's outputs, or the folder of a sharded checkpoint with several ``files``."""

    path: str
    size: int
    modified: float
    files: int = 1


@dataclass(frozen=True, slots=True)
class OutputList:
    """All files below a job's outputs, in order of their paths."""

    outputs: tuple[Output, ...]


@get("/jobs/{id}/outputs", refuses=(404,))
def outputs(id_: str) -> OutputList:
    """List the files in the job's outputs."""
    folders: dict[str, list[Output]] = {}
    for entry in itertools.islice(_files(job(id_).folder.outputs), MOST):
        folders.setdefault(entry.path.rpartition("/")[0], []).append(entry)
    entries: list[Output] = []
    for folder, inside in folders.items():
        if folder and any(_SHARD.fullmatch(entry.path.rpartition("/")[2]) for entry in inside):
            size, modified = sum(entry.size for entry in inside), max(entry.modified for entry in inside)
            entries.append(Output(folder, size, modified, len(inside)))
        else:
            entries += inside
    return OutputList(tuple(sorted(entries, key=lambda output: output.path)))


def _files(root: Path) -> Iterator[Output]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            status = _status(root, path)
            if status is not None:
                # Bytes that are not UTF-8 cannot be part of an address: they are shown as question marks.
                shown = path.relative_to(root).as_posix().encode("utf-8", "replace").decode()
                yield Output(shown, status.st_size, status.st_mtime)


def _status(root: Path, path: Path) -> os.stat_result | None:
    """Return the status of a regular file below ``root``, None for everything else."""
    try:
        if not path.resolve(strict=True).is_relative_to(root.resolve(strict=True)):
            return None
        status = path.stat()
    except (OSError, RuntimeError, ValueError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


@get("/jobs/{id}/outputs/{path}", media=BYTES, refuses=(404,))
def output(id_: str, path: str) -> Download:
    """Download one file, or a sharded checkpoint as a tar archive."""
    root = job(id_).folder.outputs
    if "\0" not in path and _status(root, root / path) is not None:
        # Between the check and the opening, only the user's own processes can put a link here.
        return _file((root / path).resolve(), Path(path).name)
    if any(entry.path == path and entry.files > 1 for entry in outputs(id_).outputs):
        return Download(_archive(root, path), BYTES, f"{Path(path).name}.tar")
    raise JobNotFound(f"Job {id_} has no such output file.", code="output-unknown", hint="Reload the list of outputs.")


def _file(path: Path, name: str) -> Download:
    """Return a file as a download; of a file that grows, only its present size is sent."""
    size = path.stat().st_size

    def chunks() -> Generator[bytes, None, None]:
        with path.open("rb") as file:
            left = size
            while chunk := file.read(min(_CHUNK, left)):
                left -= len(chunk)
                yield chunk

    return Download(chunks(), BYTES, name, size)


def _archive(root: Path, path: str) -> Generator[bytes, None, None]:
    """Yield a folder as a tar archive that is packed while it is read."""
    end, begin = os.pipe()

    def pack() -> None:
        # The reader may close its end early.
        with contextlib.suppress(OSError, files.Refused), open(begin, "wb") as archive:  # noqa: PTH123
            files.pack(root, [path], archive.write)

    threading.Thread(target=pack, name="distdl archive", daemon=True).start()
    with open(end, "rb") as file:  # noqa: PTH123  a number, not a path
        while chunk := file.read(_CHUNK):
            yield chunk


@get("/jobs/{id}/profile/{number}/trace", media=BYTES, refuses=(404,))
def trace(id_: str, number: str, *, rank: Annotated[int, Meta(ge=0)] = 0) -> Download:
    """Download the Chrome trace of one rank, gzipped JSON that https://ui.perfetto.dev opens."""
    profile = job(id_).profile(kept=True, number=int(number))
    if rank not in profile.traces:
        raise JobNotFound(
            f"Job {id_} has no such trace.", code="trace-unknown", hint="The job's card lists its profiles by number."
        )
    return _file(profile.traces[rank], f"{id_}-profile-{number}-rank-{rank}.json.gz")


@get("/jobs/{id}/pictures/{number}", media="image/*", refuses=(404,))
def picture(id_: str, number: str) -> Download:
    """Return a picture by its number, as PNG or JPEG."""
    known = job(id_).folder.read_picture(int(number))
    if known is None:
        raise JobNotFound(
            f"Job {id_} has no such image.", code="picture-unknown", hint="The job's card lists its images by number."
        )
    data, form = known
    return Download(
        (piece for piece in (data,)), f"image/{form}", size=len(data), cache="private, max-age=86400, immutable"
    )
