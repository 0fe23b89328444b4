"""The sign-in to Azure for pages, notebooks and terminals. It never contains a token."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from distdl_jupyter.azure import identity, settings
from distdl_jupyter.azure.settings import AzureSettings, CredentialKind
from distdl_jupyter.core.azure import SignInStatus
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.environment.doctor import Verdict
from distdl_jupyter.views.wire import from_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSignIn(SignInStatus):
    """The sign-in for a page; ``note`` describes what remains after a sign-out."""

    note: str
    settings: AzureSettings


#: Each sign-in method with its purpose.
METHODS: dict[CredentialKind, str] = {
    "default": "Use DefaultAzureCredential: an app's environment variables, a managed identity, az login and others.",
    "device_code": "Use this if Jupyter runs on another machine, for example on a hub. Enter a short code in any "
    "browser.",
    "browser": "Use this if Jupyter runs on this computer. The sign-in page opens in your browser.",
}


def make_sign_in_view(now: SignInStatus | None = None, note: str = "") -> AzureSignIn:
    """Return the sign-in for a page (default: its current status, which may request a token)."""
    status = identity.get_status() if now is None else now
    return from_fields(AzureSignIn, status, note=note, settings=msgspec.structs.replace(settings.read(), record=""))


def format_sign_in(view: AzureSignIn) -> list[str]:
    """Return the sign-in as lines of text: account, next step, settings."""
    account, prompt, problem = view.account, view.prompt, view.problem
    headline = "Waiting for sign-in to complete." if view.state == "waiting" else "Not signed in to Azure."
    values = msgspec.structs.asdict(view.settings)
    if account:
        headline = f"Signed in to Azure as {account.name or 'an unnamed account'}, by {account.kind}."
        values["tenant_id"] = account.tenant_id
    rows = [headline]
    if prompt:
        minutes = max(1, round(prompt.seconds_left / 60))
        rows.append(f"Open {prompt.address} and enter the code {prompt.user_code} within {minutes} min.")
    if problem:
        rows.append(f"{problem.message} {problem.hint}".strip())
    if account:
        defaults = msgspec.structs.asdict(AzureSettings(credential=view.settings.credential))
        rows += [f"  {name} {value}" for name, value in values.items() if value != defaults[name]]
    if view.state in ("signed_out", "failed"):
        rows += ["Sign-in methods:", *(f"  {kind:<11} {text}" for kind, text in METHODS.items())]
    return rows


def check_sign_in() -> list[Verdict]:
    """Return the doctor's row for the sign-in if the settings or the environment configure it. May request a token."""
    try:
        credential = settings.read().credential
    except DistDLError as error:
        return [Verdict("Azure", "fail", error.message, error.hint)]
    if not (credential or os.environ.get("AZURE_CLIENT_ID")):
        return []
    status = identity.get_status()
    if status.account is not None:
        return [Verdict("Azure", "ok", f"{status.account.name} ({status.kind})")]
    message, hint = (status.problem.message, status.problem.hint) if status.problem else ("not signed in", "")
    return [Verdict("Azure", "warn", message, hint or "Run `distdl azure sign-in`.")]


def _change_settings(**changes: Any) -> Any:
    settings.change(**changes)
    return make_sign_in_view()


#: The functions that pages may call, by name. Each may raise DistDLError.
HANDLERS: dict[str, Callable[..., Any]] = {
    "azure.status": lambda: make_sign_in_view(identity.get_status()),
    "azure.sign_in": lambda credential="", **changes: make_sign_in_view(identity.sign_in(credential, **changes)),
    "azure.cancel": lambda: make_sign_in_view(identity.cancel()),
    "azure.sign_out": lambda: make_sign_in_view(identity.sign_out(), identity.SIGN_OUT_NOTE),
    "azure.settings": _change_settings,
    "azure.subscriptions": identity.list_subscriptions,
}
