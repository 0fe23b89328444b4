"""A cache of the rows of ended jobs in one file, because a thousand small files take many times longer to open.

``ended.jsonl`` in the data directory may be deleted at any time. A supervisor appends the row of its job when the job
has ended; a process that lists the jobs adds missing rows. Duplicate rows are read once. An ended job does not change
(see ``core.state``), so its row is not compared with its folder; rows of jobs without a folder are not listed.

Each row is one line in one write, so that several processes may append at the same time::

    [version, {"row": {...}, "cluster": ..., "hosts": [...], "check": ...}]
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from distdl_jupyter.core import atomic_write
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.views.job_table import JobRow, job_row

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.view import JobView

#: Raise it when the rules by which a row is made change.
RULES = 8
VERSION = f"{RULES}-{zlib.crc32(repr(tuple(JobRow.__dataclass_fields__)).encode()):08x}"
#: Lines of removed jobs that the file may have besides as many as there are jobs.
_SPARE = 200


@dataclass(frozen=True, slots=True)
class Listed:
    """A row with the type of the job's cluster and the hosts of its ranks, which pages do not get.

    ``check`` is the id of the check whose steps this job did on one process, "" for any other job.
    """

    row: JobRow
    cluster: str
    hosts: tuple[str, ...]
    check: str = ""

    @property
    def active(self) -> bool:
        """Whether the job has not ended."""
        return not State(self.row.state).ended


def listed(folder: JobFolder, view: JobView, spec: JobSpec) -> Listed:
    """Return a job as it is now."""
    hosts = tuple(dict.fromkeys(rank.host for rank in view.ranks if rank.host))
    ended = view.state.ended
    row = job_row(view, spec, time.time(), has_checkpoints=ended and folder.has_checkpoints,
                  group_value=_group_value(folder, view, spec) if ended else None)  # fmt: skip
    return Listed(row, spec.cluster, hosts, Path(str(spec.check.get("replay", ""))).name)


def _group_value(folder: JobFolder, view: JobView, spec: JobSpec) -> float | None:
    """Return what an ended run of a scaling study is compared by with the others, None for one that was cut off."""
    if spec.group is None or spec.group.kind != "scale":
        return None
    from distdl_jupyter.core import scaling, step_times  # few jobs are runs of a study

    times = step_times.read(folder.steps)
    run = scaling.measured(times) if times.rows else None
    return run.rate if run and run.is_whole(view.state, spec.group.plan.get("seconds", 0.0)) else None


def leave(folder: JobFolder, view: JobView, spec: JobSpec) -> None:
    """Store the row of a job that has just ended. An error of the file system is ignored."""
    entry = listed(folder, view, spec)
    if not entry.active:
        with contextlib.suppress(OSError):
            _append(JobStore(folder.path.parent.parent).ended, _encoded(entry))


class Ended:
    """The file's rows by id. ``refresh`` reads what other processes appended. Use it from one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = 0
        self._cursor = self._lines = 0
        self.rows: dict[str, Listed] = {}

    def refresh(self) -> None:
        """Read the lines after the last one that was read, or all lines if the file was replaced."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            now = os.fstat(file.fileno())
            if now.st_ino != self._identity or now.st_size < self._cursor:
                self._identity, self._cursor, self._lines = now.st_ino, 0, 0
            if now.st_size > self._cursor:
                file.seek(self._cursor)
                self._take(file.read())

    def _take(self, data: bytes) -> None:
        whole_lines = data[: data.rfind(b"\n") + 1]
        self._cursor += len(whole_lines)
        for line in whole_lines.splitlines():
            self._lines += 1
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # damaged, or of another version
                version, entry = _decoder.decode(line)
                if version == VERSION and not entry.active:
                    self.rows[entry.row.id] = entry

    def add(self, new: Iterable[Listed]) -> None:
        """Store rows of ended jobs. If they cannot be stored, other processes read those jobs themselves."""
        lines = []
        for entry in new:
            self.rows[entry.row.id] = entry
            lines.append(_encoded(entry))
        with contextlib.suppress(OSError):
            _append(self._path, b"".join(lines))

    def tidy(self, ids: Collection[str]) -> None:
        """Drop the rows of removed jobs, and rewrite the file if it has too many of them.

        A line that another process appends meanwhile may be lost; then that job is read once more.
        """
        for id_ in [id_ for id_ in self.rows if id_ not in ids]:
            del self.rows[id_]
        if self._lines > 2 * len(self.rows) + _SPARE:
            with contextlib.suppress(OSError):
                atomic_write.keep(self._path, b"".join(map(_encoded, self.rows.values())).decode())
                self._identity = 0


def _append(path: Path, lines: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" + lines if torn else lines)
    finally:
        os.close(descriptor)


def _encoded(entry: Listed) -> bytes:
    return msgspec.json.encode((VERSION, entry)) + b"\n"


_decoder = msgspec.json.Decoder(tuple[str, Listed])
