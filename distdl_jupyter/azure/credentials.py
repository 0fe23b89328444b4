"""The ways to sign in, each made of one credential of azure-identity; ``DefaultAzureCredential`` is not among them.

A user sees which one is used, so there are few and no chain tries them in turn. ``cli``, ``managed_identity`` and
``environment`` answer by themselves. ``device_code`` and ``browser`` ask a person once (``attended``); from then on
every process gets tokens from azure-identity's cache (``silent``). It is imported when one is made.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure import errors
from distdl_jupyter.azure.clouds import CLOUDS
from distdl_jupyter.core.errors import NotSignedIn

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from azure.core.credentials import AccessToken, AccessTokenInfo, TokenCredential, TokenRequestOptions

    from distdl_jupyter.azure.settings import AzureSettings

INTERACTIVE = ("device_code", "browser")
#: Tokens are given away only while they live longer than this.
MARGIN_SECONDS = 300.0
_SECRET = "AZURE_CLIENT_SECRET"  # noqa: S105 - a variable's name
_CERTIFICATE = "AZURE_CLIENT_CERTIFICATE_PATH"
#: One of these says that a managed identity is told by variables (App Service, Azure ML, Arc, Kubernetes).
_IDENTITY_VARIABLES = (
    "IDENTITY_ENDPOINT",
    "MSI_ENDPOINT",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_POD_IDENTITY_AUTHORITY_HOST",
)
#: Azure's machines all have this tag, by which cloud-init knows them too.
_CHASSIS, _AZURES = Path("/sys/class/dmi/id/chassis_asset_tag"), "7783-7084-3265-9085-8269-3286-77"
#: Where a virtual machine of Azure asks for its identity (Instance Metadata Service).
_IMDS = ("169.254.169.254", 80)


def unattended(kind: str, settings: AzureSettings) -> TokenCredential:
    """Return a credential that asks nobody. Raises NotSignedIn when what it needs is not here."""
    _hush()
    makers: dict[str, Callable[[AzureSettings], Any]] = {
        "cli": _cli,
        "environment": _environment,
        "managed_identity": _managed_identity,
    }
    try:
        return Lasting(makers[kind](settings))
    except ValueError as error:  # An id that cannot be one.
        raise errors.explain(error) from None


def attended(
    settings: AzureSettings,
    cache: Any,
    shown: Callable[[str, str, float], None],
    *,
    wanted: Callable[[], bool],
) -> Any:
    """Return azure-identity's credential that asks a person, by ``authenticate(scopes=...)``.

    ``cache`` says where the tokens are kept. ``shown(address, code, until)`` is called with a device code and the time
    (epoch) at which it ends. When ``wanted()`` is no longer true, its next request ends the wait for a code, and the
    wait for the browser ends within a second. Used by ``with``: its end closes the port on which the browser answers.
    """
    from azure.identity import DeviceCodeCredential

    _hush()
    ids = {name: value for name in ("tenant_id", "client_id") if (value := getattr(settings, name))}
    common = {**_place(settings), **ids, "cache_persistence_options": cache, "transport": _stoppable(wanted)}
    if settings.credential == "browser":
        return _browser(wanted, **common)
    return DeviceCodeCredential(prompt_callback=lambda at, code, until: shown(at, code, until.timestamp()), **common)


def silent(settings: AzureSettings, cache: Any, record: str) -> Any:
    """Return azure-identity's credential for who signed in before: it asks nobody, and fails when that has expired.

    ``record`` is a serialized ``AuthenticationRecord``; it holds client id and authority. Raises NotSignedIn.
    """
    from azure.identity import AuthenticationRecord, DeviceCodeCredential

    _hush()
    try:
        return DeviceCodeCredential(
            authentication_record=AuthenticationRecord.deserialize(record),
            cache_persistence_options=cache,
            disable_automatic_authentication=True,
            disable_instance_discovery=_place(settings)["disable_instance_discovery"],
            tenant_id=settings.tenant_id or None,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NotSignedIn(
            "The stored Azure sign-in cannot be read.", code="azure-account-unreadable", hint="Sign in to Azure again."
        ) from None


def _stoppable(wanted: Callable[[], bool]) -> Any:
    """Return a transport that asks nothing more once it is not wanted: MSAL has no other end for a code's wait."""
    from azure.core.exceptions import ClientAuthenticationError
    from azure.core.pipeline.transport import RequestsTransport

    class Stoppable(RequestsTransport):  # type: ignore[misc,unused-ignore]
        def send(self, request: Any, **more: Any) -> Any:
            if not wanted():
                raise ClientAuthenticationError(message="The sign-in was cancelled.")
            return super().send(request, **more)

    return Stoppable()


def _browser(wanted: Callable[[], bool], **options: Any) -> Any:
    """Return azure-identity's credential by browser; it has no way to end its wait, and may leave its port open."""
    from azure.identity import InteractiveBrowserCredential
    from azure.identity._internal import AuthCodeRedirectServer

    class Redirect(AuthCodeRedirectServer):  # type: ignore[misc,unused-ignore]
        def __init__(self, hostname: str, port: int, timeout: float) -> None:
            super().__init__(hostname, port, timeout=1)
            self.until = time.monotonic() + timeout
            opened.append(self)

        def handle_timeout(self) -> None:
            if not wanted() or time.monotonic() > self.until:
                self.server_close()

    class Browser(InteractiveBrowserCredential):  # type: ignore[misc,unused-ignore]
        def __exit__(self, *error: object) -> None:
            for server in opened:
                server.server_close()
            super().__exit__(*error)

    opened: list[Redirect] = []
    return Browser(_server_class=Redirect, **options)


def _hush() -> None:
    """Keep what azure-identity logs of a failure off a terminal where nobody set logging up: we tell it once."""
    logger = logging.getLogger("azure.identity")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def variables_missing() -> list[str]:
    """Return the variables that ``environment`` lacks; [] when it can be used."""
    missing = [name for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID") if not os.environ.get(name)]
    if not (os.environ.get(_SECRET) or os.environ.get(_CERTIFICATE)):
        missing.append(_SECRET)
    return missing


def has_identity_variables() -> bool:
    """Say whether variables tell of a managed identity."""
    return any(os.environ.get(name) for name in _IDENTITY_VARIABLES)


def on_azure() -> bool:
    """Say whether this is a virtual machine of Azure, which may have a managed identity; by its firmware (Linux)."""
    try:
        return _CHASSIS.read_text(encoding="ascii").strip() == _AZURES
    except (OSError, ValueError):
        return False


def _place(settings: AzureSettings) -> dict[str, Any]:
    """Return who gives tokens. The authority of a cloud from a file is known to nobody but the user."""
    return {
        "authority": settings.endpoints.authority,
        "disable_instance_discovery": settings.endpoints.name not in CLOUDS,
    }


def _cli(settings: AzureSettings) -> Any:
    from azure.identity import AzureCliCredential

    if not shutil.which("az"):
        raise errors.explained("Azure CLI not found on path")
    # az starts slowly: 10 seconds, the default, are too few on a busy machine.
    return AzureCliCredential(
        tenant_id=settings.tenant_id, subscription=settings.subscription_id or None, process_timeout=60
    )


def _environment(settings: AzureSettings) -> Any:
    from azure.identity import CertificateCredential, ClientSecretCredential

    missing = variables_missing()
    if missing:
        raise NotSignedIn(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set in the environment of Jupyter.",
            code="azure-variables-missing",
            hint=f"Set AZURE_TENANT_ID, AZURE_CLIENT_ID and {_SECRET} (or {_CERTIFICATE}) and restart Jupyter.",
        )
    tenant, client = os.environ["AZURE_TENANT_ID"], os.environ["AZURE_CLIENT_ID"]
    if os.environ.get(_SECRET):
        return ClientSecretCredential(tenant, client, os.environ[_SECRET], **_place(settings))
    password = os.environ.get("AZURE_CLIENT_CERTIFICATE_PASSWORD")
    try:
        return CertificateCredential(tenant, client, os.environ[_CERTIFICATE], password=password, **_place(settings))
    except (OSError, ValueError) as error:
        raise NotSignedIn(
            f"The certificate in {_CERTIFICATE} cannot be read ({type(error).__name__}).",
            code="azure-certificate-unreadable",
            hint="It must be a PEM or PKCS12 file that contains its private key.",
        ) from None


def _managed_identity(settings: AzureSettings) -> Any:
    from azure.identity import ManagedIdentityCredential

    if not has_identity_variables() and not _answers(_IMDS):
        raise errors.explained("ManagedIdentityCredential authentication unavailable")
    return ManagedIdentityCredential(client_id=settings.client_id or os.environ.get("DEFAULT_IDENTITY_CLIENT_ID"))


def _answers(address: tuple[str, int]) -> bool:
    # azure-identity retries for over a minute where nobody answers.
    try:
        socket.create_connection(address, timeout=2).close()
    except OSError:
        return False
    return True


def asked(inner: Any, scopes: tuple[str, ...], options: TokenRequestOptions | None) -> AccessTokenInfo:
    """Return a token of one of azure-identity's credentials. Raises NotSignedIn."""
    from azure.core.exceptions import AzureError

    try:
        found: AccessTokenInfo = inner.get_token_info(*scopes, options=options)
    except (AzureError, ValueError) as error:
        raise errors.explain(error) from None
    return found


class Credential:
    """azure-core's ``TokenCredential``; all that differs is ``get_token_info``."""

    def get_token(self, *scopes: str, claims: str | None = None, tenant_id: str | None = None,
                  enable_cae: bool = False, **_: Any) -> AccessToken:  # fmt: skip
        """Return a token for the scopes (azure-core's older protocol). Raises NotSignedIn."""
        from azure.core.credentials import AccessToken

        given = {"claims": claims, "tenant_id": tenant_id, "enable_cae": enable_cae}
        options: Any = {name: value for name, value in given.items() if value}
        info = self.get_token_info(*scopes, options=options)
        return AccessToken(info.token, info.expires_on)

    def get_token_info(self, *scopes: str, options: TokenRequestOptions | None = None) -> AccessTokenInfo:
        """Return a token with what is known of it (azure-core's newer protocol). Raises NotSignedIn."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: it is shared."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Lasting(Credential):
    """A credential over another one that keeps tokens while they live: ``az`` takes a second for each."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._kept: dict[tuple[str, ...], AccessTokenInfo] = {}
        self._lock = threading.Lock()

    def get_token_info(self, *scopes: str, options: TokenRequestOptions | None = None) -> AccessTokenInfo:
        """Return a token with what is known of it (azure-core's newer protocol). Raises NotSignedIn."""
        key = (*scopes, str(sorted((options or {}).items())))
        with self._lock:
            kept = self._kept.get(key)
            if kept and kept.expires_on - time.time() > MARGIN_SECONDS and not (options or {}).get("claims"):
                return kept
            self._kept[key] = token = asked(self._inner, scopes, options)
            return token
