"""A job's files on their way back to Blob: outputs, values, and the log of a job that failed.

Everything lies below ``<prefix>/<job id>/``, so that no job touches another's. What is there already with the same size
and MD5 sum is left alone, so a delivery that broke off goes on where it was. Logs are append blobs, written at a
position that is stated: a line that has arrived does not arrive twice, whoever repeats it. The files here stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.core.data import BlobPlace, blob_place
from distdl_jupyter.core.logfile import batches
from distdl_jupyter.core.logline import lines_of
from distdl_jupyter.storage import access
from distdl_jupyter.storage.failures import translated

if TYPE_CHECKING:
    from azure.storage.blob import BlobClient, ContainerClient

    from distdl_jupyter.core.logline import LogLine
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder

#: Files that are sent at the same time, and parts of each.
_FILES, _PARTS = 4, 2
#: Bytes of one append; the service takes up to 100 MiB (learn.microsoft.com/rest/api/storageservices/append-block).
_APPEND = 4 * 2**20
#: The position of an append is not the blob's end (412 Precondition Failed).
_NOT_THERE = 412
_FOLDERS = ("outputs", "results")
LOG = "log.txt"


class Stopped(Exception):
    """Somebody asked the delivery to end."""


class Delivered(NamedTuple):
    """What arrived: files and bytes that were sent, files that were there already, and a warning for the user or ""."""

    files: int
    bytes: int
    there: int
    warning: str = ""


class _Known(NamedTuple):
    size: int
    md5: bytes
    etag: str


def target(spec: JobSpec) -> BlobPlace:
    """Return the place of a job's own files."""
    given = blob_place(spec.outputs, "outputs")
    prefix = f"{given.prefix}/{spec.id}" if given.prefix else spec.id
    return BlobPlace(account=given.account, container=given.container, prefix=prefix)


def url(spec: JobSpec) -> str:
    """Return that place as text."""
    place = target(spec)
    return f"blob://{place.account}/{place.container}/{place.prefix}"


def deliver(
    folder: JobFolder, spec: JobSpec, *, with_log: bool, stopped: Callable[[], bool] = lambda: False
) -> Delivered:
    """Send the files of a job that has ended, and its log where asked for.

    Raises DataUnavailable, NotSignedIn, OSError, and Stopped soon after ``stopped`` says so.
    """
    place = target(spec)
    account = access.account(place.account)
    with translated(url(spec), writing=True), closing(account.client):
        container = account.client.get_container_client(place.container)
        files = list(_files(folder))
        known = _known(container, f"{place.prefix}/") if files else {}
        sent = there = count = 0
        with ThreadPoolExecutor(_FILES) as pool:
            names = [(f"{place.prefix}/{path.relative_to(folder.path).as_posix()}", path) for path in files]
            work = [pool.submit(_send, container, name, path, known.get(name), stopped) for name, path in names]
            try:
                for one in as_completed(work):
                    size = one.result()
                    there, sent, count = there + (size is None), sent + (size or 0), count + (size is not None)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        if with_log:
            sent += append(container.get_blob_client(f"{place.prefix}/{LOG}"), _log(folder), stopped)
    return Delivered(count, sent, there, account.warning)


def _files(folder: JobFolder) -> Iterator[Path]:
    """Yield the regular files; a link that leads out of the job's folder is none of its own."""
    root = folder.path.resolve()
    for name in _FOLDERS:
        for path in sorted((folder.path / name).rglob("*")):
            if path.is_file() and path.resolve().is_relative_to(root):
                yield path


def _known(container: ContainerClient, prefix: str) -> dict[str, _Known]:
    return {
        blob.name: _Known(int(blob.size), bytes(blob.content_settings.content_md5 or b""), str(blob.etag))
        for blob in container.list_blobs(name_starts_with=prefix)
    }


def _send(
    container: ContainerClient, name: str, path: Path, known: _Known | None, stopped: Callable[[], bool]
) -> int | None:
    """Send one file and return its bytes, None when the same is there."""
    from azure.core import MatchConditions
    from azure.storage.blob import ContentSettings

    size, md5 = path.stat().st_size, _md5(path, stopped)
    if known is not None and (known.size, known.md5) == (size, md5):
        return None
    condition: dict[str, Any] = {"match_condition": MatchConditions.IfMissing}
    if known is not None:
        condition = {"etag": known.etag, "match_condition": MatchConditions.IfNotModified, "overwrite": True}
    with path.open("rb") as file:
        container.get_blob_client(name).upload_blob(
            _Heeding(file, stopped), length=size, max_concurrency=_PARTS,
            content_settings=ContentSettings(content_md5=bytearray(md5)), **condition,
        )  # fmt: skip
    return size


def _md5(path: Path, stopped: Callable[[], bool]) -> bytes:
    found = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        heeding = _Heeding(file, stopped)
        while content := heeding.read(2**20):
            found.update(content)
    return found.digest()


class _Heeding:
    """A file that is read until somebody wants the delivery to end."""

    def __init__(self, file: Any, stopped: Callable[[], bool]) -> None:
        self._file = file
        self._stopped = stopped

    def read(self, size: int = -1) -> bytes:
        if self._stopped():
            raise Stopped
        return bytes(self._file.read(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


# the log --------------------------------------------------------------------------------------------


def append(blob: BlobClient, text: Iterable[bytes], stopped: Callable[[], bool] = lambda: False) -> int:
    """Let an append blob hold ``text``, of which it may hold the beginning already; return the bytes that were added.

    ``text`` comes in parts and is never held as a whole. Each append states the position where it must begin: one that
    had arrived although its answer was lost is refused (412) and not repeated.
    """
    begun = length = _length(blob)
    end = 0
    for piece in _pieces(text):
        begin, end = end, end + len(piece)
        while True:
            if stopped():
                raise Stopped
            if length >= end:
                break
            length = _append_at(blob, length, piece[length - begin :])
    return max(0, end - begun)


def _pieces(text: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the text in pieces as large as one append."""
    held = bytearray()
    for part in text:
        held += part
        while len(held) >= _APPEND:
            yield bytes(held[:_APPEND])
            del held[:_APPEND]
    if held:
        yield bytes(held)


def _append_at(blob: BlobClient, length: int, piece: bytes) -> int:
    """Append a piece to a blob of that length and return its new one. Raises HttpResponseError."""
    from azure.core import exceptions

    try:
        blob.append_block(piece, length=len(piece), appendpos_condition=length, validate_content=True)
    except exceptions.HttpResponseError as error:
        now = _length(blob) if error.status_code == _NOT_THERE else length
        if now <= length:
            raise
        return now
    return length + len(piece)


def _length(blob: BlobClient) -> int:
    """Return how much is there; a blob that is not is made."""
    from azure.core import MatchConditions, exceptions
    from azure.storage.blob import ContentSettings

    try:
        return int(blob.get_blob_properties().size)
    except exceptions.ResourceNotFoundError as error:
        if getattr(error, "error_code", "") == "ContainerNotFound":
            raise
    try:
        blob.create_append_blob(
            ContentSettings(content_type="text/plain; charset=utf-8"), match_condition=MatchConditions.IfMissing
        )
    except exceptions.ResourceExistsError:
        return int(blob.get_blob_properties().size)
    return 0


def _log(folder: JobFolder) -> Iterator[bytes]:
    """Yield the log as text, some megabytes at a time; the same events give the same bytes."""
    for found, _ in batches(folder.log):
        yield "".join(_line(line) for line in lines_of(found)).encode()


def _line(line: LogLine) -> str:
    who = "job" if line.rank is None else str(line.rank)
    when = datetime.fromtimestamp(line.time, UTC).isoformat(timespec="milliseconds")
    return f"{when} [{who}] {line.text}\n"
