"""The stager: copies a job's data and packages to the disk of one node, verified and cached.

``python -m distdl_jupyter.data.stager`` runs on each node with the Python of the ranks. Objects are read with obstore,
which that Python needs unless all sources are paths. A cached file is not fetched again; an interrupted download
starts over. The stager reads one line of JSON, its request (the arguments of ``DataStager`` and ``StagedSource``), and
writes lines of JSON:

    {"job": id, "node": 0, "base": "" or a folder, "limit_bytes": int or null, "workers": int, "ca": PEM or "",
     "sources": [
       {"name": "train", "variable": "DISTDL_DATA_TRAIN", "kind": "blob", "s3", "gs" or "https",
        "address": "https://account.blob.core.windows.net/container", "s3://bucket", "gs://bucket" or "https://host",
        "prefix": "cifar", "settings": {"region", "endpoint"} of the submitting machine, for S3,
        "items": [[whole name, size, version (see ``stores``), MD5 of the content in base64 or ""], ...]},
       {"name": "labels", "variable": "DISTDL_DATA_LABELS", "kind": "path", "path": "/mnt/labels",
        "fingerprint": what ``data_cache.fingerprint`` returned on the submitting machine, or null}],
     "packages": null or the fields of ``packages.PackageRequest``}

    {"type": "renew", "source": "train"}         waits for a response on standard input (Blob only):
        {"type": "sas", "source": "train", "sas": "sv=...&sig=..."}
    {"type": "progress", "source", "done", "total", "cached" (bytes from the cache), "files", "of"}
    {"type": "note", "source": name or "", "level": "info" or "warning", "text", "code"}
    {"type": "failed", "source": name or "", "text", "remedy"}              and exit code 1
    {"type": "staged", "paths": {variable: folder}, "bytes": fetched, "cached", "seconds",
     "python": its path in the packages' environment, or ""}               and exit code 0

The program exits immediately when standard input ends.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import queue
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, NamedTuple

from distdl_jupyter.data import packages, stores
from distdl_jupyter.node import data_cache
from distdl_jupyter.node.data_cache import Cache, LinkTree, PartialFile, StagingFailed

#: Bytes per request; larger files are read by several concurrent requests.
RANGE_BYTES = 16 * 2**20
#: Bytes per write.
_CHUNK_BYTES = 256 * 1024
#: Seconds between two progress messages.
_REPORT_SECONDS = 0.25
#: Timeout in seconds for a signature; it is long because the user may have to sign in first.
_RENEW_TIMEOUT_SECONDS = 600.0
#: The maximum number of downloads of a file with a wrong checksum.
_MAX_DOWNLOADS = 3
#: Control characters, which obstore does not allow in names.
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
#: The maximum number of bytes of a name (NAME_MAX).
_MAX_NAME = 255
#: The maximum number of bytes of a path below the folder (PATH_MAX is 4096).
_MAX_PATH = 3000
_RENAME_HINT = "Rename the object, or use another prefix."
#: Exit code if the program that sent the request has ended.
_ORPHANED_EXIT_CODE = 3


# the request ----------------------------------------------------------------------------------------


class Item(NamedTuple):
    """One object: its ``version`` (see ``stores``), and its MD5 in base64. The MD5 is "" if it is unknown."""

    name: str
    size: int
    version: str
    md5: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSource:
    """One source of a node: objects below ``prefix`` at ``address``, or an existing ``path``."""

    name: str
    variable: str
    kind: str
    address: str = ""
    prefix: str = ""
    items: Sequence[Sequence[Any]] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    path: str = ""
    fingerprint: dict[str, Any] | None = None


def plan_layout(source: StagedSource) -> tuple[dict[str, Item], set[str]]:
    """Return the objects of a source by their path below its folder, and the empty folders.

    A name with a trailing slash is an empty folder, and so is an empty object whose name is a prefix of others.
    Raises StagingFailed for a name outside the folder, or one that is both a file and a folder.
    """
    files: dict[str, Item] = {}
    folders: set[str] = set()
    for item in map(Item._make, source.items):
        path = _get_relative_path(source, item.name)
        if not path or path.endswith("/"):
            if item.size:
                text = f"The object {item.name!r} has the name of a folder but contains data."
                raise StagingFailed(text, _RENAME_HINT, source.name)
            folders.add(path.removesuffix("/"))
        else:
            files[path] = item
    paths = [*files, *(f"{folder}/" for folder in folders)]
    for folder in {path[:end] for path in paths for end, char in enumerate(path) if char == "/"} & files.keys():
        if files.pop(folder).size:
            raise StagingFailed(f"The object {folder!r} would be both a file and a folder.", _RENAME_HINT, source.name)
    return files, folders


def _get_relative_path(source: StagedSource, name: str) -> str:
    """Return the path of an object below its prefix, with a trailing slash for a folder. Raises StagingFailed."""
    prefix = source.prefix.strip("/")
    parent = prefix.rpartition("/")[0] if name == prefix else prefix
    if parent and not name.startswith(f"{parent}/"):
        raise StagingFailed(f"The object {name!r} is not below the prefix {prefix!r}.", source=source.name)
    path = name[len(parent) + 1 :] if parent else name
    parts = path.removesuffix("/").split("/") if path else []
    is_short = len(os.fsencode(path)) <= _MAX_PATH and all(len(os.fsencode(part)) <= _MAX_NAME for part in parts)
    if {"", ".", ".."} & {*parts} or not is_short or _CONTROL_CHARACTER.search(path):
        raise StagingFailed(f"The object name {name[:300]!r} is not a valid file name.", _RENAME_HINT, source.name)
    return path


# messages -------------------------------------------------------------------------------------------


class StdioChannel:
    """Exchanges lines of JSON on standard input and output; thread-safe."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source = source
        self._sink = sink
        self._write_lock = threading.Lock()
        self._request_lock = threading.Lock()
        self._responses: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._has_finished = False

    def read_request(self) -> dict[str, Any]:
        """Return the request on the first line; after that, the program exits when its input ends."""
        request: dict[str, Any] = json.loads(self._source.readline())
        threading.Thread(target=self._read_responses, daemon=True).start()
        return request

    def send(self, message: dict[str, Any], *, is_last: bool = False) -> None:
        """Write a message; after one with ``is_last``, the reader may close both streams."""
        self._has_finished = is_last
        with self._write_lock:
            try:
                self._sink.write(json.dumps(message).encode() + b"\n")
                self._sink.flush()
            except OSError:
                os._exit(_ORPHANED_EXIT_CODE)

    def request_signature(self, source: str) -> str:
        """Request a signature for a source and return it. Raises StagingFailed."""
        with self._request_lock:
            self.send({"type": "renew", "source": source})
            try:
                # A new supervisor may repeat a response of the previous one.
                while (response := self._responses.get(timeout=_RENEW_TIMEOUT_SECONDS))["source"] != source:
                    pass
            except queue.Empty:
                raise StagingFailed(
                    f"The access token for {source} was not renewed within {_RENEW_TIMEOUT_SECONDS / 60:.0f} minutes.",
                    "Sign in to Azure again, and submit the job again.",
                    source,
                ) from None
            return str(response["sas"])

    def _read_responses(self) -> None:
        try:
            for line in self._source:
                self._responses.put(json.loads(line))
        finally:
            if not self._has_finished:
                os._exit(_ORPHANED_EXIT_CODE)


# the run --------------------------------------------------------------------------------------------


class StagedFile(NamedTuple):
    """An object that becomes a file: ``path`` in the folder of its source, ``cache_path`` in the cache."""

    source: StagedSource
    reader: stores.Reader
    item: Item
    path: str
    cache_path: str


class DataStager:
    """Executes a request, whose fields are the arguments; ``run`` raises StagingFailed."""

    def __init__(
        self,
        channel: StdioChannel,
        *,
        job: str,
        sources: Iterable[Mapping[str, Any]],
        node: int = 0,
        base: str = "",
        limit_bytes: int | None = None,
        workers: int = 8,
        ca: str = "",
        packages: Mapping[str, Any] | None = None,
    ) -> None:
        self._channel = channel
        self._job, self._node = job, node
        self._sources = [StagedSource(**source) for source in sources]
        self._limit_bytes, self._ca = limit_bytes, ca
        self._packages = packages
        self._cache = Cache(base)
        #: By source: completed and total bytes and files, and cached bytes.
        self._counts: dict[str, dict[str, int]] = {}
        self._sent_counts: dict[str, dict[str, int]] = {}
        self._count_lock = threading.Lock()
        self._sent_notes: set[tuple[str, str]] = set()
        self._clear_lock = threading.Lock()
        #: A separate pool for ranges, because threads that fetch files wait for it.
        self._file_pool = ThreadPoolExecutor(workers)
        self._range_pool = ThreadPoolExecutor(workers)

    def run(self) -> None:
        """Copy all sources and send their paths."""
        started = time.monotonic()
        paths = {
            source.variable: data_cache.check_path(source.name, source.path, source.fingerprint)
            for source in self._sources
            if source.kind == "path"
        }
        try:
            if stored_sources := [source for source in self._sources if source.kind != "path"]:
                paths |= self._fetch_all(stored_sources)
        except OSError as error:
            raise self._to_staging_failed(error) from None
        finally:
            for pool in (self._file_pool, self._range_pool):
                pool.shutdown(wait=False, cancel_futures=True)
        python = ""
        if self._packages:
            request = packages.PackageRequest(**self._packages)
            python = packages.PackageEnvironment(request, self._cache, self._show_package_progress).make()
        self._send_progress()
        done, cached = (sum(count[name] for count in self._counts.values()) for name in ("done", "cached"))
        result = {"paths": paths, "python": python, "bytes": done - cached, "cached": cached}
        seconds = round(time.monotonic() - started, 3)
        self._channel.send({"type": "staged", **result, "seconds": seconds}, is_last=True)

    def _fetch_all(self, sources: list[StagedSource]) -> dict[str, str]:
        self._cache.prepare()
        self._tree = LinkTree(self._cache, self._job, self._node)
        files = [file for source in sources for file in self._list_files(source)]
        missing = [file for file in files if not self._link_cached(file)]
        sizes = {file.cache_path: file.item.size for file in missing}
        excess = self._cache.make_room(sum(sizes.values()), self._limit_bytes)
        if excess and self._limit_bytes is not None:
            size = data_cache.format_size(excess)
            text = f"The data is {size} larger than the cache limit. The excess is deleted when the job ends."
            self._send_note("", "cache-limit", text)
        pending: set[Future[None]] = {self._file_pool.submit(self._fetch, file) for file in missing}
        while pending:
            done, pending = wait(pending, timeout=_REPORT_SECONDS, return_when="FIRST_EXCEPTION")
            for future in done:
                future.result()
            self._send_progress()
        return {source.variable: self._tree.make_folder(source.name) for source in sources}

    def _list_files(self, source: StagedSource) -> list[StagedFile]:
        """Create the folders of a source and return its files."""
        files, folders = plan_layout(source)
        for folder in ("", *folders):
            self._tree.make_folder(source.name, folder)
        total = sum(item.size for item in files.values())
        self._counts[source.name] = {"done": 0, "total": total, "cached": 0, "files": 0, "of": len(files)}
        sign = partial(self._channel.request_signature, source.name)
        settings = source.settings
        reader = stores.Reader(source.name, source.kind, source.address, ca=self._ca, settings=settings, sign=sign)
        return [
            StagedFile(source, reader, item, path, self._cache.get_path(source.address, item.name, item.version))
            for path, item in files.items()
        ]

    def _link_cached(self, file: StagedFile) -> bool:
        """Link to a file in the cache; return whether the cache has the file."""
        try:
            if not self._cache.has(file.cache_path, file.item.size):
                return False
            self._tree.add(file.source.name, file.path, file.cache_path)
        except FileNotFoundError:
            return False  # removed by another program between the two calls
        self._add_counts(file.source.name, done=file.item.size, cached=file.item.size, files=1)
        return True

    def _fetch(self, file: StagedFile) -> None:
        """Fetch a file unless another program or source is already fetching it."""
        name = file.source.name
        text = "The same data is already being downloaded and will be reused."
        part = PartialFile(file.cache_path, lambda: self._send_note(name, "elsewhere", text))
        if self._link_cached(file):
            part.close()
            return
        try:
            self._download(file, part)
            part.publish(lambda cached: self._tree.add(name, file.path, cached))
        except BaseException:
            part.remove()
            raise
        self._add_counts(name, files=1)

    def _download(self, file: StagedFile, part: PartialFile) -> None:
        """Fetch the content of a file; retry if its checksum is wrong."""
        name, item = file.source.name, file.item
        # Not every web server supports ranges.
        range_size = item.size if file.source.kind == "https" else RANGE_BYTES
        starts = range(0, item.size, range_size) if item.size else ()
        for _ in range(_MAX_DOWNLOADS):
            list(self._range_pool.map(lambda start: self._read_range(file, part, start, start + range_size), starts))
            if not item.md5 or base64.b64encode(part.compute_md5()).decode() == item.md5:
                return
            self._add_counts(name, done=-item.size)
            self._send_note(name, "damaged", f"{item.name!r} arrived damaged and is downloaded again.")
        text = f"{item.name!r} of {name} arrived with a wrong checksum several times."
        raise StagingFailed(text, "Upload the file again, or correct its Content-MD5.", name)

    def _read_range(self, file: StagedFile, part: PartialFile, start: int, end: int) -> None:
        """Write the bytes of a range to disk; obstore retries after broken connections, throttling and timeouts."""
        item, name = file.item, file.source.name
        end = min(end, item.size)

        def read(store: Any) -> None:
            import obstore

            options: Any = stores.build_condition(file.source.kind, item.version)
            if end - start < item.size:
                options["range"] = (start, end)
            response = obstore.get(store, item.name, options=options)
            if (stores.get_version(response.meta), response.meta["size"]) != (item.version, item.size):
                raise stores.StoreError(412, "")  # the object has changed since the listing
            position = start
            try:
                for chunk in response.stream(min_chunk_size=_CHUNK_BYTES):
                    self._write(part, position, memoryview(chunk))
                    position += len(chunk)
                    self._add_counts(name, done=len(chunk))
            except BaseException:
                self._add_counts(name, done=start - position)
                raise

        try:
            file.reader.use(read)
        except stores.StoreError as error:
            raise stores.make_read_error(name, file.source.address, item.name, error) from None

    def _write(self, part: PartialFile, position: int, content: memoryview) -> None:
        """Write bytes; if the disk is full, remove unused cache entries and retry once."""
        try:
            part.write(position, content)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            with self._clear_lock:
                self._cache.make_room(0, limit=0)
            part.write(position, content)

    def _add_counts(self, source: str, **increments: int) -> None:
        """Add to the counts of a source; thread-safe."""
        with self._count_lock:
            for name, increment in increments.items():
                self._counts[source][name] += increment

    def _show_package_progress(self, done: int, total: int, files: int) -> None:
        self._counts[packages.LABEL] = {"done": done, "total": total, "cached": 0, "files": files, "of": 1}
        self._send_progress()

    def _send_progress(self) -> None:
        with self._count_lock:
            counts = {name: dict(count) for name, count in self._counts.items()}
        for name, count in counts.items():
            if self._sent_counts.get(name) != count:
                self._channel.send({"type": "progress", "source": name, **count})
        self._sent_counts = counts

    def _send_note(self, source: str, code: str, text: str) -> None:
        """Send a note once for each source."""
        if (source, code) not in self._sent_notes:
            self._sent_notes.add((source, code))
            level = "info" if code == "elsewhere" else "warning"
            note = {"source": source, "level": level, "code": code, "text": data_cache.mask_secrets(text)}
            self._channel.send({"type": "note", **note})

    def _to_staging_failed(self, error: OSError) -> StagingFailed:
        if error.errno == errno.EDQUOT:
            return StagingFailed(f"Your disk quota for {self._cache.base} is exhausted.", data_cache.SPACE_REMEDY)
        if error.errno in (errno.ENOSPC, errno.EFBIG):
            remedy = f"{data_cache.SPACE_REMEDY} Downloaded files are kept."
            return StagingFailed(f"The disk of {self._cache.base} is full.", remedy)
        text = f"Cannot store data in {self._cache.base} ({error.strerror or error})."
        return StagingFailed(text, "Use another folder for staged data.")


# the program ----------------------------------------------------------------------------------------


def main() -> int:
    """Execute the request on standard input and return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # files on disk are valid at any time
    channel = StdioChannel(sys.stdin.buffer, sys.stdout.buffer)
    try:
        DataStager(channel, **channel.read_request()).run()
    except StagingFailed as failure:
        error = failure
    except OSError as caught:
        error = StagingFailed(f"Cannot store staged data ({caught.strerror or caught}).")
    except BaseException as caught:  # noqa: BLE001 - its text may contain a signature, and an obstore panic is not an Exception
        error = StagingFailed(f"Cannot copy the data ({type(caught).__name__}).")
    else:
        return 0
    channel.send({"type": "failed", "source": error.source, "text": error.text, "remedy": error.remedy}, is_last=True)
    return 1


if __name__ == "__main__":
    code = main()
    os._exit(code)  # threads that wait for a response must not delay the exit
