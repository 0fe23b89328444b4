"""Lists a job's data sources, and signs requests to read them.

Listings contain names, sizes, versions and MD5 sums; nothing is downloaded. Blob Storage is listed as the signed-in
user with Azure's SDK, which reports sums, tiers and folders; other stores with obstore and this machine's credentials.

A node gets a user-delegation SAS (learn.microsoft.com/rest/api/storageservices/create-user-delegation-sas): https only,
read-only, valid for at most an hour, for a single blob or a directory (in an account with a hierarchical namespace),
else for the container, which is then the smallest unit. Signatures are returned to the caller and never stored.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.data import stores
from distdl_jupyter.data.stager import Item
from distdl_jupyter.node.data_cache import StagingFailed
from distdl_jupyter.worker.secret_patterns import mask

if TYPE_CHECKING:
    from azure.storage.blob import BlobServiceClient

    from distdl_jupyter.core.data import DataSource

#: The maximum lifetime of a signature.
SIGNATURE_LIFETIME = timedelta(hours=1)
#: How far the start of a signature is backdated, because clocks differ.
_CLOCK_TOLERANCE = timedelta(minutes=15)


# listings ------------------------------------------------------------------------------


class Listing(NamedTuple):
    """All objects of a source by name; ``is_single`` is true if its prefix is one object."""

    items: tuple[Item, ...]
    is_single: bool = False


def get_store_url(source: DataSource) -> str:
    """Return the URL of the store that the stager opens for a source in S3, Google Cloud Storage or on a web server."""
    return f"{source.scheme}://{source.container}"


def get_s3_settings(source: DataSource) -> dict[str, str]:
    """Return this machine's S3 endpoint settings, without credentials, for nodes that lack them."""
    if source.scheme != "s3":
        return {}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    return {"region": region, "endpoint": endpoint}


def list_store(source: DataSource) -> Listing:
    """Return the listing of a source in another store. Raises DataUnavailable if it is empty or cannot be listed."""
    url, settings = get_store_url(source), get_s3_settings(source)
    try:
        reader = stores.Reader(source.name, source.scheme, url, settings=settings, retries=4)
        return reader.use(lambda store: _list_objects(store, source))
    except StagingFailed as failure:
        raise DataUnavailable(failure.text, code="data-not-listed", hint=failure.remedy) from None
    except stores.StoreError as error:
        raise DataUnavailable(
            f"Cannot list {source.address}: {error}.",
            code="data-not-listed",
            hint="Check the name and the network connection.",
        ) from None


def _list_objects(store: Any, source: DataSource) -> Listing:
    import obstore

    if source.scheme != "https":
        metas = (meta for page in obstore.list(store, prefix=source.prefix or None) for meta in page)
        # Some tools create an empty object for the folder itself.
        objects = [meta for meta in metas if meta["size"] or meta["path"] != source.prefix]
        if items := [Item(meta["path"], meta["size"], stores.get_version(meta), "") for meta in objects]:
            return Listing(tuple(sorted(items)))
    try:
        meta = obstore.head(store, source.prefix) if source.prefix else None
    except FileNotFoundError:
        meta = None
    if meta is None:
        raise _make_empty_error(source)
    if not stores.get_version(meta):
        raise DataUnavailable(
            f"{source.container} sends neither an ETag nor a modification time for {source.prefix!r}.",
            code="data-without-version",
            hint="Download the file and use its path, or upload it to an object store.",
        )
    return Listing((Item(source.prefix, meta["size"], stores.get_version(meta), ""),), is_single=True)


def list_blobs(account: BlobServiceClient, source: DataSource) -> Listing:
    """Return the listing of a source in Azure Blob Storage. Raises the errors of ``list_store``."""
    prefix = source.prefix.strip("/")
    with translate_errors(source.address):
        if items := tuple(sorted(_iter_blobs(account, source, f"{prefix}/" if prefix else ""))):
            return Listing(items)
        blob = next(_iter_blobs(account, source, prefix), None) if prefix else None
    if blob is None or blob.name != prefix:
        raise _make_empty_error(source)
    return Listing((blob,), is_single=True)


def _make_empty_error(source: DataSource) -> DataUnavailable:
    return DataUnavailable(
        f"{source.address} contains no files.", code="data-empty", hint="Check the prefix, which is case-sensitive."
    )


def _iter_blobs(account: BlobServiceClient, source: DataSource, prefix: str) -> Iterator[Item]:
    client = account.get_container_client(source.container)
    for blob in client.list_blobs(name_starts_with=prefix or None, include=["metadata"]):
        if str(getattr(blob.blob_tier, "value", blob.blob_tier)) == "Archive":
            raise DataUnavailable(
                f"{blob.name!r} in {source.address} is in the archive tier and cannot be read.",
                code="data-archived",
                hint="Move the blob to the hot or cool tier first (rehydration takes up to 15 hours).",
            )
        # Some tools and hierarchical namespaces create empty blobs for folders.
        is_folder = (blob.metadata or {}).get("hdi_isfolder") == "true" or (blob.name.endswith("/") and not blob.size)
        if not is_folder:
            md5 = base64.b64encode(bytes(blob.content_settings.content_md5 or b"")).decode()
            yield Item(blob.name, int(blob.size or 0), str(blob.etag).strip('"'), md5)


def shard(items: Sequence[Item], node: int, node_count: int) -> tuple[Item, ...]:
    """Return the files for one of ``node_count`` nodes; each file is copied to only one of them.

    The files are distributed by size, so the totals of two nodes differ by at most the size of the largest file.
    """
    return tuple(sorted(sorted(items, key=lambda item: (-item.size, item.name))[node::node_count]))


# signatures ---------------------------------------------------------------------------------------


def sign_source(account: BlobServiceClient, source: DataSource, *, is_blob: bool) -> str:
    """Return the query string of a shared access signature for reading a source; valid for ``SIGNATURE_LIFETIME``.

    ``is_blob`` is true if the prefix is a single blob. Raises DataUnavailable.
    """
    from azure.storage.blob import generate_blob_sas, generate_container_sas

    start = datetime.now(UTC) - _CLOCK_TOLERANCE
    expiry = start + _CLOCK_TOLERANCE + SIGNATURE_LIFETIME
    with translate_errors(f"blob://{source.account}/{source.container}"):
        key = account.get_user_delegation_key(start, expiry)
    options: dict[str, Any] = {"user_delegation_key": key, "start": start, "expiry": expiry, "protocol": "https"}
    options["permission"] = "r"
    if source.prefix and (is_blob or _has_directories(account)):
        is_directory = None if is_blob else True
        return generate_blob_sas(source.account, source.container, source.prefix, is_directory=is_directory, **options)
    return generate_container_sas(source.account, source.container, **options)


def _has_directories(account: BlobServiceClient) -> bool:
    """Return whether the account has a hierarchical namespace, or False if unknown."""
    from azure.core.exceptions import AzureError

    with contextlib.suppress(AzureError):
        return bool(account.get_account_information().get("is_hns_enabled"))
    return False


# errors of Azure Blob --------------------------------------------------------------------------


@contextlib.contextmanager
def translate_errors(location: str, *, for_writing: bool = False) -> Iterator[None]:
    """Translate errors of azure-core and azure-storage-blob into DataUnavailable, which names ``location``."""
    from azure.core.exceptions import AzureError

    try:
        yield
    except AzureError as error:
        raise _to_data_unavailable(location, error, stores.WRITER_ROLE if for_writing else stores.READER_ROLE) from None


def _to_data_unavailable(location: str, error: object, role: str) -> DataUnavailable:
    code = getattr(error, "error_code", None) or ""
    code, status = str(getattr(code, "value", code)), getattr(error, "status_code", None)
    text = mask(str(error).strip().split("\n", 1)[0])[:300].rstrip(".")
    if code in stores.AZURE_ERRORS:
        cause, remedy = stores.AZURE_ERRORS[code]
        slug = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", code).lower()
        return DataUnavailable(f"{location}: {cause} ({code}).", code=f"storage-{slug}", hint=remedy.format(role=role))
    if status:
        return DataUnavailable(
            f"{location}: Azure responded with {f'{status} {code}'.strip()}: {text}.", code="storage-refused"
        )
    if "Failed to resolve" in text or "Name or service not known" in text:
        text = "The name of the storage account cannot be resolved"
    return DataUnavailable(
        f"{location}: {text}.",
        code="storage-unreachable",
        hint="Check the account name and the network connection. Behind a proxy, set HTTPS_PROXY.",
    )
