"""Uploads a job's files to Azure Blob Storage: outputs, values, and the log of a failed job.

Each job has its own prefix ``<prefix>/<job id>/``. Blobs with the same size and MD5 are skipped. Local files are kept.
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

from distdl_jupyter.core import events, logfile
from distdl_jupyter.core.data import parse_blob
from distdl_jupyter.data.sources import translate_errors

if TYPE_CHECKING:
    from azure.storage.blob import BlobProperties, BlobServiceClient, ContainerClient

    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder

#: Maximum number of concurrent uploads.
_MAX_UPLOADS = 4
#: Maximum number of concurrently uploaded parts of a file.
_MAX_PARTS = 2
_UPLOADED_FOLDERS = ("outputs", "results")
LOG_NAME = "log.txt"


class UploadStopped(Exception):
    """The upload was stopped."""


class UploadSummary(NamedTuple):
    """Counts of uploaded files and bytes, and of files that already existed."""

    file_count: int
    byte_count: int
    existing_count: int


def build_url(spec: JobSpec) -> str:
    """Return the URL of a job's files in Azure Blob Storage."""
    return f"{spec.outputs.rstrip('/')}/{spec.id}"


def upload(
    folder: JobFolder,
    spec: JobSpec,
    open_account: Callable[[str], BlobServiceClient],
    *,
    include_log: bool,
    is_stopped: Callable[[], bool] = lambda: False,
) -> UploadSummary:
    """Upload the files of an ended job, with ``include_log`` also its log.

    ``open_account`` opens a storage account as the signed-in user. Raises DataUnavailable, NotSignedIn, OSError, and
    UploadStopped soon after ``is_stopped`` returns true.
    """
    target = parse_blob(build_url(spec), "outputs")
    account = open_account(target.account)
    with translate_errors(build_url(spec), for_writing=True), closing(account):
        container = account.get_container_client(target.container)
        with NamedTemporaryFile() as log, ThreadPoolExecutor(_MAX_UPLOADS) as pool:
            files = {f"{target.prefix}/{path.relative_to(folder.path).as_posix()}": path for path in _get_files(folder)}
            if include_log:
                log.writelines(_iter_log_lines(folder))
                log.flush()
                files[f"{target.prefix}/{LOG_NAME}"] = Path(log.name)
            blobs = container.list_blobs(name_starts_with=f"{target.prefix}/") if files else ()
            existing = {blob.name: blob for blob in blobs}
            send = partial(_send, container, is_stopped)
            futures = [pool.submit(send, name, path, existing.get(name)) for name, path in files.items()]
            try:
                sizes = [future.result() for future in as_completed(futures)]
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    uploaded = [size for size in sizes if size is not None]
    return UploadSummary(len(uploaded), sum(uploaded), len(sizes) - len(uploaded))


def _get_files(folder: JobFolder) -> Iterator[Path]:
    """Yield the regular files, except links that point outside the job's folder."""
    root = folder.path.resolve()
    for name in _UPLOADED_FOLDERS:
        for path in sorted((folder.path / name).rglob("*")):
            if path.is_file() and path.resolve().is_relative_to(root):
                yield path


def _send(
    container: ContainerClient, is_stopped: Callable[[], bool], name: str, path: Path, existing: BlobProperties | None
) -> int | None:
    """Upload one file and return its size, or None if an identical blob exists."""
    from azure.core import MatchConditions
    from azure.storage.blob import ContentSettings

    def raise_if_stopped(*_: int | None) -> None:
        if is_stopped():
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


def _iter_log_lines(folder: JobFolder) -> Iterator[bytes]:
    """Yield the lines of the log as text; equal events give equal bytes."""
    for batch, _ in events.read_batches(folder.log, 0, logfile.read):
        for line in logfile.split_lines(batch):
            rank = "job" if line.rank is None else line.rank
            time = datetime.fromtimestamp(line.time, UTC).isoformat(timespec="milliseconds")
            yield f"{time} [{rank}] {line.text}\n".encode()
