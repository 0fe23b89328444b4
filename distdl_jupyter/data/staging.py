"""Stages a job's data sources and packages: creates the requests for the nodes' stagers and handles their messages.

All sources are listed, and a signature is tested, before any stager starts, so that errors are reported immediately.
Signatures are only sent to stagers; events only contain counts.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.core.humanize import plural, size
from distdl_jupyter.core.options import parse_size
from distdl_jupyter.data import packages, sources, stores
from distdl_jupyter.node.data_cache import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from azure.storage.blob import BlobServiceClient

    from distdl_jupyter.core.data import DataSource
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.data.sources import Listing

#: The number of concurrent downloads of a node.
WORKER_COUNT = 16
#: Variable that limits a node's cache in bytes; the default is a tenth of the disk, at most 100 GB.
LIMIT_VARIABLE = "DISTDL_DATA_CACHE_BYTES"
#: Prefixes of variables that configure package installers.
_TOOL_PREFIXES = ("PIP_", "UV_", "CONDA", "MAMBA", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "NETRC", "SSL_CERT_FILE")
_NO_VARIABLES: Mapping[str, str] = {}
#: Seconds between two events about a source on a node.
_PROGRESS_SECONDS = 0.5


class JobStaging:
    """The staging of one job (see ``clusters.base.Context``).

    ``write`` writes events in the thread of ``handle_message``. ``open_account`` opens a storage account as the
    signed-in user. ``variables`` are the ranks' environment variables, which configure the installers; ``modules`` must
    be importable after the job's packages are installed.
    """

    def __init__(
        self,
        spec: JobSpec,
        write: Callable[..., None],
        open_account: Callable[[str], BlobServiceClient],
        *,
        variables: Mapping[str, str] = _NO_VARIABLES,
        modules: Sequence[str] = (),
    ) -> None:
        self._spec = spec
        self._variables, self._modules = variables, modules
        self._write = write
        self._open_account = open_account
        self._sources = {source.name: source for source in spec.data}
        self._listings: dict[str, Listing] = {}
        self._accounts: dict[str, BlobServiceClient] = {}
        self._fingerprints: dict[str, dict[str, Any]] = {}
        self._signatures: dict[str, tuple[float, str]] = {}
        self._sign_lock = threading.Lock()
        self._written_at: dict[tuple[int, str], float] = {}

    def prepare(self) -> None:
        """List every source and test its signature; thread-safe. Raises DataUnavailable, InvalidSpec, NotSignedIn."""
        _read_cache_limit()  # fails before anything is listed
        for name, source in self._sources.items():
            if source.scheme == "blob":
                account = self._accounts[name] = self._open_account(source.account)
                self._listings[name] = sources.list_blobs(account, source)
                self._sign(source)
            elif source.is_stored:
                self._listings[name] = sources.list_store(source)
            else:
                self._record_path(source)

    def _record_path(self, source: DataSource) -> None:
        try:
            self._fingerprints[source.name] = fingerprint(source.path)
        except OSError as error:
            if source.scheme != "shared":  # nodes may have access to the folder, and report problems
                raise DataUnavailable(
                    f"Cannot read {source.path}: {error.strerror}.", code="data-path-unreadable", hint="Check the path."
                ) from None

    @property
    def summary(self) -> str:
        """The data to copy as text: ``train: 512 files, 4.8 GB``."""
        counts = {
            name: f"{plural(len(listing.items), 'file')}, {size(sum(item.size for item in listing.items))}"
            for name, listing in self._listings.items()
        }
        return "; ".join(f"{name}: {counts.get(name) or source.address}" for name, source in self._sources.items())

    @property
    def content(self) -> str:
        """The names of what is copied: data, packages, or both."""
        parts = {"data": self._sources, "packages": self._build_package_request()}
        return " and ".join(name for name, part in parts.items() if part)

    # called by clusters -----------------------------------------------------------------------

    def build_request(self, node: int, *, base: str = "") -> dict[str, Any]:
        """Return the request for a node's stager, without secrets (see ``stager``)."""
        return {
            "job": self._spec.id,
            "node": node,
            "base": base,
            "limit_bytes": _read_cache_limit(),
            "workers": WORKER_COUNT,
            "ca": stores.read_certificates() if self._listings else "",
            "sources": [self._build_source_request(source, node) for source in self._sources.values()],
            "packages": self._build_package_request(),
        }

    def _build_package_request(self) -> dict[str, Any] | None:
        if (request := packages.find_missing_packages(self._spec)) is None:
            return None
        settings = {name: value for name, value in self._variables.items() if name.upper().startswith(_TOOL_PREFIXES)}
        return {**request.to_json(), "modules": self._modules, "variables": settings}

    def _build_source_request(self, source: DataSource, node: int) -> dict[str, Any]:
        fields = {"name": source.name, "variable": source.variable}
        if not source.is_stored:
            return {**fields, "kind": "path", "path": source.path, "fingerprint": self._fingerprints.get(source.name)}
        listing, account = self._listings[source.name], self._accounts.get(source.name)
        return {
            **fields,
            "kind": source.scheme,
            "address": f"{account.url.rstrip('/')}/{source.container}" if account else sources.get_store_url(source),
            "prefix": source.prefix if listing.is_single or not source.prefix else f"{source.prefix}/",
            "settings": sources.get_s3_settings(source),
            "items": sources.shard(listing.items, node, self._spec.node_count) if source.shard else listing.items,
        }

    def handle_message(self, node: int, host: str, message: dict[str, Any]) -> dict[str, Any] | None:
        """Handle a message of a node's stager; only the response to ``renew`` may be computed in another thread."""
        match message.get("type"):
            case "renew":
                source = self._sources.get(str(message.get("source")))
                if source is not None and source.name in self._accounts:
                    return {"type": "sas", "source": source.name, "sas": self._sign(source)}
            case "progress":
                self._report_progress(node, host, message)
            case "note":
                text = f"{host}: {message.get('text', '')}"
                self._write("note", level=message["level"], text=text, code=message["code"])
            case "failed":
                text = f"{host}: {message.get('text') or 'The data could not be copied.'}"
                raise DataUnavailable(text, code="data-not-staged", hint=str(message.get("remedy") or ""))
            case "staged":
                self._report_staged(host, message)
        return None

    def _sign(self, source: DataSource) -> str:
        """Return a recent signature; it is cached because every node requests one."""
        account, is_single = self._accounts[source.name], self._listings[source.name].is_single
        with self._sign_lock:
            signed_at, sas = self._signatures.get(source.name, (0.0, ""))
            if not sas or time.monotonic() - signed_at > sources.SIGNATURE_LIFETIME.total_seconds() / 4:
                sas = sources.sign_source(account, source, is_blob=is_single)
                self._signatures[source.name] = (time.monotonic(), sas)
            return sas

    def _report_progress(self, node: int, host: str, message: dict[str, Any]) -> None:
        counts = {name: int(message.get(name) or 0) for name in ("done", "total", "files", "of", "cached")}
        key, now = (node, str(message.get("source"))), time.monotonic()
        is_complete = counts["done"] >= counts["total"] and counts["files"] >= counts["of"]
        if is_complete or now - self._written_at.get(key, 0.0) >= _PROGRESS_SECONDS:
            self._written_at[key] = now
            self._write("staging", node=node, host=host, source=key[1], **counts)

    def _report_staged(self, host: str, message: dict[str, Any]) -> None:
        fetched, cached, seconds = (float(message.get(name) or 0) for name in ("bytes", "cached", "seconds"))
        texts = [f"Packages on {host}: {message['python']}"] if message.get("python") else []
        if self._listings:
            texts.append(
                f"Data on {host}: {size(fetched)} fetched{f', {size(cached)} from the cache' if cached else ''}"
            )
        for text in texts:
            self._write("log", rank=None, stream="sys", text=f"{text}, {seconds:.1f} s")


def _read_cache_limit() -> int | None:
    """Return the cache limit of a node in bytes, or None for the default. Raises InvalidSpec."""
    value = os.environ.get(LIMIT_VARIABLE)
    return 0 if value == "0" else parse_size(value, LIMIT_VARIABLE)
