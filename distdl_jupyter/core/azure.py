"""The sign-in to Azure, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distdl_jupyter.core.errors import DistDLError


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureAccount:
    """The signed-in user or app, with the sign-in method."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What to do at the sign-in page: open ``address`` and enter ``user_code`` before ``until`` (epoch seconds)."""

    user_code: str
    address: str
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of the sign-in. ``prompt`` is None while waiting for a browser; ``problem`` is why it failed."""

    state: Literal["signed_out", "waiting", "signed_in", "failed"]
    kind: str = ""
    account: AzureAccount | None = None
    prompt: Prompt | None = None
    problem: DistDLError | None = None
