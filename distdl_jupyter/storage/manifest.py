"""What a data source in a store holds, and which node takes which of its files.

Names, sizes, versions and MD5 sums as the store lists them; nothing is downloaded. Blob is listed with the user's
sign-in by Azure's package, which tells sums, tiers and folders; other stores by obstore, with what this machine has.
"""

from __future__ import annotations

import base64
import heapq
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.core.data import place
from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.node.staging.failure import Failure
from distdl_jupyter.stager import stores
from distdl_jupyter.storage.access import trusted
from distdl_jupyter.storage.failures import translated

if TYPE_CHECKING:
    from distdl_jupyter.core.data import DataSource
    from distdl_jupyter.stager.stores import Access
    from distdl_jupyter.storage.access import Account


class Item(NamedTuple):
    """One object: its whole name, size in bytes, version (see ``stager.stores``), and MD5 as base64 ("" without)."""

    name: str
    size: int
    version: str
    md5: str


class Manifest(NamedTuple):
    """All objects of a source, by name; ``single`` when its prefix is one object."""

    items: tuple[Item, ...]
    single: bool

    @property
    def bytes(self) -> int:
        """The size of all."""
        return sum(item.size for item in self.items)


def address(source: DataSource) -> str:
    """Return what the stager opens of a source in S3, Google Cloud Storage or on a web server."""
    return f"{source.scheme}://{source.container}"


def settings(source: DataSource) -> dict[str, str]:
    """Return where S3 is by this machine's environment, for nodes that have none of it; no credential is among it."""
    found = {"region": ("AWS_REGION", "AWS_DEFAULT_REGION"), "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")}
    given = {key: next(filter(None, map(os.environ.get, names)), "") for key, names in found.items()}
    return {key: value for key, value in given.items() if value and source.scheme == "s3"}


def access(source: DataSource) -> Access:
    """Return the access to a source in another store than Blob, with what this machine has."""
    return stores.access(source.name, source.scheme, address(source), ca=trusted(), settings=settings(source),
                         retries=4)  # fmt: skip


def found(source: DataSource) -> Manifest:
    """Return what a source in another store than Blob holds. Raises DataUnavailable, also when it holds nothing."""
    try:
        return access(source).use(lambda store: _found(store, source))
    except Failure as failure:
        raise DataUnavailable(failure.text, code="data-not-listed", hint=failure.remedy) from None
    except stores.errors() as error:
        said = stores.answer(error)
        raise DataUnavailable(
            f"Cannot list {place(source)}: {said.status or ''} {said.code}.".replace("  ", " "),
            code="data-not-listed",
            hint="Check the name and the network connection.",
        ) from None


def _found(store: Any, source: DataSource) -> Manifest:
    import obstore

    if source.scheme != "https":
        pages = obstore.list(store, prefix=source.prefix or None)
        metas = [meta for page in pages for meta in page if meta["size"] or meta["path"] != source.prefix]
        if metas:
            return Manifest(tuple(sorted(Item(meta["path"], meta["size"], stores.version(meta), "") for meta in metas)),
                            single=False)  # fmt: skip
    try:
        meta = obstore.head(store, source.prefix) if source.prefix else None
    except FileNotFoundError:
        meta = None
    if meta is None:
        raise DataUnavailable(
            f"{place(source)} contains no files.", code="data-empty", hint="Check the prefix, which is case-sensitive."
        )
    if not stores.version(meta):
        raise DataUnavailable(
            f"{source.container} sends neither an ETag nor a modification time for {source.prefix!r}.",
            code="data-without-version",
            hint="Download the file and use its path, or upload it to a store.",
        )
    return Manifest((Item(source.prefix, meta["size"], stores.version(meta), ""),), single=True)


def listed(account: Account, source: DataSource) -> Manifest:
    """Return what a source in Blob holds. Raises DataUnavailable, also when it holds nothing."""
    with translated(place(source)):
        below = source.prefix.strip("/")
        items = tuple(sorted(_items(account, source.container, f"{below}/" if below else "")))
        if items:
            return Manifest(items, single=False)
        alone = [item for item in _items(account, source.container, below, most=1) if item.name == below]
    if below and alone:
        return Manifest(tuple(alone), single=True)
    raise DataUnavailable(
        f"{place(source)} contains no files.", code="data-empty", hint="Check the prefix, which is case-sensitive."
    )


def _items(account: Account, container: str, prefix: str, most: int | None = None) -> Iterator[Item]:
    blobs = account.client.get_container_client(container).list_blobs(
        name_starts_with=prefix or None, include=["metadata"]
    )
    for number, blob in enumerate(blobs):
        if most is not None and number >= most:
            return
        if str(getattr(blob.blob_tier, "value", blob.blob_tier)) == "Archive":
            raise DataUnavailable(
                f"{blob.name!r} in blob://{account.name}/{container} is in the archive tier and cannot be read.",
                code="data-archived",
                hint="Move the blob to the hot or cool tier first (rehydration takes up to 15 hours).",
            )
        if not _is_folder(blob):
            yield Item(blob.name, int(blob.size or 0), str(blob.etag).strip('"'), _base64(blob))


def _is_folder(blob: Any) -> bool:
    """Say whether it stands for a folder, as tools and hierarchical namespaces leave them behind."""
    folder = (blob.metadata or {}).get("hdi_isfolder") == "true"
    return folder or (blob.name.endswith("/") and not blob.size)


def _base64(blob: Any) -> str:
    found = blob.content_settings.content_md5
    return base64.b64encode(bytes(found)).decode() if found else ""


def shard(items: Sequence[Item], node: int, nodes: int) -> tuple[Item, ...]:
    """Return the files of one node of ``nodes``: each file goes to one node, and the nodes' bytes differ little.

    The largest files are dealt out first, each to the node that has least; the same list gives the same parts
    everywhere (Graham's LPT rule: no node gets more than 4/3 of the least possible maximum).
    """
    loads = [(0, 0, number) for number in range(nodes)]
    mine: list[Item] = []
    for item in sorted(items, key=lambda one: (-one.size, one.name)):
        size, count, number = heapq.heappop(loads)
        heapq.heappush(loads, (size + item.size, count + 1, number))
        if number == node:
            mine.append(item)
    return tuple(sorted(mine))
