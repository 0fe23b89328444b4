"""The sign-in to Azure over HTTP: this user's, shared with kernels and jobs. No answer holds a token.

Calls to Azure take seconds and run in threads of their own, so that no other request waits for a silent service.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from distdl_jupyter.api.call import delete, get, patch, post
from distdl_jupyter.azure.settings import CredentialKind
from distdl_jupyter.core.azure import AzureSubscription
from distdl_jupyter.views import azure
from distdl_jupyter.views.azure import AzureSignIn
from distdl_jupyter.views.wire import Request

_Tenant = Annotated[str, Meta(description="Tenant (directory) to sign in to.")]
_Client = Annotated[str, Meta(description="Client id of an app registration, or of a user-assigned managed identity.")]
_TokenCache = Annotated[
    str,
    Meta(description='Where to store the sign-in: "" (keyring, otherwise a file of this user) or "keyring" (no file).'),
]


class AzureStart(Request, frozen=True):
    """A way to sign in; what is null stays as the settings have it."""

    credential: CredentialKind
    tenant_id: _Tenant | None = None
    client_id: _Client | None = None
    token_cache: _TokenCache | None = None


class AzureChange(Request, frozen=True):
    """Settings to change; null leaves one as it is, "" takes it back to its default."""

    tenant_id: _Tenant | None = None
    client_id: _Client | None = None
    subscription_id: Annotated[str, Meta(description="Subscription to offer first.")] | None = None
    cloud: Annotated[str, Meta(description="AzureCloud, AzureUSGovernment, AzureChinaCloud.")] | None = None
    token_cache: _TokenCache | None = None


@dataclass(frozen=True, slots=True)
class AzureSubscriptionList:
    """The subscriptions, by name."""

    subscriptions: tuple[AzureSubscription, ...]


async def _call(name: str, body: Request | None = None) -> AzureSignIn:
    """Return the sign-in after a call."""
    options = {} if body is None else {k: v for k, v in msgspec.structs.asdict(body).items() if v is not None}
    result: AzureSignIn = await asyncio.to_thread(azure.CALLS[f"azure.{name}"], **options)
    return result


@get("/azure")
async def status() -> AzureSignIn:
    """Return who is signed in to Azure, how, and the other ways to sign in."""
    return await _call("status")


@patch("/azure")
async def change(body: AzureChange) -> AzureSignIn:
    """Change the settings of the sign-in."""
    return await _call("settings", body)


@post("/azure/sign-in", status=202, refuses=(424,))
async def sign_in(body: AzureStart) -> AzureSignIn:
    """Sign in; the response may have a code to enter."""
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
