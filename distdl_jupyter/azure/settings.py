"""The user's settings for Azure, and the addresses of Azure's clouds.

Kernels, the server, supervisors and the command line use the same settings, which contain no secrets. The addresses in
``clouds.json`` are those of azure-ai-ml 1.35.2. A JSON file with the fields of ``Cloud`` describes another cloud, such
as Azure Stack Hub.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.user_settings import SettingsFile

TokenCache = Literal["", "keyring"]
CredentialKind = Literal["default", "device_code", "browser"]
_HttpsUrl = Annotated[str, msgspec.Meta(pattern=r"^https://.*[^/]$")]


class Cloud(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of one cloud, without a trailing slash. ``blob`` contains ``{account}``."""

    name: str
    #: Entra ID, which issues tokens.
    authority: _HttpsUrl
    resource_manager: _HttpsUrl
    blob: _HttpsUrl
    #: The audience of tokens for Azure Machine Learning's own services.
    ml_audience: _HttpsUrl
    portal: _HttpsUrl
    storage_audience: _HttpsUrl = "https://storage.azure.com"
    #: The Retail Prices API.
    prices: _HttpsUrl = "https://prices.azure.com/api/retail/prices"

    def get_scope(self, audience: str) -> str:
        """Return the scope of a token for ``audience``."""
        return f"{audience}/.default"


_CLOUDS_JSON = resources.files(__package__).joinpath("clouds.json").read_bytes()
CLOUDS = {cloud.name: cloud for cloud in msgspec.json.decode(_CLOUDS_JSON, type=list[Cloud])}


#: Changing one of these settings discards the stored sign-in.
_SIGN_IN_FIELDS = ("credential", "tenant_id", "client_id", "cloud")


class AzureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings by the names of ``%dist_config azure``; "" means Azure's own default.

    ``credential`` is the sign-in method: ``default`` is azure-identity's DefaultAzureCredential (environment variables,
    managed identity, az login and others; AZURE_TOKEN_CREDENTIALS selects one). ``tenant_id`` is the tenant of a
    sign-in by device code or browser (``default`` uses AZURE_TENANT_ID). ``client_id`` is an app registration, or with
    ``default`` a user-assigned managed identity. ``subscription_id`` is preselected. ``region`` and ``currency`` apply
    to prices. ``cloud`` is the name of a cloud or the path of a JSON file with its addresses. azure-identity stores a
    sign-in in the keyring of this machine, or in a file that only the user can read; ``token_cache="keyring"``
    disables the file. ``record`` is azure-identity's AuthenticationRecord of such a sign-in (names and ids, no token).
    """

    credential: CredentialKind | Literal[""] = ""
    tenant_id: str = ""
    client_id: str = ""
    subscription_id: str = ""
    region: str = ""
    currency: str = "USD"
    cloud: str = "AzureCloud"
    token_cache: TokenCache = ""
    record: str = ""

    @property
    def endpoints(self) -> Cloud:
        """The addresses of the cloud. Raises InvalidSpec."""
        return CLOUDS.get(self.cloud) or _read_cloud(self.cloud)


def _read_cloud(name: str) -> Cloud:
    try:
        return msgspec.json.decode(Path("/", Path(name).expanduser()).read_bytes(), type=Cloud)
    except (OSError, ValueError) as error:
        raise InvalidSpec(
            f"Unknown Azure cloud {name!r} ({error}).",
            code="azure-cloud-unknown",
            field="cloud",
            hint=f"Use one of: {', '.join(CLOUDS)}; or the absolute path of a JSON file with its addresses, each of "
            "which must start with https:// and must not end with a slash.",
        ) from None


_ALLOWED_VALUES = {"credential": "default, device_code or browser", "token_cache": "keyring or empty"}
SETTINGS_FILE = SettingsFile("distdl_azure.json", AzureSettings, _ALLOWED_VALUES)
read = SETTINGS_FILE.read


def apply_changes(**changes: Any) -> AzureSettings:
    """Return changed settings without storing them; an empty value means the default. Raises InvalidSpec.

    Changing a setting in ``_SIGN_IN_FIELDS`` discards the stored sign-in.
    """
    previous, settings = read(), SETTINGS_FILE.change(changes, "Azure")
    _ = settings.endpoints
    if "record" not in changes and any(getattr(previous, name) != getattr(settings, name) for name in _SIGN_IN_FIELDS):
        return msgspec.structs.replace(settings, record="")
    return settings


def change(**changes: Any) -> AzureSettings:
    """Change and store settings, and return all settings. Raises InvalidSpec."""
    return SETTINGS_FILE.write(apply_changes(**changes))
