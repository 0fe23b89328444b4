"""What a job's data sources hold, and the right to read and write them.

Names, sizes, versions and MD5 sums as the store lists them; nothing is downloaded. Blob is listed with the user's
sign-in by Azure's package, which tells sums, tiers and folders; other stores by obstore, with what this machine has.

A node gets a user-delegation SAS (learn.microsoft.com/rest/api/storageservices/create-user-delegation-sas): https only,
reading only, an hour at most, for a single blob or, in an account with a hierarchical namespace, a directory; else for
the container, as nothing smaller can be signed. Signatures are returned to the caller and stored nowhere.
"""

from __future__ import annotations

import base64
import contextlib
import heapq
import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.azure import identity, settings
from distdl_jupyter.core.data import place
from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.data import stores
from distdl_jupyter.data.stager import Item
from distdl_jupyter.node.data_cache import Failure, fingerprint
from distdl_jupyter.worker.secret_patterns import mask

if TYPE_CHECKING:
    from azure.storage.blob import BlobServiceClient

    from distdl_jupyter.core.data import DataSource

#: The longest life of a signature, and how far before now it begins: clocks differ.
LIFE, _BEFORE = timedelta(hours=1), timedelta(minutes=15)


# what a source holds ------------------------------------------------------------------------------


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


def s3_settings(source: DataSource) -> dict[str, str]:
    """Return where S3 is by this machine's environment, for nodes that have none of it; no credential is among it."""
    variables = {
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    }
    values = {key: next(filter(None, map(os.environ.get, names)), "") for key, names in variables.items()}
    return {key: value for key, value in values.items() if value and source.scheme == "s3"}


def list_store(source: DataSource) -> Manifest:
    """Return what a source in another store than Blob holds. Raises DataUnavailable, also when it holds nothing."""
    access = stores.access(source.name, source.scheme, address(source), settings=s3_settings(source), retries=4)
    try:
        return access.use(lambda store: _manifest(store, source))
    except Failure as failure:
        raise DataUnavailable(failure.text, code="data-not-listed", hint=failure.remedy) from None
    except stores.StoreError as error:
        raise DataUnavailable(
            f"Cannot list {place(source)}: {error}.",
            code="data-not-listed",
            hint="Check the name and the network connection.",
        ) from None


def _manifest(store: Any, source: DataSource) -> Manifest:
    import obstore

    if source.scheme != "https":
        pages = obstore.list(store, prefix=source.prefix or None)
        metas = [meta for page in pages for meta in page if meta["size"] or meta["path"] != source.prefix]
        if metas:
            items = sorted(Item(meta["path"], meta["size"], stores.version(meta), "") for meta in metas)
            return Manifest(tuple(items), single=False)
    try:
        meta = obstore.head(store, source.prefix) if source.prefix else None
    except FileNotFoundError:
        meta = None
    if meta is None:
        raise _empty(source)
    if not stores.version(meta):
        raise DataUnavailable(
            f"{source.container} sends neither an ETag nor a modification time for {source.prefix!r}.",
            code="data-without-version",
            hint="Download the file and use its path, or upload it to a store.",
        )
    return Manifest((Item(source.prefix, meta["size"], stores.version(meta), ""),), single=True)


def list_blobs(account: BlobServiceClient, source: DataSource) -> Manifest:
    """Return what a source in Blob holds. Raises DataUnavailable, also when it holds nothing."""
    with translated(place(source)):
        below = source.prefix.strip("/")
        items = tuple(sorted(_items(account, source, f"{below}/" if below else "")))
        if items:
            return Manifest(items, single=False)
        alone = [item for item in _items(account, source, below, most=1) if item.name == below]
    if below and alone:
        return Manifest(tuple(alone), single=True)
    raise _empty(source)


def _empty(source: DataSource) -> DataUnavailable:
    return DataUnavailable(
        f"{place(source)} contains no files.", code="data-empty", hint="Check the prefix, which is case-sensitive."
    )


def _items(account: BlobServiceClient, source: DataSource, prefix: str, most: int | None = None) -> Iterator[Item]:
    client = account.get_container_client(source.container)
    blobs = client.list_blobs(name_starts_with=prefix or None, include=["metadata"])
    for number, blob in enumerate(blobs):
        if most is not None and number >= most:
            return
        if str(getattr(blob.blob_tier, "value", blob.blob_tier)) == "Archive":
            raise DataUnavailable(
                f"{blob.name!r} in {place(source)} is in the archive tier and cannot be read.",
                code="data-archived",
                hint="Move the blob to the hot or cool tier first (rehydration takes up to 15 hours).",
            )
        # Tools and hierarchical namespaces mark folders by blobs without content.
        is_folder = (blob.metadata or {}).get("hdi_isfolder") == "true" or (blob.name.endswith("/") and not blob.size)
        if not is_folder:
            md5 = base64.b64encode(bytes(blob.content_settings.content_md5 or b"")).decode()
            yield Item(blob.name, int(blob.size or 0), str(blob.etag).strip('"'), md5)


def shard(items: Sequence[Item], node: int, nodes: int) -> tuple[Item, ...]:
    """Return the files of one node of ``nodes``: each file goes to one node, and the nodes' bytes differ little.

    The largest files are dealt out first, each to the node that has least; the same list gives the same parts
    everywhere (Graham's LPT rule: no node gets more than 4/3 of the least possible maximum).
    """
    loads = [(0, 0, number) for number in range(nodes)]
    mine: list[Item] = []
    for item in sorted(items, key=lambda item: (-item.size, item.name)):
        size, count, number = heapq.heappop(loads)
        heapq.heappush(loads, (size + item.size, count + 1, number))
        if number == node:
            mine.append(item)
    return tuple(sorted(mine))


def expected(source: DataSource) -> dict[str, Any] | None:
    """Return the fingerprint of what is at a source's path here, None where this machine does not see it.

    Raises DataUnavailable for a path of this machine that cannot be read.
    """
    try:
        return fingerprint(source.path)
    except OSError as error:
        if source.scheme == "shared":
            return None  # the nodes may see it all the same, and say so
        raise DataUnavailable(
            f"Cannot read {source.path}: {error.strerror}.", code="data-path-unreadable", hint="Check the path."
        ) from None


# accounts and signatures --------------------------------------------------------------------------


def account(name: str) -> BlobServiceClient:
    """Return a storage account as the signed-in user reaches it. Raises NotSignedIn."""
    from azure.storage.blob import BlobServiceClient, ExponentialRetry

    cloud = settings.read().endpoints
    return BlobServiceClient(
        cloud.blob_endpoint(name),
        credential=identity.credential(),
        audience=cloud.storage_audience,
        connection_timeout=10,
        read_timeout=60,
        retry_policy=ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=5, random_jitter_range=1),
        max_single_put_size=4 * 2**20,  # an upload can be stopped between two blocks
    )


def signature(account: BlobServiceClient, source: DataSource, *, blob: bool, directory: bool = False) -> str:
    """Return the query of a shared access signature that reads a source's blobs; it is valid for ``LIFE``.

    ``blob`` says that the prefix is one blob, ``directory`` that the account has a hierarchical namespace. Raises
    DataUnavailable.
    """
    from azure.storage.blob import (
        BlobSasPermissions,
        ContainerSasPermissions,
        generate_blob_sas,
        generate_container_sas,
    )

    now, name = datetime.now(UTC), source.account
    start, expiry = now - _BEFORE, now + LIFE
    with translated(f"blob://{name}/{source.container}"):
        key = account.get_user_delegation_key(start, expiry)
    common: dict[str, Any] = {"user_delegation_key": key, "start": start, "expiry": expiry, "protocol": "https"}
    if source.prefix and (blob or directory):
        common["is_directory"] = True if directory and not blob else None
        permission = BlobSasPermissions(read=True)
        return generate_blob_sas(name, source.container, source.prefix, permission=permission, **common)
    return generate_container_sas(name, source.container, permission=ContainerSasPermissions(read=True), **common)


def has_directories(account: BlobServiceClient) -> bool:
    """Return whether the account has a hierarchical namespace; False where it does not tell."""
    from azure.core.exceptions import AzureError

    with contextlib.suppress(AzureError):
        return bool(account.get_account_information().get("is_hns_enabled"))
    return False


# what Azure Blob refuses --------------------------------------------------------------------------


@contextlib.contextmanager
def translated(place: str, *, writing: bool = False) -> Iterator[None]:
    """Raise DataUnavailable, which names ``place``, for what azure-core and azure-storage-blob raise inside."""
    from azure.core.exceptions import AzureError

    try:
        yield
    except AzureError as error:
        raise _unavailable(place, error, stores.WRITER if writing else stores.READER) from None


def _unavailable(place: str, error: object, role: str) -> DataUnavailable:
    code = getattr(error, "error_code", None) or ""
    code, status = str(getattr(code, "value", code)), getattr(error, "status_code", None)
    text = mask(str(error).strip().split("\n", 1)[0])[:300].rstrip(".")
    if code in stores.AZURE_REFUSALS:
        what, remedy = stores.AZURE_REFUSALS[code]
        kebab = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", code).lower()
        return DataUnavailable(f"{place}: {what} ({code}).", code=f"storage-{kebab}", hint=remedy.format(role=role))
    if status:
        return DataUnavailable(
            f"{place}: Azure responded with {f'{status} {code}'.strip()}: {text}.", code="storage-refused"
        )
    if "Failed to resolve" in text or "Name or service not known" in text:
        text = "The name of the storage account cannot be resolved"
    return DataUnavailable(
        f"{place}: {text}.",
        code="storage-unreachable",
        hint="Check the account name and the network connection. Behind a proxy, set HTTPS_PROXY.",
    )
