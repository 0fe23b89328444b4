"""What Azure Blob answers when it refuses, as sentences with their remedies.

The codes are those of learn.microsoft.com/rest/api/storageservices/blob-service-error-codes and its common ones.
No address with a signature reaches a message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from distdl_jupyter.azure.rest import masked
from distdl_jupyter.core.errors import DataUnavailable

_READ = "Storage Blob Data Reader"
_WRITE = "Storage Blob Data Contributor"
#: Azure's word: (what is the matter, the remedy). ``{role}`` is the one that is needed.
_SAYINGS = {
    "AuthorizationPermissionMismatch": (
        "The account that is signed in may not do this",
        "Assign it the role {role} on the container or the storage account; a new role takes some minutes to work.",
    ),
    "AuthorizationFailure": (
        "The storage account refuses requests from this network",
        "Allow this machine's network in the account's networking settings, or use a private endpoint.",
    ),
    "PublicAccessNotPermitted": (
        "The storage account allows no access without a sign-in",
        "Sign in to Azure with an account that has the role {role}.",
    ),
    "KeyBasedAuthenticationNotPermitted": (
        "The storage account takes no account keys",
        "Take the key out of the environment and sign in to Azure.",
    ),
    "AuthenticationFailed": (
        "Azure does not accept the sign-in for this storage account",
        "Sign in to Azure again, and check that this machine's clock is right.",
    ),
    "InvalidAuthenticationInfo": (
        "Azure does not accept the sign-in for this storage account",
        "Sign in to the tenant that the storage account belongs to.",
    ),
    "NoAuthenticationInformation": (
        "The storage account allows no access without a sign-in",
        "Sign in to Azure with an account that has the role {role}.",
    ),
    "AuthorizationProtocolMismatch": (
        "The storage account takes https only",
        "Use an https address for the cloud's blobs.",
    ),
    "ContainerNotFound": ("There is no such container", "Check its name, and that it is in this storage account."),
    "ContainerBeingDeleted": ("The container is being deleted", "Choose another one, or wait and make it again."),
    "ContainerDisabled": ("The container is disabled", "Ask the owner of the storage account."),
    "BlobNotFound": ("There is no such blob", "Check the prefix."),
    "ResourceNotFound": ("There is no such container or blob", "Check the names."),
    "AccountIsDisabled": ("The storage account is disabled", "Ask the owner of its subscription."),
    "BlobArchived": ("A blob is in the archive tier, where it cannot be read", "Move it to another tier first."),
    "BlobImmutableDueToPolicy": ("A policy forbids to change the blob", "Choose another place."),
    "InsufficientAccountPermissions": ("The storage account is read-only for now", "Try again later."),
    "ServerBusy": ("The storage account is busy", "Try again in some minutes."),
}  # fmt: skip
_UNREACHABLE = "Check the account's name and this machine's connection; behind a proxy set HTTPS_PROXY."


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
        raise DataUnavailable(f"{place}: {_first_line(error)}.", hint=_UNREACHABLE) from None
    except exceptions.AzureError as error:
        raise DataUnavailable(f"{place}: {_first_line(error)}.") from None


def _refused(place: str, error: object, role: str) -> DataUnavailable:
    code = getattr(error, "error_code", "") or ""
    code = str(getattr(code, "value", code))
    status = getattr(error, "status_code", None)
    what, remedy = _SAYINGS.get(code, ("", ""))
    if not what and status is None:  # azure-identity's own, before Blob was asked
        return DataUnavailable(
            f"{place}: Azure gave no token. {_first_line(error)}.", code="data-no-token", hint="Sign in to Azure again."
        )
    if not what:
        return DataUnavailable(f"{place}: Azure answered {status} {code}: {_first_line(error)}.".replace(" :", ":"))
    return DataUnavailable(f"{place}: {what} ({code}).", hint=remedy.format(role=role))


def _first_line(error: object) -> str:
    """Return what an error says in one line; the name that was not found stands in for urllib3's own words."""
    text = masked(str(error).strip().split("\n", 1)[0])
    if "Failed to resolve" in text or "Name or service not known" in text:
        return "No storage account of this name answers"
    return text[:300].rstrip(".")
