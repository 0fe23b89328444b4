"""The sign-in to Azure as pages, notebooks and terminals show it. No token comes here: see ``azure.status``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from distdl_jupyter.azure import identity, methods, settings
from distdl_jupyter.azure.settings import AzureSettings, CredentialKind, TokenCache
from distdl_jupyter.azure.status import State, Status

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class AzureAccount:
    """Who is signed in; "" for what is not known."""

    name: str
    kind: str
    tenant_id: str
    object_id: str
    subscription: str


@dataclass(frozen=True, slots=True)
class AzurePrompt:
    """A code to enter at an address, within so many seconds."""

    user_code: str
    address: str
    seconds_left: float


@dataclass(frozen=True, slots=True)
class AzureProblem:
    """Why nobody is signed in, the remedy, and the code of the error."""

    message: str
    hint: str
    code: str


@dataclass(frozen=True, slots=True)
class AzureWay:
    """A way to sign in; ``ready`` when what it needs is here."""

    kind: CredentialKind
    ready: bool
    suggested: bool


@dataclass(frozen=True, slots=True)
class AzureChoices:
    """The settings that a sign-in depends on."""

    credential: CredentialKind | Literal[""]
    tenant_id: str
    client_id: str
    subscription_id: str
    cloud: str
    token_cache: TokenCache


@dataclass(frozen=True, slots=True)
class AzureSignIn:
    """All that a page shows of the sign-in. ``warning`` is of a key in the environment, ``note`` hinders nothing."""

    state: State
    kind: str
    account: AzureAccount | None
    prompt: AzurePrompt | None
    problem: AzureProblem | None
    note: str
    warning: str
    ways: tuple[AzureWay, ...]
    settings: AzureChoices


@dataclass(frozen=True, slots=True)
class AzureSubscription:
    """A subscription that the account may see."""

    id: str
    name: str
    tenant_id: str
    state: str


def sign_in_view(now: Status | None = None) -> AzureSignIn:
    """Return the sign-in as a page shows it (default: as it is now, which may ask for a token)."""
    status = identity.status() if now is None else now
    account, prompt, problem = status.account, status.prompt, status.problem
    return AzureSignIn(
        state=status.state,
        kind=status.kind,
        account=AzureAccount(account.name, account.kind, account.tenant_id, account.object_id, account.subscription)
        if account
        else None,
        prompt=AzurePrompt(prompt.user_code, prompt.address, max(0.0, prompt.until - time.time())) if prompt else None,
        problem=AzureProblem(problem.message, problem.hint, problem.code) if problem else None,
        note=status.note,
        warning=methods.warning(),
        ways=tuple(AzureWay(way.kind, way.ready, way.suggested) for way in methods.offered()),
        settings=_choices(settings.read()),
    )


def _choices(own: AzureSettings) -> AzureChoices:
    return AzureChoices(own.credential, own.tenant_id, own.client_id, own.subscription_id, own.cloud, own.token_cache)


def subscriptions() -> tuple[AzureSubscription, ...]:
    """Return the subscriptions that the account may see. Raises NotSignedIn, AzureRefused."""
    return tuple(AzureSubscription(each.id, each.name, each.tenant_id, each.state) for each in identity.subscriptions())


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
    rows += [f"  {name} {value}" for name, value in _prices() if value]
    rows += [text for text in (view.note, view.warning) if text]
    if view.state in ("signed_out", "failed"):
        rows += ["Sign-in methods:", *(f"  {way.kind:<17} {_when(way)}" for way in view.ways)]
    return rows


def _headline(view: AzureSignIn) -> str:
    if view.account:
        return f"Signed in to Azure as {view.account.name or 'an unnamed account'}, by {view.account.kind}."
    return "Waiting for sign-in to complete." if view.state == "waiting" else "Not signed in to Azure."


def _facts(view: AzureSignIn) -> list[tuple[str, str]]:
    own, account = view.settings, view.account
    return [
        ("tenant_id", account.tenant_id if account else own.tenant_id),
        ("subscription_id", own.subscription_id),
        ("client_id", own.client_id),
        ("cloud", "" if own.cloud == "AzureCloud" else own.cloud),
        ("token_cache", own.token_cache),
    ]


def _prices() -> list[tuple[str, str]]:
    """Return what sizes and prices are asked for with, signed in or not."""
    own = settings.read()
    return [("region", own.region), ("currency", own.currency)] if own.region else []


def _when(way: AzureWay) -> str:
    return methods.WHEN[way.kind] + (" (recommended)" if way.suggested else "")


#: What a page may ask for, by message or over HTTP.
def _changed(**changes: Any) -> Any:
    settings.change(**changes)
    return sign_in_view()


#: What pages may ask for, by name. Each raises DistDLError.
CALLS: dict[str, Callable[..., Any]] = {
    "azure.status": lambda: sign_in_view(identity.status()),
    "azure.sign_in": lambda credential="", **changes: sign_in_view(identity.sign_in(credential, **changes)),
    "azure.cancel": lambda: sign_in_view(identity.cancel()),
    "azure.sign_out": lambda: sign_in_view(identity.sign_out()),
    "azure.settings": _changed,
    "azure.subscriptions": subscriptions,
}
