"""HTTP API for the user's sign-in to Azure, shared with kernels and jobs. Responses never contain a token."""

from __future__ import annotations

import msgspec

from distdl_jupyter.api.endpoint import delete, get, patch, post
from distdl_jupyter.azure import identity, settings
from distdl_jupyter.azure.settings import CredentialKind
from distdl_jupyter.core.azure import AzureSubscription
from distdl_jupyter.views.azure import AzureSignIn, make_sign_in_view
from distdl_jupyter.views.wire import PageRequest


class AzureChange(PageRequest, frozen=True, kw_only=True):
    """Settings to change; null leaves a setting unchanged, "" restores its default.

    ``credential`` is the sign-in method, ``tenant_id`` the tenant (directory) to sign in to, ``client_id`` the id of an
    app registration or of a user-assigned managed identity, ``subscription_id`` the default subscription,
    ``cloud`` is AzureCloud, AzureUSGovernment or AzureChinaCloud. ``token_cache`` selects where the sign-in is stored:
    "" (the keyring, otherwise a file of this user) or "keyring" (never a file).
    """

    credential: CredentialKind | None = None
    tenant_id: str | None = None
    client_id: str | None = None
    subscription_id: str | None = None
    cloud: str | None = None
    token_cache: str | None = None


def _get_changes(body: AzureChange) -> dict[str, str]:
    return {name: value for name, value in msgspec.structs.asdict(body).items() if value is not None}


@get("/azure", slow=True)
def get_status() -> AzureSignIn:
    """Return the Azure account, its sign-in method, and the available methods."""
    return make_sign_in_view()


@patch("/azure", slow=True)
def change(body: AzureChange) -> AzureSignIn:
    """Change the sign-in settings."""
    settings.change(**_get_changes(body))
    return make_sign_in_view()


@post("/azure/sign-in", status=202, slow=True)
def sign_in(body: AzureChange) -> AzureSignIn:
    """Change settings and sign in; the response may contain a code to enter."""
    return make_sign_in_view(identity.sign_in(**_get_changes(body)))


@delete("/azure/sign-in", slow=True)
def cancel_sign_in() -> AzureSignIn:
    """Cancel a sign-in that waits for a code or a browser."""
    return make_sign_in_view(identity.cancel())


@post("/azure/sign-out", slow=True)
def sign_out() -> AzureSignIn:
    """Sign out in this server, all kernels and jobs, and on disk."""
    return make_sign_in_view(identity.sign_out(), identity.SIGN_OUT_NOTE)


@get("/azure/subscriptions", slow=True)
def list_subscriptions() -> list[AzureSubscription]:
    """List the subscriptions of the account."""
    return identity.list_subscriptions()
