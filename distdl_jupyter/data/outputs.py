"""Uploads a job's files to Blob: outputs, values, and the log of a failed job.

Each job uses its own prefix ``<prefix>/<job id>/``. A blob with the same size and MD5 is not uploaded again. Local
files are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.core.data import parse_blob
from distdl_jupyter.core.logfile import read_batches, split_lines
from distdl_jupyter.data.sources import translate_errors

if TYPE_CHECKING:
    from azure.storage.blob import BlobProperties, BlobServiceClient, ContainerClient

    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder

#: The number of concurrent uploads, and of concurrent parts of a file.
_MAX_UPLOADS, _MAX_PARTS = 4, 2
_FOLDERS = ("outputs", "results")
LOG = "log.txt"


class UploadStopped(Exception):
    """The upload was stopped."""


class UploadSummary(NamedTuple):
    """The result: uploaded files and bytes, and the number of files that existed already (``existing``)."""

    files: int
    bytes: int
    existing: int


def url(spec: JobSpec) -> str:
    """Return the address of a job's files."""
    return f"{spec.outputs.rstrip('/')}/{spec.id}"


def upload(
    folder: JobFolder,
    spec: JobSpec,
    open_account: Callable[[str], BlobServiceClient],
    *,
    with_log: bool,
    stopped: Callable[[], bool] = lambda: False,
) -> UploadSummary:
    """Upload the files of an ended job, and its log if requested.

    ``open_account`` opens a storage account as the signed-in user. Raises DataUnavailable, NotSignedIn, OSError, and
    UploadStopped soon after ``stopped`` returns true.
    """
    target = parse_blob(url(spec), "outputs")
    account = open_account(target.account)
    with translate_errors(url(spec), writing=True), closing(account):
        container = account.get_container_client(target.container)
        with NamedTemporaryFile() as log, ThreadPoolExecutor(_MAX_UPLOADS) as pool:
            files = {f"{target.prefix}/{path.relative_to(folder.path).as_posix()}": path for path in _files(folder)}
            if with_log:
                log.writelines(_log_lines(folder))
                log.flush()
                files[f"{target.prefix}/{LOG}"] = Path(log.name)
            blobs = container.list_blobs(name_starts_with=f"{target.prefix}/") if files else ()
            known = {blob.name: blob for blob in blobs}
            work = [pool.submit(_send, container, name, path, known.get(name), stopped) for name, path in files.items()]
            try:
                sizes = [future.result() for future in as_completed(work)]
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    uploaded = [size for size in sizes if size is not None]
    return UploadSummary(len(uploaded), sum(uploaded), len(sizes) - len(uploaded))


def _files(folder: JobFolder) -> Iterator[Path]:
    """Yield the regular files, except links to outside the job's folder."""
    root = folder.path.resolve()
    for name in _FOLDERS:
        for path in sorted((folder.path / name).rglob("*")):
            if path.is_file() and path.resolve().is_relative_to(root):
                yield path


def _send(
    container: ContainerClient, name: str, path: Path, existing: BlobProperties | None, stopped: Callable[[], bool]
) -> int | None:
    """Upload one file and return its size, None if an identical blob exists."""
    from azure.core import MatchConditions
    from azure.storage.blob import ContentSettings

    def raise_if_stopped(*_: int | None) -> None:
        if stopped():
            raise UploadStopped

    raise_if_stopped()
    with path.open("rb") as file:
        size, md5 = path.stat().st_size, hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).digest()
        condition: dict[str, Any] = {"match_condition": MatchConditions.IfMissing}
        if existing is not None:
            if (existing.size, bytes(existing.content_settings.content_md5 or b"")) == (size, md5):
                return None
            condition = {"etag": existing.etag, "match_condition": MatchConditions.IfNotModified, "overwrite": True}
        file.seek(0)
        container.get_blob_client(name).upload_blob(
            file,
            length=size,
            max_concurrency=_MAX_PARTS,
            content_settings=ContentSettings(content_md5=bytearray(md5)),
            progress_hook=raise_if_stopped,
            **condition,
        )
    return size


def _log_lines(folder: JobFolder) -> Iterator[bytes]:
    """Yield the lines of the log as text; equal events give equal bytes."""
    for events, _ in read_batches(folder.log):
        for line in split_lines(events):
            rank = "job" if line.rank is None else line.rank
            time = datetime.fromtimestamp(line.time, UTC).isoformat(timespec="milliseconds")
            yield f"{time} [{rank}] {line.text}\n".encode()
