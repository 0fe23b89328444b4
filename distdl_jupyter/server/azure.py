"""The sign-in to Azure over HTTP: this user's, shared with kernels and jobs. No answer holds a token.

What asks Azure takes seconds and runs in threads of its own, so that a silent one keeps no other request waiting.
"""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass, field
from typing import Any

from distdl_jupyter.azure.settings import CredentialKind
from distdl_jupyter.server.base import Handler, answers
from distdl_jupyter.views import azure
from distdl_jupyter.views.azure import AzureSignIn, AzureSubscription

__all__ = ["Azure", "AzureByCode", "AzureChange", "AzureOut", "AzureStart", "AzureSubscriptions"]


def _option(help_: str) -> Any:
    return field(default=None, metadata={"help": help_})


@dataclass(frozen=True, slots=True)
class AzureStart:
    """A way to sign in; what is null stays as the settings have it."""

    credential: CredentialKind
    tenant_id: str | None = _option("Tenant (directory) to sign in to.")
    client_id: str | None = _option("Client id of an app registration, or of a user-assigned managed identity.")
    token_cache: str | None = _option(
        'Where the sign-in is kept: "" (keyring, else a file of the user alone) or "keyring" (no file).'
    )


@dataclass(frozen=True, slots=True)
class AzureChange:
    """Settings to change; null leaves one as it is, "" takes it back to its default."""

    tenant_id: str | None = _option("Tenant (directory) to sign in to.")
    client_id: str | None = _option("Client id of an app registration, or of a user-assigned managed identity.")
    subscription_id: str | None = _option("Subscription that is offered first.")
    cloud: str | None = _option("AzureCloud, AzureUSGovernment, AzureChinaCloud.")
    token_cache: str | None = _option(
        'Where the sign-in is kept: "" (keyring, else a file of the user alone) or "keyring" (no file).'
    )


@dataclass(frozen=True, slots=True)
class AzureSubscriptionList:
    """The subscriptions, by name."""

    subscriptions: tuple[AzureSubscription, ...]


async def _done(action: str, body: object = None) -> Any:
    given = {} if body is None else {k: v for k, v in dataclasses.asdict(body).items() if v is not None}  # type: ignore[call-overload]
    return await asyncio.to_thread(lambda: azure.CALLS[f"azure.{action}"](**given))


class Azure(Handler):
    """The sign-in as it is."""

    @answers(AzureSignIn)
    async def get(self) -> AzureSignIn:
        """Say who is signed in to Azure, how, and how else one could."""
        return await _done("status")  # type: ignore[no-any-return]

    @answers(AzureSignIn, body=AzureChange)
    async def patch(self, body: AzureChange) -> AzureSignIn:
        """Change settings of the sign-in."""
        return await _done("settings", body)  # type: ignore[no-any-return]


class AzureByCode(Handler):
    """Signing in."""

    @answers(AzureSignIn, status=202, body=AzureStart, refuses=(424,))
    async def post(self, body: AzureStart) -> AzureSignIn:
        """Sign in; the answer may hold a code that somebody has to enter."""
        return await _done("sign_in", body)  # type: ignore[no-any-return]

    @answers(AzureSignIn)
    async def delete(self) -> AzureSignIn:
        """Stop waiting for a code or a browser."""
        return await _done("cancel")  # type: ignore[no-any-return]


class AzureOut(Handler):
    """Signing out."""

    @answers(AzureSignIn)
    async def post(self) -> AzureSignIn:
        """Forget the sign-in: in kernels, jobs and on disk too."""
        return await _done("sign_out")  # type: ignore[no-any-return]


class AzureSubscriptions(Handler):
    """What the account may use."""

    @answers(AzureSubscriptionList, refuses=(424, 502))
    async def get(self) -> AzureSubscriptionList:
        """List the subscriptions that the account may see."""
        return AzureSubscriptionList(await _done("subscriptions"))
