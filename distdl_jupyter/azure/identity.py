"""Who this process is for Azure: one credential, chosen by the user, shared by everything that asks Azure.

The way to sign in is ``settings.credential`` and nothing else: what stands in the environment, or an ``az`` that is
logged in, is offered (``azure.methods``) and never taken unasked. Each process makes its credential from the settings;
who signed in by ``device_code`` or ``browser`` is stored for all of them (``azure.stored``). It prints no token.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure import account as accounts
from distdl_jupyter.azure import attempt, credentials, errors, settings, stored
from distdl_jupyter.azure.account import Account
from distdl_jupyter.azure.rest import Rest
from distdl_jupyter.azure.status import Problem, Status
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, NotSignedIn

if TYPE_CHECKING:
    from azure.core.credentials import AccessTokenInfo, TokenCredential, TokenRequestOptions

    from distdl_jupyter.azure.clouds import Cloud
    from distdl_jupyter.azure.settings import AzureSettings
    from distdl_jupyter.azure.stored import SignIn

__all__ = ["Account", "Subscription", "account", "cancel", "credential", "endpoints", "forget", "rest", "sign_in",
           "sign_out", "status", "subscriptions"]  # fmt: skip

HOW = "Sign in: %dist_config azure in a notebook, or distdl azure sign-in in a terminal."
SUBSCRIPTIONS_VERSION = "2022-12-01"
#: How often the cache is read where it seems to hold no token: another process may just have been writing it, and MSAL
#: empties the file before that.
_LOOKS = 3
_lock = threading.Lock()
_made: dict[tuple[object, ...], Any] = {}


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
        raise NotSignedIn("Not signed in to Azure.", code="azure-signed-out", hint=HOW)
    if settled.credential in credentials.INTERACTIVE:
        _check(stored.read(), settled)
        return _OfPerson()
    key = (settled, *(os.environ.get(name) for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "PATH")))
    with _lock:
        if key not in _made:
            _made[key] = credentials.unattended(settled.credential, settled)
        made: TokenCredential = _made[key]
        return made


def _check(found: SignIn | None, settled: AzureSettings) -> None:
    """Raise NotSignedIn unless somebody signed in with these settings."""
    if found is None:
        asked = attempt.seen()
        problem = (asked and asked.problem) or Problem(message="Not signed in to Azure.", hint=HOW)
        raise NotSignedIn(problem.message, code=problem.code, hint=problem.hint or HOW)
    if not found.is_of(settled):
        raise NotSignedIn(
            "The settings for Azure were changed after the sign-in.",
            code="azure-settings-changed",
            hint="Sign in again.",
        )


def _silent(found: SignIn) -> Any:
    settled = dataclasses.replace(settings.read(), **found.bound)
    with _lock:
        if (found, settled) not in _made:
            cache = stored.cache(allow_file=settled.token_cache != "keyring")  # noqa: S105 - where tokens go
            _made[found, settled] = credentials.silent(settled, cache, found.record)
        return _made[found, settled]


class _OfPerson(credentials.Credential):
    """Whoever is signed in by device code or browser at the moment of each request: a sign-out counts at once."""

    def get_token_info(self, *scopes: str, options: TokenRequestOptions | None = None) -> AccessTokenInfo:
        """Return a token with what is known of it (azure-core's newer protocol). Raises NotSignedIn."""
        found = stored.read()
        if found is None:
            raise NotSignedIn(
                "The sign-in to Azure has ended.", code="azure-sign-in-ended", hint="Sign in to Azure again."
            )
        # The sign-in was asked for without continuous access evaluation, whose tokens have a cache of their own.
        given: TokenRequestOptions = {**(options or {}), "enable_cae": False}
        for _ in range(_LOOKS):
            try:
                token = credentials.asked(_silent(found), scopes, given)
                break
            except NotSignedIn as error:
                if error.message != errors.EXPIRED:
                    raise
                late = error
                stored.wait()
                forget()
        else:
            raise late
        if stored.read() is None:
            stored.forget()  # Somebody signed out while this token was renewed, and the cache has it again.
            raise NotSignedIn(
                "The sign-in to Azure has ended.", code="azure-sign-in-ended", hint="Sign in to Azure again."
            )
        return token


def account() -> Account | None:
    """Return who is signed in, None when nobody is. Asks for a token, which is not kept beyond this process."""
    return status().account


def status() -> Status:
    """Return where the sign-in stands, for pages; failures are data. May ask for a token over the network."""
    settled = settings.read()
    now = _by_token(settled)
    asked = attempt.seen() if settled.credential in credentials.INTERACTIVE else None
    if asked is None:
        return now
    if asked.problem and now.account:
        return dataclasses.replace(now, problem=asked.problem)
    return dataclasses.replace(asked, account=now.account)


def _by_token(settled: AzureSettings) -> Status:
    """Return who a token speaks for."""
    kind, note = settled.credential, ""
    try:
        if kind in credentials.INTERACTIVE:
            found = stored.read()
            note = found.note if found else ""
        if not kind or (kind in credentials.INTERACTIVE and found is None):
            return Status(state="signed_out", kind=kind)
        cloud = settled.endpoints
        token = credential().get_token(cloud.scope(cloud.resource_manager)).token
        account = accounts.of_token(token, kind, settled.subscription_id)
        return Status(state="signed_in", kind=kind, account=account, note=note)
    except DistDLError as error:
        return Status(
            state="failed", kind=kind, problem=Problem(message=error.message, hint=error.hint, code=error.code)
        )


def sign_in(kind: str = "", **changes: Any) -> Status:
    """Sign in this way (default: the one of the settings) and return where that stands.

    ``device_code`` and ``browser`` come back while they wait for somebody: ask ``status()`` again. The wait ends with
    this process; a sign-in that succeeded serves all. Other settings, such as ``tenant_id``, may be changed along.
    Raises InvalidSpec for a setting that cannot be.
    """
    settled = settings.change(**({"credential": kind} if kind else {}), **changes)
    if not settled.credential:
        raise InvalidSpec(
            "No sign-in method is set.",
            code="azure-sign-in-kind-missing",
            field="credential",
            hint="Use one of: cli, device_code, browser, managed_identity, environment.",
        )
    forget()
    if settled.credential in credentials.INTERACTIVE:
        attempt.begin(settled)
        return status()
    now = status()
    if now.account is not None:  # Nobody uses the sign-in before it any more.
        attempt.drop()
        stored.forget()
    return now


def cancel() -> Status:
    """Stop waiting for a code or a browser; who was signed in before stays so."""
    attempt.drop()
    with contextlib.suppress(NotSignedIn):  # The status says so too.
        if found := stored.read():
            settings.change(**found.bound)
    return status()


def sign_out() -> Status:
    """Forget the sign-in, for all processes. ``az`` and the environment keep theirs; they are not used."""
    attempt.drop()
    settings.change(credential="")
    forget()
    stored.forget()
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
