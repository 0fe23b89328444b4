"""The sign-in to Azure as pages, notebooks and terminals show it. It has no token."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from distdl_jupyter.azure import identity, settings
from distdl_jupyter.azure.settings import AzureSettings, CredentialKind
from distdl_jupyter.core.azure import SignInStatus
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.environment.doctor import Row
from distdl_jupyter.views.wire import from_fields

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSignIn(SignInStatus):
    """The sign-in for a page. ``note`` is about a sign-out."""

    note: str
    settings: AzureSettings


#: Each sign-in method with what it is for.
METHODS: dict[CredentialKind, str] = {
    "default": "azure-identity's DefaultAzureCredential: variables of an app, a managed identity, az login and others.",
    "device_code": "Jupyter runs on another machine, for example a hub. Enter a short code in any browser.",
    "browser": "Jupyter runs on this computer: a page opens in its browser.",
}


def sign_in_view(now: SignInStatus | None = None, note: str = "") -> AzureSignIn:
    """Return the sign-in as a page shows it (default: as it is now, which may ask for a token)."""
    status = identity.status() if now is None else now
    return from_fields(AzureSignIn, status, note=note, settings=msgspec.structs.replace(settings.read(), record=""))


def sign_in_lines(view: AzureSignIn) -> list[str]:
    """Return the sign-in as lines of text: who, how, what to do."""
    rows = [_headline(view)]
    if view.prompt:
        rows.append(f"Open {view.prompt.address} and enter the code {view.prompt.user_code} within "
                    f"{max(1, round(view.prompt.seconds_left / 60))} min.")  # fmt: skip
    if view.problem:
        rows.append(f"{view.problem.message} {view.problem.hint}".strip())
    if view.account:
        rows += [f"  {name} {value}" for name, value in _facts(view) if value]
    if view.settings.region:
        rows += [f"  region {view.settings.region}", f"  currency {view.settings.currency}"]
    if view.state in ("signed_out", "failed"):
        rows += ["Sign-in methods:", *(f"  {kind:<11} {text}" for kind, text in METHODS.items())]
    return rows


def _headline(view: AzureSignIn) -> str:
    if view.account:
        return f"Signed in to Azure as {view.account.name or 'an unnamed account'}, by {view.account.kind}."
    return "Waiting for sign-in to complete." if view.state == "waiting" else "Not signed in to Azure."


def _facts(view: AzureSignIn) -> list[tuple[str, str]]:
    settings, account = view.settings, view.account
    return [
        ("tenant_id", account.tenant_id if account else settings.tenant_id),
        ("subscription_id", settings.subscription_id),
        ("client_id", settings.client_id),
        ("cloud", "" if settings.cloud == "AzureCloud" else settings.cloud),
        ("token_cache", settings.token_cache),
    ]


def doctor_rows() -> list[Row]:
    """Return the doctor's row of the sign-in, if the settings or the environment name one. May request a token."""
    try:
        credential = settings.read().credential
    except DistDLError as error:
        return [Row("Azure", "fail", error.message, error.hint)]
    if not (credential or os.environ.get("AZURE_CLIENT_ID")):
        return []
    status = identity.status()
    if status.account is not None:
        return [Row("Azure", "ok", f"{status.account.name} ({status.kind})")]
    problem = status.problem.message if status.problem else "not signed in"
    remedy = (status.problem.hint if status.problem else "") or "Run `distdl azure sign-in`."
    return [Row("Azure", "warn", problem, remedy)]


def _changed(**changes: Any) -> Any:
    settings.change(**changes)
    return sign_in_view()


#: What pages may ask for, by name. Each raises DistDLError.
CALLS: dict[str, Callable[..., Any]] = {
    "azure.status": lambda: sign_in_view(identity.status()),
    "azure.sign_in": lambda credential="", **changes: sign_in_view(identity.sign_in(credential, **changes)),
    "azure.cancel": lambda: sign_in_view(identity.cancel()),
    "azure.sign_out": lambda: sign_in_view(identity.sign_out(), identity.REMAINS),
    "azure.settings": _changed,
    "azure.subscriptions": identity.subscriptions,
}
