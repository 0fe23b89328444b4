"""Who this process is for Azure: one credential, chosen by the user, shared by everything that asks Azure.

The way to sign in is ``settings.credential`` and nothing else: what stands in the environment, or an ``az`` that is
logged in, is offered (``azure.ways``) and never taken unasked. ``device_code`` and ``browser`` live in the keeper, the
others in each process. Nothing here prints or returns a token.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure import account as accounts
from distdl_jupyter.azure import credentials, remembered, settings
from distdl_jupyter.azure import status as statuses
from distdl_jupyter.azure.account import Account
from distdl_jupyter.azure.rest import Rest
from distdl_jupyter.azure.status import Problem, Status
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, NotSignedIn

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

    from distdl_jupyter.azure.clouds import Cloud
    from distdl_jupyter.azure.settings import AzureSettings

__all__ = ["Account", "Subscription", "account", "cancel", "credential", "endpoints", "forget", "rest", "sign_in",
           "sign_out", "status", "subscriptions"]  # fmt: skip

HOW = "Sign in: %dist_config azure in a notebook, or distdl azure sign-in in a terminal."
#: The settings that a sign-in belongs to: with others, it is another one.
_BOUND = ("credential", "tenant_id", "client_id", "cloud")
SUBSCRIPTIONS_VERSION = "2022-12-01"
_lock = threading.Lock()
_made: dict[tuple[object, ...], TokenCredential] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A subscription that the account may see."""

    id: str
    name: str
    tenant_id: str = ""
    state: str = ""


def credential() -> TokenCredential:
    """Return the credential of the settings. Raises NotSignedIn with the remedy.

    It follows azure-core's protocol; its own failures are NotSignedIn too.
    """
    settled = settings.read()
    if not settled.credential:
        raise NotSignedIn("Nobody is signed in to Azure.", hint=HOW)
    if settled.credential in credentials.INTERACTIVE:
        return _of_keeper(settled)
    key = (settled, *(os.environ.get(name) for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "PATH")))
    with _lock:
        if key not in _made:
            _made[key] = credentials.unattended(settled.credential, settled)
        return _made[key]


def _of_keeper(settled: AzureSettings) -> TokenCredential:
    from distdl_jupyter.azure.keeper.client import KeeperCredential

    now = _keeper_status(settled)
    if now.account is None:
        problem = now.problem or Problem(message="Nobody is signed in to Azure.", hint=HOW)
        raise NotSignedIn(problem.message, hint=problem.hint or HOW)
    return KeeperCredential()


def _keeper_status(settled: AzureSettings) -> Status:
    """Return what the keeper says of these settings; one is started where a sign-in was kept on disk."""
    from distdl_jupyter.azure.keeper import client

    told = client.ask("status")
    if (told is None or told["state"] == "signed_out") and settled.token_cache and remembered.there():
        told = client.ask("resume", start=True, kind=settled.credential, settings=dataclasses.asdict(settled))
    if told is None:
        return Status(state="signed_out", kind=settled.credential)
    now, held = statuses.of_json(told), told.get("settings") or {}
    if not held or all(held.get(name) == getattr(settled, name) for name in _BOUND):
        return now
    if now.state == "waiting":  # It is held for other settings than those that somebody signs in for.
        return dataclasses.replace(now, account=None)
    changed = Problem(message="The settings for Azure were changed after the sign-in.", hint="Sign in again.")
    return Status(state="failed", kind=settled.credential, problem=now.problem or changed)


def account() -> Account | None:
    """Return who is signed in, None when nobody is. Asks for a token, which is not kept beyond this process."""
    return status().account


def status() -> Status:
    """Return where the sign-in stands, for pages; failures are data. May ask for a token over the network."""
    settled = settings.read()
    try:
        if not settled.credential:
            return Status(state="signed_out")
        if settled.credential in credentials.INTERACTIVE:
            return _with_subscription(_keeper_status(settled), settled)
        return _with_subscription(_unattended_status(settled), settled)
    except DistDLError as error:
        return Status(state="failed", kind=settled.credential, problem=Problem(message=error.message, hint=error.hint))


def _unattended_status(settled: AzureSettings) -> Status:
    cloud = settled.endpoints
    token = credential().get_token(cloud.scope(cloud.resource_manager)).token
    return Status(state="signed_in", kind=settled.credential, account=accounts.of_token(token, settled.credential))


def _with_subscription(now: Status, settled: AzureSettings) -> Status:
    if now.account is None:
        return now
    return dataclasses.replace(now, account=dataclasses.replace(now.account, subscription=settled.subscription_id))


def sign_in(kind: str = "", **changes: Any) -> Status:
    """Sign in this way (default: the one of the settings) and return where that stands.

    ``device_code`` and ``browser`` come back while they wait for somebody: ask ``status()`` again. Other settings, such
    as ``tenant_id``, may be changed along. Raises InvalidSpec for a setting that cannot be.
    """
    from distdl_jupyter.azure.keeper import client

    settled = settings.change(**({"credential": kind} if kind else {}), **changes)
    if not settled.credential:
        raise InvalidSpec("It is not said how to sign in.", field="credential",
                          hint="There are: cli, device_code, browser, managed_identity, environment.")  # fmt: skip
    forget()
    if settled.credential not in credentials.INTERACTIVE:
        now = status()
        if now.account is not None:
            client.ask("sign_out")  # Nobody uses what it may hold any more.
        return now
    told = client.ask("sign_in", start=True, kind=settled.credential, settings=dataclasses.asdict(settled))
    return statuses.of_json(told) if told else status()


def cancel() -> Status:
    """Stop waiting for a code or a browser; who was signed in before stays so."""
    from distdl_jupyter.azure.keeper import client

    told = client.ask("cancel")
    if told and told.get("settings"):
        settings.change(**{name: told["settings"][name] for name in _BOUND})
    return status()


def sign_out() -> Status:
    """Forget the sign-in: here, in the keeper, on disk. ``az`` and the environment keep theirs; they are not used."""
    from distdl_jupyter.azure.keeper import client

    if client.ask("sign_out") is None:
        remembered.forget()
    settings.change(credential="")
    forget()
    return status()


def subscriptions() -> list[Subscription]:
    """Return the subscriptions that the account may see, by name. Raises NotSignedIn, AzureRefused."""
    found = rest().pages("/subscriptions", SUBSCRIPTIONS_VERSION)
    listed = [
        Subscription(id=one["subscriptionId"], name=one.get("displayName") or one["subscriptionId"],
                     tenant_id=one.get("tenantId") or "", state=one.get("state") or "")
        for one in found
    ]  # fmt: skip
    return sorted(listed, key=lambda one: one.name.lower())


def endpoints() -> Cloud:
    """Return the addresses of the cloud that the settings name. Raises InvalidSpec."""
    return settings.read().endpoints


def rest() -> Rest:
    """Return the resource manager with the credential. Raises NotSignedIn."""
    cloud = endpoints()
    return Rest(cloud.resource_manager, credential(), cloud.scope(cloud.resource_manager))


def forget() -> None:
    """Drop the credentials that this process made, with their tokens."""
    with _lock:
        _made.clear()
