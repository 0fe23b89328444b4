"""Sign-in to Azure through azure-identity: DefaultAzureCredential, a device code, or the browser of this machine.

The sign-in method is a setting, and no credential is used until the user has chosen one. azure-identity stores the
tokens of device code and browser sign-ins in its persistent cache. The ``AuthenticationRecord`` (names and ids, no
tokens) is stored in the settings, so that every process of the user is signed in.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import json
import logging
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from distdl_jupyter.azure import settings
from distdl_jupyter.azure.rest import RestClient
from distdl_jupyter.azure.settings import CLOUDS, AzureSettings, Cloud
from distdl_jupyter.core.azure import AzureAccount, AzureProblem, AzurePrompt, AzureSubscription, SignInStatus
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, NotSignedIn
from distdl_jupyter.worker.secret_patterns import mask

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken
    from azure.storage.blob import BlobServiceClient

#: The remedy if no account is signed in.
SIGN_IN_HINT = "Sign in: %dist_config azure in a notebook, or distdl azure sign-in in a terminal."
#: The name of azure-identity's persistent token cache, and the notice that is shown after a sign-out.
CACHE_NAME = "distdl_jupyter"
SIGN_OUT_NOTE = (
    f"azure-identity has no call that empties its token cache {CACHE_NAME!r} (in the keyring, or in "
    "~/.IdentityService). Tokens in it stay valid until they expire: delete it, or revoke the sessions of your account."
)
SUBSCRIPTIONS_VERSION = "2022-12-01"
#: Seconds to wait for the device code, and the minimum remaining validity of a cached token in seconds.
_PROMPT_SECONDS, _MIN_VALIDITY_SECONDS = 60.0, 300.0
#: Seconds before a token cache that looks empty is read again.
_RETRY_SECONDS = 1.0
#: (pattern of an azure-identity error, remedy). The first match is used.
ERROR_HINTS = (
    (r"Failed to open a browser|start an HTTP server", "Sign in with a device code instead."),
    (r"Cache encryption is impossible", "This machine has no keyring. Clear token_cache to store tokens in a file."),
    (
        r"getaddrinfo|ame or service|resolve|Connection (refused|aborted|reset)|Max retries|timed out|unreachable",
        "Check the network connection of this machine. Behind a proxy, set HTTPS_PROXY.",
    ),
    (r"DefaultAzureCredential failed", "Run az login, set AZURE_CLIENT_ID, or sign in with a device code."),
)
logging.getLogger("azure.identity").addHandler(logging.NullHandler())  # errors are raised instead of logged


class Credential:
    """An azure-core TokenCredential that uses the account signed in at the time of each request."""

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Return a token for the scopes. Raises NotSignedIn."""
        from azure.core.exceptions import AzureError

        key = _get_cache_key()
        token = _tokens.get((key, scopes))
        if token is None or token.expires_on - time.time() < _MIN_VALIDITY_SECONDS or options.get("claims"):
            try:
                # azure-identity stores CAE tokens in a separate cache, which the sign-in does not fill.
                token = _request_token(key, scopes, {**options, "enable_cae": False})
            except (AzureError, ValueError, KeyError) as error:
                raise explain(error) from None
            _tokens[key, scopes] = token
        return token


def _request_token(key: tuple[AzureSettings, Cloud, object], scopes: tuple[str, ...], options: dict[str, Any]) -> Any:
    from azure.identity import AuthenticationRequiredError

    try:
        return _create_credential(*key).get_token(*scopes, **options)
    except AuthenticationRequiredError as error:
        if "AADSTS" in str(error):  # Entra ID's own response
            raise
        # azure-identity overwrites its cache file in place, so the file can look empty while another process writes it.
        time.sleep(_RETRY_SECONDS)
        _create_credential.cache_clear()
        return _create_credential(*key).get_token(*scopes, **options)


_tokens: dict[Any, AccessToken] = {}


def get_credential() -> Credential:
    """Return the credential for the current settings. Raises NotSignedIn."""
    _get_cache_key()
    return Credential()


def open_blob_service(account: str) -> BlobServiceClient:
    """Return a client for a storage account with the user's credential. Raises NotSignedIn."""
    from azure.storage.blob import BlobServiceClient, ExponentialRetry

    cloud = settings.read().endpoints
    return BlobServiceClient(
        cloud.blob.format(account=account),
        credential=get_credential(),
        audience=cloud.storage_audience,
        connection_timeout=10,
        read_timeout=60,
        retry_policy=ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=5, random_jitter_range=1),
        max_single_put_size=4 * 2**20,  # so that an upload can be stopped between two blocks
    )


def _get_cache_key() -> tuple[AzureSettings, Cloud, tuple[tuple[str, str], ...]]:
    """Return the cache key of the credential: settings, cloud and environment variables. Raises NotSignedIn."""
    config = settings.read()
    if not config.credential or (config.credential != "default" and not config.record):
        raise NotSignedIn("Not signed in to Azure.", code="azure-signed-out", hint=SIGN_IN_HINT)
    variables = {name: value for name, value in os.environ.items() if name.startswith(("AZURE_", "IDENTITY_", "MSI_"))}
    return config, config.endpoints, tuple(sorted(variables.items()))


@functools.lru_cache(maxsize=4)
def _create_credential(config: AzureSettings, cloud: Cloud, _variables: object) -> Any:
    """Return azure-identity's credential, which never prompts the user."""
    from azure.identity import AuthenticationRecord, DefaultAzureCredential, DeviceCodeCredential

    if config.credential == "default":
        client = {"managed_identity_client_id": config.client_id} if config.client_id else {}
        # On a busy machine az needs more than the default timeout of 10 seconds.
        return DefaultAzureCredential(process_timeout=60, authority=cloud.authority, **client, **_get_discovery(cloud))
    record = AuthenticationRecord.deserialize(config.record)
    return DeviceCodeCredential(
        authentication_record=record, disable_automatic_authentication=True, **_get_interactive_options(config, cloud)
    )


def _get_discovery(cloud: Cloud) -> dict[str, Any]:
    """Return the option that disables instance discovery for a custom cloud, which Entra ID does not know."""
    return {} if cloud.name in CLOUDS else {"disable_instance_discovery": True}


def _get_interactive_options(config: AzureSettings, cloud: Cloud) -> dict[str, Any]:
    from azure.identity import TokenCachePersistenceOptions

    cache = TokenCachePersistenceOptions(name=CACHE_NAME, allow_unencrypted_storage=config.token_cache != "keyring")  # noqa: S105
    tenant = {"tenant_id": config.tenant_id} if config.tenant_id else {}
    return {"cache_persistence_options": cache, **tenant, **_get_discovery(cloud)}


class _SignInAttempt:
    """A pending sign-in in a thread of this process. ``is_ready`` is set once the attempt has a code or has ended."""

    def __init__(self, config: AzureSettings) -> None:
        self.settings = config
        self.code: tuple[str, str, float] | None = None
        self.problem: DistDLError | None = None
        self.credential: Any = None
        self.is_ready = threading.Event()
        threading.Thread(target=self._run, name="distdl-sign-in", daemon=True).start()

    def _run(self) -> None:
        try:
            self._sign_in()
        except Exception as error:  # noqa: BLE001 - the user must see any failure
            self.problem = explain(error)
        finally:
            self.is_ready.set()

    def _sign_in(self) -> None:
        from azure.identity import DeviceCodeCredential, InteractiveBrowserCredential

        config, cloud = self.settings, self.settings.endpoints
        client = {"client_id": config.client_id} if config.client_id else {}
        options = {"authority": cloud.authority, **client, **_get_interactive_options(config, cloud)}
        if config.credential == "device_code":
            self.credential = DeviceCodeCredential(prompt_callback=self._show_code, **options)
        else:
            self.credential = InteractiveBrowserCredential(**options)
        record = self.credential.authenticate(scopes=[cloud.get_scope(cloud.resource_manager)])
        if _attempts and _attempts[-1] is self:  # not cancelled
            settings.change(**{**msgspec.structs.asdict(config), "record": record.serialize()})
            _attempts.clear()

    def _show_code(self, address: str, code: str, expires_on: Any) -> None:
        self.code = code, address, expires_on.timestamp()
        self.is_ready.set()

    @property
    def prompt(self) -> AzurePrompt | None:
        """The address and code to show to the user, or None for a browser sign-in."""
        return self.code and AzurePrompt(*self.code[:2], max(0.0, self.code[2] - time.time()))


#: The pending or failed sign-in of this process; at most one.
_attempts: list[_SignInAttempt] = []


def sign_in(kind: str = "", **changes: Any) -> SignInStatus:
    """Sign in with a method (default: the one in the settings) and return the status.

    ``device_code`` and ``browser`` return while the sign-in is pending: call ``get_status()`` later. A pending sign-in
    ends with this process; a completed one is used by all processes. ``changes`` are settings such as ``tenant_id``.
    Raises InvalidSpec.
    """
    config = settings.apply_changes(**({"credential": kind} if kind else {}), **changes)
    if not config.credential:
        raise InvalidSpec(
            "No sign-in method is set.",
            code="azure-sign-in-kind-missing",
            field="credential",
            hint="Use one of: default, device_code, browser.",
        )
    _stop_attempts()
    if config.credential == "default":
        settings.change(**msgspec.structs.asdict(config))
        clear_cache()
    else:
        _attempts.append(attempt := _SignInAttempt(config))
        attempt.is_ready.wait(_PROMPT_SECONDS if config.credential == "device_code" else 0)
    return get_status()


def get_status() -> SignInStatus:
    """Return the sign-in status, including a failure. May request a token."""
    attempt = _attempts[-1] if _attempts else None
    kind = ""
    try:
        config = settings.read()
        kind, scope = config.credential, config.endpoints.get_scope(config.endpoints.resource_manager)
        token = get_credential().get_token(scope).token
        current = SignInStatus(state="signed_in", kind=kind, account=_parse_account(token, kind))
    except DistDLError as error:
        current = SignInStatus(state="failed", kind=kind, problem=AzureProblem(error.message, error.hint, error.code))
        if error.code == "azure-signed-out":
            current = SignInStatus(state="signed_out", kind=kind)
    if attempt is None:
        return current
    if attempt.problem is None:
        return dataclasses.replace(current, state="waiting", kind=attempt.settings.credential, prompt=attempt.prompt)
    problem = AzureProblem(attempt.problem.message, attempt.problem.hint, attempt.problem.code)
    return dataclasses.replace(current, state="signed_in" if current.account else "failed", problem=problem)


def _parse_account(token: str, kind: str) -> AzureAccount:
    """Return the account named by the documented claims of an access token."""
    claims: dict[str, Any] = {}
    with contextlib.suppress(IndexError, ValueError):
        claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    name = claims.get("upn") or claims.get("preferred_username") or claims.get("unique_name")
    identity = str(claims.get("xms_mirid", "")).rsplit("/", 1)[-1]  # the resource of a managed identity
    name = name or identity or f"app {claims.get('appid')}"
    return AzureAccount(name=str(name), kind=kind, tenant_id=str(claims.get("tid", "")))


def cancel() -> SignInStatus:
    """Cancel a pending sign-in and return the status. An earlier sign-in stays valid.

    The port for the browser's response stays open for up to 5 minutes, because azure-identity cannot close it.
    """
    _stop_attempts()
    return get_status()


def _stop_attempts() -> None:
    while _attempts:
        attempt = _attempts.pop()
        if attempt.credential is not None:
            attempt.credential.close()  # stops polling for the code


def sign_out() -> SignInStatus:
    """Delete the stored account for all processes. The token cache is not deleted (``SIGN_OUT_NOTE``)."""
    _stop_attempts()
    settings.change(credential="")
    clear_cache()
    return get_status()


def clear_cache() -> None:
    """Clear the credentials and tokens of this process."""
    _create_credential.cache_clear()
    _tokens.clear()


def list_subscriptions() -> list[AzureSubscription]:
    """Return the subscriptions of the account, sorted by name. Raises NotSignedIn, AzureRefused."""
    rows = [
        AzureSubscription(
            id=row["subscriptionId"],
            name=row.get("displayName") or row["subscriptionId"],
            tenant_id=row.get("tenantId") or "",
            state=row.get("state") or "",
        )
        for row in create_client().iter_items("/subscriptions", SUBSCRIPTIONS_VERSION)
    ]
    return sorted(rows, key=lambda row: row.name.lower())


def create_client() -> RestClient:
    """Return a resource manager client with the user's credential. Raises NotSignedIn."""
    cloud = settings.read().endpoints
    return RestClient(cloud.resource_manager, get_credential(), cloud.get_scope(cloud.resource_manager))


def explain(error: BaseException) -> DistDLError:
    """Return the error for a failed sign-in, with a remedy and with tokens masked."""
    if isinstance(error, DistDLError):
        return error
    text = mask(str(error))
    match = re.search(r"AADSTS\d+", text)
    text = text[match.start() :] if match else text.removeprefix("Authentication failed: ")
    hint = next((hint for pattern, hint in ERROR_HINTS if re.search(pattern, text)), "Sign in again.")
    sentence = re.split(r"\s*(?:Trace ID|Correlation ID|Timestamp|To mitigate|Visit https|\n)", text.strip())[0]
    return NotSignedIn(
        f"Azure did not issue a token. {sentence[:300].rstrip('.')}.", code="azure-sign-in-failed", hint=hint
    )
