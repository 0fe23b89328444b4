"""The right to read and write blobs: the user's own sign-in here, and short-lived signatures for the nodes.

A node gets a user-delegation SAS (learn.microsoft.com/rest/api/storageservices/create-user-delegation-sas): https
only, reading only, an hour at most, renewed when it is asked for again. A source that is a single blob gets one for
that blob. Otherwise it is for the container: in an account without hierarchical namespace nothing smaller than a
container and larger than a blob can be signed; with one it is for the source's directory. Signatures are returned to
whoever asks and kept nowhere.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import NotSignedIn
from distdl_jupyter.storage.failures import translated

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential
    from azure.storage.blob import BlobServiceClient

    from distdl_jupyter.core.data import DataSource

#: The longest life of a signature, and how far before now it begins: clocks differ.
LIFE, _BEFORE = timedelta(hours=1), timedelta(minutes=15)
_KEY, _CONNECTION = "AZURE_STORAGE_KEY", "AZURE_STORAGE_CONNECTION_STRING"


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
