"""Data classes of the Azure sign-in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureAccount:
    """The signed-in user or app; ``kind`` is the sign-in method."""

    name: str
    kind: str
    tenant_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSubscription:
    """A subscription that the account can see."""

    id: str
    name: str
    tenant_id: str
    state: str


@dataclass(frozen=True, slots=True)
class AzurePrompt:
    """Instructions for the sign-in: open ``address`` and enter ``user_code`` within ``seconds_left`` seconds."""

    user_code: str
    address: str
    seconds_left: float


@dataclass(frozen=True, slots=True)
class AzureProblem:
    """The reason why the sign-in failed, the fix, and the error code."""

    message: str
    hint: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInStatus:
    """The state of the sign-in. ``prompt`` is None while waiting for a browser; ``problem`` is why it failed."""

    state: Literal["signed_out", "waiting", "signed_in", "failed"]
    kind: str = ""
    account: AzureAccount | None = None
    prompt: AzurePrompt | None = None
    problem: AzureProblem | None = None
