"""The ways to sign in as they are offered: which could be used here, which to take first. Asks nobody for a token."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import get_args

from distdl_jupyter.azure import credentials
from distdl_jupyter.azure.settings import CredentialKind

#: Variables with a key that opens a whole storage account.
KEYS = ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_CONNECTION_STRING")
TITLES = {
    "cli": "Azure command line",
    "device_code": "Device code",
    "browser": "Browser",
    "managed_identity": "Managed identity",
    "environment": "App registration",
}
#: When to take it, one line each.
WHEN = {
    "cli": "Use the account of az login on this machine.",
    "device_code": "Jupyter runs on another machine, for example a hub. Enter a short code in any browser.",
    "browser": "Jupyter runs on this computer: a page opens in its browser.",
    "managed_identity": "Jupyter runs on an Azure machine with a managed identity.",
    "environment": "For automation: an app's id and secret are set in the environment of Jupyter.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to sign in. ``ready`` says that what it needs is here, as far as can be seen without asking anybody."""

    kind: CredentialKind
    ready: bool
    suggested: bool


def offered() -> list[Method]:
    """Return all ways in the order in which they are offered; one of them is suggested."""
    ready = {
        "cli": shutil.which("az") is not None,
        "device_code": True,
        "browser": bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER"))
        or os.uname().sysname == "Darwin",
        "managed_identity": credentials.has_identity_variables() or credentials.on_azure(),
        "environment": not credentials.variables_missing(),
    }
    first = next(kind for kind in ("environment", "managed_identity", "cli", "device_code") if ready[kind])
    return [Method(kind=kind, ready=ready[kind], suggested=kind == first) for kind in get_args(CredentialKind)]


def warning() -> str:
    """Return what to say of an account's key in the environment, "" when there is none. Never the key."""
    found = [name for name in KEYS if os.environ.get(name)]
    if not found:
        return ""
    return (
        f"{found[0]} in the environment gives access to a whole storage account. It is used only while you are not "
        "signed in. Sign in, then remove it."
    )
