"""Who this process is for Azure: one credential, chosen by the settings, shared by everything that asks Azure.

The way to sign in is ``settings.credential``. Where none is chosen it is the first of these that is there, in the order
of how plainly somebody said so: variables that name an app registration (``environment``), ``az`` on this machine
(``cli``). Nothing here prints or returns a token.
"""

from __future__ import annotations

import os
import shutil
import threading
from typing import TYPE_CHECKING

from distdl_jupyter.azure import account as accounts
from distdl_jupyter.azure import credentials, settings
from distdl_jupyter.azure.account import Account
from distdl_jupyter.azure.rest import Rest
from distdl_jupyter.core.errors import NotSignedIn

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

    from distdl_jupyter.azure.clouds import Cloud
    from distdl_jupyter.azure.settings import AzureSettings

__all__ = ["Account", "account", "credential", "endpoints", "forget", "rest"]

HOW = "Sign in: %dist_config azure in a notebook, or distdl azure sign-in in a terminal."
_lock = threading.Lock()
_made: dict[tuple[object, ...], TokenCredential] = {}


def credential() -> TokenCredential:
    """Return the credential of the settings. Raises NotSignedIn with the remedy; making it asks nobody for a token."""
    settled = settings.read()
    kind = _kind(settled)
    key = (kind, settled, *(os.environ.get(name) for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "PATH")))
    with _lock:
        if key not in _made:
            _made[key] = credentials.unattended(kind, settled)
        return _made[key]


def _kind(settled: AzureSettings) -> str:
    if settled.credential:
        return settled.credential
    if not credentials.variables_missing():
        return "environment"
    if shutil.which("az"):
        return "cli"
    raise NotSignedIn("Nobody is signed in to Azure.", hint=HOW)


def account() -> Account | None:
    """Return who is signed in, None when nobody is. Asks for a token, which is not kept beyond this process."""
    settled = settings.read()
    try:
        scope = settled.endpoints.scope(settled.endpoints.resource_manager)
        token = credential().get_token(scope).token
        return accounts.of_token(token, _kind(settled), settled.subscription_id)
    except NotSignedIn:
        return None


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
