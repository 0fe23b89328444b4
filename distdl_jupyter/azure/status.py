"""What a person is told about the sign-in: values without a token, the same for kernel, server and pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distdl_jupyter.azure.account import Account

State = Literal["signed_out", "waiting", "signed_in", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What somebody does at the sign-in page: open ``address`` and enter ``user_code`` before ``until`` (epoch)."""

    user_code: str
    address: str
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why nobody is signed in: a sentence and its remedy."""

    message: str
    hint: str = ""
    code: str = "not-signed-in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a sign-in stands. ``prompt`` is None while waiting for a browser, which shows its own page."""

    state: State
    kind: str = ""
    account: Account | None = None
    prompt: Prompt | None = None
    problem: Problem | None = None
    #: Something to know that hinders nothing.
    note: str = ""
