"""What a data source in Blob holds, and which node takes which of its files.

Names, sizes, ETags and MD5 sums as the service lists them; nothing is downloaded.
"""

from __future__ import annotations

import base64
import heapq
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.core.data import place
from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.storage.failures import told

if TYPE_CHECKING:
    from distdl_jupyter.core.data import DataSource
    from distdl_jupyter.storage.access import Account


class Item(NamedTuple):
    """One blob: its whole name, its size in bytes, its ETag, and its Content-MD5 as base64 ("" where it has none)."""

    name: str
    size: int
    etag: str
    md5: str


class Manifest(NamedTuple):
    """All blobs of a source, by name; ``single`` when its prefix is one blob."""

    items: tuple[Item, ...]
    single: bool

    @property
    def bytes(self) -> int:
        """The size of all."""
        return sum(item.size for item in self.items)


def listed(account: Account, source: DataSource) -> Manifest:
    """Return what a source holds. Raises DataUnavailable, also when it holds nothing."""
    with told(place(source)):
        below = source.prefix.strip("/")
        items = tuple(sorted(_items(account, source.container, f"{below}/" if below else "")))
        if items:
            return Manifest(items, single=False)
        alone = [item for item in _items(account, source.container, below, most=1) if item.name == below]
    if below and alone:
        return Manifest(tuple(alone), single=True)
    raise DataUnavailable(f"{place(source)} holds no files.", hint="Check the prefix; capitals count.")


def _items(account: Account, container: str, prefix: str, most: int | None = None) -> Iterator[Item]:
    blobs = account.client.get_container_client(container).list_blobs(
        name_starts_with=prefix or None, include=["metadata"]
    )
    for number, blob in enumerate(blobs):
        if most is not None and number >= most:
            return
        if str(getattr(blob.blob_tier, "value", blob.blob_tier)) == "Archive":
            raise DataUnavailable(
                f"{blob.name!r} in blob://{account.name}/{container} is in the archive tier, where it cannot be read.",
                hint="Move it to the hot or cool tier first (rehydration takes up to 15 hours).",
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
