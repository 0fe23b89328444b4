"""HTTP API for the user's sign-in to Azure, shared with kernels and jobs. No response contains a token.

Calls to Azure take seconds and run in separate threads, so that no other request waits for a slow service.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from distdl_jupyter.api.call import delete, get, patch, post
from distdl_jupyter.azure.settings import CredentialKind
from distdl_jupyter.core.azure import AzureSubscription
from distdl_jupyter.views import azure
from distdl_jupyter.views.azure import AzureSignIn
from distdl_jupyter.views.wire import PageRequest


class AzureChange(PageRequest, frozen=True, kw_only=True):
    """Settings to change; null leaves a setting unchanged, "" restores its default.

    ``tenant_id`` is the tenant (directory) to sign in to, ``client_id`` that of an app registration or of a
    user-assigned managed identity, ``subscription_id`` the subscription to offer first, ``cloud`` AzureCloud,
    AzureUSGovernment or AzureChinaCloud. ``token_cache`` is where the sign-in is stored: "" (keyring, otherwise a file
    of this user) or "keyring" (no file).
    """

    tenant_id: str | None = None
    client_id: str | None = None
    subscription_id: str | None = None
    cloud: str | None = None
    token_cache: str | None = None


class AzureStart(AzureChange, frozen=True, kw_only=True):
    """A sign-in method, with settings to change first."""

    credential: CredentialKind


@dataclass(frozen=True, slots=True)
class AzureSubscriptionList:
    """The subscriptions, by name."""

    subscriptions: tuple[AzureSubscription, ...]


async def _call(name: str, body: PageRequest | None = None) -> AzureSignIn:
    """Return the sign-in after a call."""
    options = {} if body is None else msgspec.structs.asdict(body)
    changes = {option: value for option, value in options.items() if value is not None}
    result: AzureSignIn = await asyncio.to_thread(azure.CALLS[f"azure.{name}"], **changes)
    return result


@get("/azure")
async def status() -> AzureSignIn:
    """Return the Azure account, its sign-in method, and the other methods."""
    return await _call("status")


@patch("/azure")
async def change(body: AzureChange) -> AzureSignIn:
    """Change the settings of the sign-in."""
    return await _call("settings", body)


@post("/azure/sign-in", status=202, refuses=(424,))
async def sign_in(body: AzureStart) -> AzureSignIn:
    """Sign in; the response may contain a code to enter."""
    return await _call("sign_in", body)


@delete("/azure/sign-in")
async def cancel_sign_in() -> AzureSignIn:
    """Stop waiting for a code or a browser."""
    return await _call("cancel")


@post("/azure/sign-out")
async def sign_out() -> AzureSignIn:
    """Sign out, also in kernels, in jobs and on disk."""
    return await _call("sign_out")


@get("/azure/subscriptions", refuses=(424, 502))
async def subscriptions() -> AzureSubscriptionList:
    """List the subscriptions of the account."""
    return AzureSubscriptionList(tuple(await asyncio.to_thread(azure.CALLS["azure.subscriptions"])))
