"""What Azure Blob answers when it refuses, as sentences with their remedies.

The codes are those of learn.microsoft.com/rest/api/storageservices/blob-service-error-codes and its common ones.
No address with a signature reaches a message.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from distdl_jupyter.azure.rest import masked
from distdl_jupyter.core.errors import DataUnavailable

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
    "InvalidAuthenticationInfo": (
        "Azure rejected the sign-in for this storage account",
        "Sign in to the tenant that the storage account belongs to.",
    ),
    "NoAuthenticationInformation": (
        "The storage account does not allow anonymous access",
        "Sign in to Azure with an account that has the role {role}.",
    ),
    "AuthorizationProtocolMismatch": (
        "The storage account accepts only https",
        "Use an https address for the blob service of the cloud.",
    ),
    "ContainerNotFound": ("The container does not exist", "Check the names of the container and the storage account."),
    "ContainerBeingDeleted": ("The container is being deleted", "Use another container, or wait and create it again."),
    "ContainerDisabled": ("The container is disabled", "Ask the owner of the storage account."),
    "BlobNotFound": ("The blob does not exist", "Check the prefix."),
    "ResourceNotFound": ("The container or blob does not exist", "Check the names."),
    "AccountIsDisabled": ("The storage account is disabled", "Ask the owner of its subscription."),
    "BlobArchived": (
        "The blob is in the archive tier and cannot be read",
        "Move the blob to the hot or cool tier first.",
    ),
    "BlobImmutableDueToPolicy": ("A policy forbids changes to the blob", "Use another container or prefix."),
    "InsufficientAccountPermissions": ("The storage account is read-only for now", "Try again later."),
    "ServerBusy": ("The storage account is busy", "Try again in a few minutes."),
}
_UNREACHABLE = "Check the account name and the network connection. Behind a proxy, set HTTPS_PROXY."


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
