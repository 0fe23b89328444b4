"""A job's data sources and packages on their way to its nodes: what each node's stager is to do and what it answers.

Everything is listed, and a signature tried, before any stager starts, so that errors are reported at once. Signatures
are sent to stagers only; the events hold counts.
"""

from __future__ import annotations

import os
import re
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.core.data import place
from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.core.humanize import plural, size
from distdl_jupyter.data import packages, sources, stores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from azure.storage.blob import BlobServiceClient

    from distdl_jupyter.core.data import DataSource
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.data.sources import Manifest
    from distdl_jupyter.data.stager import Item

#: Files that a node fetches at the same time.
WORKERS = 16
#: Bytes that the cache of a node may hold; without it a tenth of its disk, at most 100 GB (see node.data_cache).
LIMIT = "DISTDL_DATA_CACHE_BYTES"
#: Beginnings of the names of variables by which installers of packages are set.
_INSTALLERS = ("PIP_", "UV_", "CONDA", "MAMBA", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "NETRC", "SSL_CERT_FILE")
_NONE: Mapping[str, str] = {}
#: Seconds between two events about a source on a node.
_QUIET = 0.5


class _Listed(NamedTuple):
    """``account`` is None for a store that is not Blob."""

    manifest: Manifest
    account: BlobServiceClient | None = None
    directory: bool = False


class JobStaging:
    """The staging of one job (see ``clusters.base.Staging``).

    ``write`` writes events, in the thread of ``on_message``. ``variables`` are the environment of its ranks, of which
    an installer gets its own settings; ``modules`` are those that the job's packages must make importable.
    """

    def __init__(
        self,
        spec: JobSpec,
        write: Callable[..., None],
        *,
        variables: Mapping[str, str] = _NONE,
        modules: Sequence[str] = (),
    ) -> None:
        self._spec = spec
        self._variables = variables
        self._modules = modules
        self._write = write
        self._sources = {source.name: source for source in spec.data}
        self._listed: dict[str, _Listed] = {}
        self._prints: dict[str, dict[str, Any] | None] = {}
        self._signed: dict[str, tuple[float, str]] = {}
        self._signing = threading.Lock()
        self._written_at: dict[tuple[int, str], float] = {}

    def prepare(self) -> None:
        """List every source and try its signature. Any thread. Raises DataUnavailable, NotSignedIn."""
        _limit()  # before anything is listed
        for source in self._sources.values():
            if source.scheme == "blob":
                account = sources.account(source.account)
                manifest = sources.list_blobs(account, source)
                directory = bool(source.prefix) and not manifest.single and sources.has_directories(account)
                self._listed[source.name] = _Listed(manifest, account, directory)
                self._sign(source)
            elif source.stored:
                self._listed[source.name] = _Listed(sources.list_store(source))
            else:
                self._prints[source.name] = sources.expected(source)

    @property
    def summary(self) -> str:
        """What is brought: ``train: 512 files, 4.8 GB``."""
        parts = []
        for source in self._sources.values():
            listed = self._listed.get(source.name)
            counts = f"{plural(len(listed.manifest.items), 'file')}, {size(listed.manifest.bytes)}" if listed else ""
            parts.append(f"{source.name}: {counts or place(source)}")
        return "; ".join(parts)

    @property
    def what(self) -> str:
        """What is brought, in words."""
        return " and ".join([*(["data"] if self._sources else []), *(["packages"] if self._packages() else [])])

    # the contract -----------------------------------------------------------------------------

    def order(self, node: int, *, base: str = "") -> dict[str, Any]:
        """Return the order for a node's stager, without any secret (see ``stager``)."""
        return {
            "job": self._spec.id,
            "node": node,
            "base": base,
            "limit_bytes": _limit(),
            "workers": WORKERS,
            "ca": stores.certificates() if self._listed else "",
            "sources": [self._order_of(source, node) for source in self._sources.values()],
            "packages": self._packages(),
        }

    def _packages(self) -> dict[str, Any] | None:
        if (asked := packages.missing(self._spec)) is None:
            return None
        settings = {name: value for name, value in self._variables.items() if name.upper().startswith(_INSTALLERS)}
        return {**asked.content(), "modules": self._modules, "variables": settings}

    def _order_of(self, source: DataSource, node: int) -> dict[str, Any]:
        named = {"name": source.name, "variable": source.variable}
        if not source.stored:
            return {**named, "kind": "path", "path": source.path, "fingerprint": self._prints.get(source.name)}
        manifest, account, _ = self._listed[source.name]
        items: tuple[Item, ...] = manifest.items
        if source.shard:
            items = sources.shard(items, node, self._spec.node_count)
        prefix = source.prefix if manifest.single or not source.prefix else f"{source.prefix}/"
        blob = f"{account.url.rstrip('/')}/{source.container}" if account else ""
        return {
            **named,
            "kind": source.scheme,
            "address": blob or sources.address(source),
            "prefix": prefix,
            "settings": sources.s3_settings(source),
            "items": [list(item) for item in items],
        }

    def on_message(self, node: int, host: str, message: dict[str, Any]) -> dict[str, Any] | None:
        """Take one message of a node's stager; only the answer to ``renew`` may be asked for in another thread."""
        match message.get("type"):
            case "renew":
                return self._renew(message)
            case "progress":
                self._progress(node, host, message)
            case "note":
                self._note(host, message)
            case "failed":
                text = str(message.get("text") or "The data could not be copied.")
                raise DataUnavailable(f"{host}: {text}", code="data-not-staged", hint=str(message.get("remedy") or ""))
            case "staged":
                self._staged(host, message)
        return None

    def _renew(self, message: dict[str, Any]) -> dict[str, Any] | None:
        source = self._sources.get(str(message.get("source")))
        if source is None or source.scheme != "blob" or source.name not in self._listed:
            return None
        return {"type": "sas", "source": source.name, "sas": self._sign(source)}

    def _sign(self, source: DataSource) -> str:
        """Return a signature that was made lately; each node asks, and each key costs a request."""
        manifest, account, directory = self._listed[source.name]
        assert account is not None, "signatures are of Blob"
        with self._signing:
            made, sas = self._signed.get(source.name, (0.0, ""))
            if not sas or time.monotonic() - made > sources.LIFE.total_seconds() / 4:
                sas = sources.signature(account, source, blob=manifest.single, directory=directory)
                self._signed[source.name] = (time.monotonic(), sas)
            return sas

    def _progress(self, node: int, host: str, message: dict[str, Any]) -> None:
        counts = {name: int(message.get(name) or 0) for name in ("done", "total", "files", "of", "cached")}
        key, now = (node, str(message.get("source"))), time.monotonic()
        complete = counts["done"] >= counts["total"] and counts["files"] >= counts["of"]
        if complete or now - self._written_at.get(key, 0.0) >= _QUIET:
            self._written_at[key] = now
            self._write("staging", node=node, host=host, source=key[1], **counts)

    def _note(self, host: str, message: dict[str, Any]) -> None:
        level = message.get("level") if message.get("level") in ("info", "warning", "error") else "info"
        self._write("note", level=level, text=f"{host}: {message.get('text', '')}", code=str(message.get("code", "")))

    def _staged(self, host: str, message: dict[str, Any]) -> None:
        fetched, cached, seconds = (float(message.get(name) or 0) for name in ("bytes", "cached", "seconds"))
        parts = [f"{size(fetched)} fetched"] + ([f"{size(cached)} from the cache"] if cached else [])
        if message.get("python"):
            self._log(f"Packages on {host}: {message['python']}, {seconds:.1f} s")
        if self._listed:
            self._log(f"Data on {host}: {', '.join(parts)}, {seconds:.1f} s")

    def _log(self, text: str) -> None:
        self._write("log", rank=None, stream="sys", text=text)


def _limit() -> int | None:
    """Return how many bytes the cache of a node may hold, None for the default. Raises DataUnavailable."""
    value = os.environ.get(LIMIT, "").strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", value)
    if value and not match:
        raise DataUnavailable(
            f"{LIMIT} is {value!r}, but must be a number of bytes.",
            code="data-cache-limit-invalid",
            hint="Set it to 50000000000 or 50 GB, or unset it.",
        )
    return int(float(match[1]) * 1000 ** " kMGT".index(match[2] or " ")) if match else None
