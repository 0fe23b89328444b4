"""The sign-in to Azure over HTTP: this user's, shared with kernels and jobs. No answer holds a token.

What asks Azure takes seconds and runs in threads of its own, so that a silent one keeps no other request waiting.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from distdl_jupyter.azure.identity import AzureSubscription
from distdl_jupyter.azure.settings import CredentialKind
from distdl_jupyter.server.base import Handler, answers
from distdl_jupyter.views import azure
from distdl_jupyter.views.azure import AzureSignIn
from distdl_jupyter.views.wire import Request

__all__ = ["Azure", "AzureByCode", "AzureChange", "AzureOut", "AzureStart", "AzureSubscriptions"]


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


async def _done(action: str, body: Request | None = None) -> Any:
    given = {} if body is None else {k: v for k, v in msgspec.structs.asdict(body).items() if v is not None}
    return await asyncio.to_thread(lambda: azure.CALLS[f"azure.{action}"](**given))


class Azure(Handler):
    """The sign-in as it is."""

    @answers(AzureSignIn)
    async def get(self) -> AzureSignIn:
        """Return who is signed in to Azure, how, and the other ways to sign in."""
        return await _done("status")  # type: ignore[no-any-return]

    @answers(AzureSignIn, body=AzureChange)
    async def patch(self, body: AzureChange) -> AzureSignIn:
        """Change the settings of the sign-in."""
        return await _done("settings", body)  # type: ignore[no-any-return]


class AzureByCode(Handler):
    """Signing in."""

    @answers(AzureSignIn, status=202, body=AzureStart, refuses=(424,))
    async def post(self, body: AzureStart) -> AzureSignIn:
        """Sign in; the response may have a code to enter."""
        return await _done("sign_in", body)  # type: ignore[no-any-return]

    @answers(AzureSignIn)
    async def delete(self) -> AzureSignIn:
        """Stop waiting for a code or a browser."""
        return await _done("cancel")  # type: ignore[no-any-return]


class AzureOut(Handler):
    """Signing out."""

    @answers(AzureSignIn)
    async def post(self) -> AzureSignIn:
        """Sign out, also in kernels, in jobs and on disk."""
        return await _done("sign_out")  # type: ignore[no-any-return]


class AzureSubscriptions(Handler):
    """What the account may use."""

    @answers(AzureSubscriptionList, refuses=(424, 502))
    async def get(self) -> AzureSubscriptionList:
        """List the subscriptions of the account."""
        return AzureSubscriptionList(tuple(await _done("subscriptions")))
