"""What a person is told about the sign-in: values without a token, the same for keeper, kernel, server and pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

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


def of_json(told: dict[str, Any]) -> Status:
    """Return the status that a keeper told."""
    return Status(
        state=told["state"],
        kind=told.get("kind", ""),
        account=Account(**told["account"]) if told.get("account") else None,
        prompt=Prompt(**told["prompt"]) if told.get("prompt") else None,
        problem=Problem(**told["problem"]) if told.get("problem") else None,
        note=told.get("note", ""),
    )
