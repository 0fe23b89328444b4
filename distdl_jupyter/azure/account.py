"""Who a token speaks for. Reads a token's claims and keeps none of it: an ``Account`` may be shown and logged."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Somebody or something that is signed in. ``kind`` is the way to sign in; "" stands for what is not known."""

    #: "ann@example.org" of a person, "app a1b2..." of an app registration, the resource's name of a managed identity.
    name: str
    kind: str
    tenant_id: str = ""
    object_id: str = ""
    subscription: str = ""


def of_token(token: str, kind: str, subscription: str = "") -> Account:
    """Return whom an access token speaks for, by the claims that Entra ID documents; the signature is not checked."""
    claims = _claims(token)
    return Account(
        name=_name(claims),
        kind=kind,
        tenant_id=str(claims.get("tid", "")),
        object_id=str(claims.get("oid", "")),
        subscription=subscription,
    )


def _name(claims: dict[str, Any]) -> str:
    for claim in ("upn", "preferred_username", "unique_name", "email"):
        if claims.get(claim):
            return str(claims[claim])
    if claims.get("xms_mirid"):  # The resource whose managed identity it is.
        return str(claims["xms_mirid"]).rsplit("/", 1)[-1]
    app = claims.get("appid") or claims.get("azp")
    return f"app {app}" if app else ""


def _claims(token: str) -> dict[str, Any]:
    """Return what a JWT says; {} for a token that is none."""
    try:
        middle = token.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    except (IndexError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
