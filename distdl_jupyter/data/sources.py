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
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.azure.rest import masked
from distdl_jupyter.core.data import place
from distdl_jupyter.core.errors import DataUnavailable, NotSignedIn
from distdl_jupyter.data import stores
from distdl_jupyter.data.stager import Item
from distdl_jupyter.node.data_cache import Failure, fingerprint

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential
    from azure.storage.blob import BlobServiceClient

    from distdl_jupyter.core.data import DataSource

#: The longest life of a signature, and how far before now it begins: clocks differ.
LIFE, _BEFORE = timedelta(hours=1), timedelta(minutes=15)
_KEY, _CONNECTION = "AZURE_STORAGE_KEY", "AZURE_STORAGE_CONNECTION_STRING"
_READ = "Storage Blob Data Reader"
_WRITE = "Storage Blob Data Contributor"
#: Azure's word: (what is the matter, the remedy). ``{role}`` is the one that is needed.
_SAYINGS = {
    "AuthorizationPermissionMismatch": (
        "The signed-in account does not have permission",
        "Assign it the role {role} on the container or the storage account, and wait a few minutes.",
    ),
    "AuthorizationFailure": (
        "The storage account blocks requests from this network",
        "Allow this machine's network in the account's networking settings, or use a private endpoint.",
    ),
    "PublicAccessNotPermitted": (
        "The storage account does not allow anonymous access",
        "Sign in to Azure with an account that has the role {role}.",
    ),
    "KeyBasedAuthenticationNotPermitted": (
        "The storage account does not allow account keys",
        "Remove the key from the environment, and sign in to Azure.",
    ),
    "AuthenticationFailed": (
        "Azure rejected the sign-in for this storage account",
        "Sign in to Azure again, and check the clock of this machine.",
    ),
    "NoAuthenticationInformation": (
        "The storage account does not allow anonymous access",
        "Sign in to Azure with an account that has the role {role}.",
    ),
    "ContainerNotFound": ("The container does not exist", "Check the names of the container and the storage account."),
    "BlobNotFound": ("The blob does not exist", "Check the prefix."),
    "BlobArchived": (
        "The blob is in the archive tier and cannot be read",
        "Move the blob to the hot or cool tier first.",
    ),
}
_UNREACHABLE = "Check the account name and the network connection. Behind a proxy, set HTTPS_PROXY."


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


def settings(source: DataSource) -> dict[str, str]:
    """Return where S3 is by this machine's environment, for nodes that have none of it; no credential is among it."""
    variables = {
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    }
    given = {key: next(filter(None, map(os.environ.get, names)), "") for key, names in variables.items()}
    return {key: value for key, value in given.items() if value and source.scheme == "s3"}


def list_store(source: DataSource) -> Manifest:
    """Return what a source in another store than Blob holds. Raises DataUnavailable, also when it holds nothing."""
    access = stores.access(source.name, source.scheme, address(source), ca=trusted(), settings=settings(source),
                           retries=4)  # fmt: skip
    try:
        return access.use(lambda store: _manifest(store, source))
    except Failure as failure:
        raise DataUnavailable(failure.text, code="data-not-listed", hint=failure.remedy) from None
    except stores.StoreError as error:
        raise DataUnavailable(
            f"Cannot list {place(source)}: {error.answer.status or ''} {error.answer.code}.".replace("  ", " "),
            code="data-not-listed",
            hint="Check the name and the network connection.",
        ) from None


def _manifest(store: Any, source: DataSource) -> Manifest:
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
        raise _empty(source)
    if not stores.version(meta):
        raise DataUnavailable(
            f"{source.container} sends neither an ETag nor a modification time for {source.prefix!r}.",
            code="data-without-version",
            hint="Download the file and use its path, or upload it to a store.",
        )
    return Manifest((Item(source.prefix, meta["size"], stores.version(meta), ""),), single=True)


def list_blobs(account: Account, source: DataSource) -> Manifest:
    """Return what a source in Blob holds. Raises DataUnavailable, also when it holds nothing."""
    with translated(place(source)):
        below = source.prefix.strip("/")
        items = tuple(sorted(_items(account, source.container, f"{below}/" if below else "")))
        if items:
            return Manifest(items, single=False)
        alone = [item for item in _items(account, source.container, below, most=1) if item.name == below]
    if below and alone:
        return Manifest(tuple(alone), single=True)
    raise _empty(source)


def _empty(source: DataSource) -> DataUnavailable:
    return DataUnavailable(
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


@dataclass(frozen=True, slots=True)
class Account:
    """A storage account as this user reaches it. ``warning`` is a sentence for the user, "" when all is as it should.

    ``key`` is an account key from the environment, taken when nobody is signed in; it never leaves this process.
    """

    name: str
    endpoint: str
    client: BlobServiceClient = field(repr=False)
    key: str = field(default="", repr=False)
    warning: str = ""


def account(name: str) -> Account:
    """Return a storage account. Raises NotSignedIn when nobody is and the environment has no key of it."""
    from azure.storage.blob import BlobServiceClient, ExponentialRetry

    from distdl_jupyter.azure import identity

    cloud = identity.endpoints()
    endpoint = cloud.blob_endpoint(name)
    retry = ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=5, random_jitter_range=1)
    settings: dict[str, Any] = {
        "audience": cloud.storage_audience, "connection_timeout": 10, "read_timeout": 60, "retry_policy": retry,
    }  # fmt: skip
    variable, key = _key_of(name)
    try:
        signed_in = identity.credential()
        if key:  # whether it is needed, only a token tells
            _prove(signed_in, cloud.scope(cloud.storage_audience))
        return Account(name, endpoint, BlobServiceClient(endpoint, credential=signed_in, **settings))
    except NotSignedIn:
        if not key:
            raise
    warning = (
        f"Not signed in to Azure, so the account key in {variable} is used for {name}. The key gives access to the "
        "whole account. Sign in to Azure, and remove the key from the environment."
    )
    credential = {"account_name": name, "account_key": key}
    return Account(name, endpoint, BlobServiceClient(endpoint, credential=credential, **settings), key, warning)


def _prove(credential: TokenCredential, scope: str) -> None:
    """Raise NotSignedIn when the credential gives no token."""
    from azure.core.exceptions import ClientAuthenticationError

    try:
        credential.get_token(scope)
    except ClientAuthenticationError as error:
        raise NotSignedIn("Not signed in to Azure.", code="azure-signed-out") from error


def _key_of(name: str) -> tuple[str, str]:
    """Return the variable that holds a key of this account, and the key; ("", "") without one."""
    parts = dict(part.split("=", 1) for part in os.environ.get(_CONNECTION, "").split(";") if "=" in part)
    if parts.get("AccountName") == name and parts.get("AccountKey"):
        return _CONNECTION, parts["AccountKey"]
    if os.environ.get(_KEY) and os.environ.get("AZURE_STORAGE_ACCOUNT", name) == name:
        return _KEY, os.environ[_KEY]
    return "", ""


def signature(
    account: Account, source: DataSource, *, blob: bool, directory: bool = False, life: timedelta = LIFE
) -> str:
    """Return the query of a shared access signature that reads a source's blobs; it holds for ``life``.

    ``blob`` says that the prefix is one blob, ``directory`` that the account has a hierarchical namespace. Raises
    DataUnavailable.
    """
    from azure.storage.blob import (
        BlobSasPermissions,
        ContainerSasPermissions,
        generate_blob_sas,
        generate_container_sas,
    )

    now = datetime.now(UTC)
    start, expiry = now - _BEFORE, now + min(life, LIFE)
    with translated(f"blob://{account.name}/{source.container}"):
        common = _signing(account, start, expiry)
    names = (account.name, source.container)
    if source.prefix and (blob or directory):
        common["is_directory"] = True if directory and not blob else None
        return generate_blob_sas(*names, source.prefix, permission=BlobSasPermissions(read=True), **common)
    return generate_container_sas(*names, permission=ContainerSasPermissions(read=True), **common)


def _signing(account: Account, start: datetime, expiry: datetime) -> dict[str, Any]:
    """Return what signs between these times. Raises AzureError."""
    by = (
        {"account_key": account.key}
        if account.key
        else {"user_delegation_key": account.client.get_user_delegation_key(start, expiry)}
    )
    return {"start": start, "expiry": expiry, "protocol": "https", **by}


def has_directories(account: Account) -> bool:
    """Say whether the account has a hierarchical namespace; False where it does not tell."""
    from azure.core.exceptions import AzureError

    if account.key:
        return False  # a directory is signed with a user delegation key only
    with contextlib.suppress(AzureError):
        return bool(account.client.get_account_information().get("is_hns_enabled"))
    return False


def trusted() -> str:
    """Return the certificates that this process was told to trust, as PEM text for nodes that were not; "" for none."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if os.environ.get(name):
                with open(os.environ[name], encoding="utf-8") as file:  # noqa: PTH123 - a name from the environment
                    return file.read()
    return ""


# what Azure Blob refuses --------------------------------------------------------------------------


@contextlib.contextmanager
def translated(place: str, *, writing: bool = False) -> Iterator[None]:
    """Raise DataUnavailable, which names ``place``, for what azure-core and azure-storage-blob raise inside."""
    from azure.core import exceptions

    role = _WRITE if writing else _READ
    try:
        yield
    except exceptions.HttpResponseError as error:
        raise _refused(place, error, role) from None
    except (exceptions.ServiceRequestError, exceptions.ServiceResponseError) as error:
        raise DataUnavailable(
            f"{place}: {_first_line(error)}.", code="storage-unreachable", hint=_UNREACHABLE
        ) from None
    except exceptions.AzureError as error:
        raise DataUnavailable(f"{place}: {_first_line(error)}.", code="storage-failed") from None


def _refused(place: str, error: object, role: str) -> DataUnavailable:
    code = getattr(error, "error_code", "") or ""
    code = str(getattr(code, "value", code))
    status = getattr(error, "status_code", None)
    what, remedy = _SAYINGS.get(code, ("", ""))
    if not what and status is None:  # azure-identity's own, before Blob was asked
        return DataUnavailable(
            f"{place}: Azure did not issue a token. {_first_line(error)}.",
            code="data-no-token",
            hint="Sign in to Azure again.",
        )
    if not what:
        return DataUnavailable(
            f"{place}: Azure responded with {status} {code}: {_first_line(error)}.".replace(" :", ":"),
            code="storage-refused",
        )
    return DataUnavailable(f"{place}: {what} ({code}).", code=f"storage-{_kebab(code)}", hint=remedy.format(role=role))


def _first_line(error: object) -> str:
    """Return what an error says in one line; the name that was not found stands in for urllib3's own words."""
    text = masked(str(error).strip().split("\n", 1)[0])
    if "Failed to resolve" in text or "Name or service not known" in text:
        return "The name of the storage account cannot be resolved"
    return text[:300].rstrip(".")


def _kebab(code: str) -> str:
    """Return a code of Azure in kebab-case: container-not-found."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", code).lower()
