"""The user's settings for Azure, and the addresses of Azure's clouds.

Settings are stored in ``distdl_azure.json`` in Jupyter's configuration folder of the user, so that kernels, the server,
supervisors and the command line use the same. They hold names and ids, no secret. The addresses in ``clouds.json`` are
those of azure-ai-ml 1.35.2; a JSON file with the fields of ``Cloud`` describes another cloud, such as
Azure Stack Hub or a stand-in.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from distdl_jupyter.core import atomic_write
from distdl_jupyter.core.aliases import unknown
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.spec import looks_secret

TokenCache = Literal["", "keyring"]
CredentialKind = Literal["default", "device_code", "browser"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """The addresses of one cloud, without a slash at their end. ``blob`` contains ``{account}``."""

    name: str
    #: Entra ID, which issues tokens.
    authority: str
    resource_manager: str
    blob: str
    #: The audience of tokens for Azure Machine Learning's own services.
    ml_audience: str
    portal: str
    storage_audience: str = "https://storage.azure.com"
    #: The Retail Prices API, "" where there is none.
    prices: str = ""

    def blob_endpoint(self, account: str) -> str:
        """Return the address of a storage account's blobs."""
        return self.blob.format(account=account)

    def scope(self, audience: str) -> str:
        """Return the scope of a token for ``audience``."""
        return f"{audience}/.default"


_TABLE = json.loads(resources.files(__package__).joinpath("clouds.json").read_text(encoding="utf-8"))
CLOUDS = {row["name"]: Cloud(**row) for row in _TABLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSettings:
    """Settings by the names of ``%dist_config azure``; "" leaves a choice to Azure's own default."""

    credential: CredentialKind | Literal[""] = field(
        default="",
        metadata={
            "help": "How to sign in: default (azure-identity's DefaultAzureCredential: environment variables, managed "
            "identity, az login and others; AZURE_TOKEN_CREDENTIALS selects one), device_code or browser."
        },
    )
    tenant_id: str = field(
        default="",
        metadata={"help": "Tenant (directory) of a sign-in by device code or browser. default uses AZURE_TENANT_ID."},
    )
    client_id: str = field(
        default="",
        metadata={"help": "Client id of an app registration, or with default of a user-assigned managed identity."},
    )
    subscription_id: str = field(default="", metadata={"help": "Subscription that is preselected."})
    region: str = field(default="", metadata={"help": "Region for prices, such as westeurope."})
    currency: str = field(default="USD", metadata={"help": "Currency of prices, such as USD or EUR."})
    cloud: str = field(
        default="AzureCloud",
        metadata={"help": f"One of {', '.join(CLOUDS)}, or the path of a JSON file with the addresses of a cloud."},
    )
    token_cache: TokenCache = field(
        default="",
        metadata={
            "help": "Where azure-identity stores a sign-in by device code or browser. By default, this is the keyring "
            "of this machine, or a file that only you can read if there is none. The value keyring does not allow the "
            "file."
        },
    )

    @property
    def endpoints(self) -> Cloud:
        """The addresses of the cloud. Raises InvalidSpec."""
        return CLOUDS.get(self.cloud) or _cloud_in_file(self.cloud)


def _cloud_in_file(name: str) -> Cloud:
    path = Path(name).expanduser()
    if not path.is_absolute():
        raise InvalidSpec(
            f"Unknown Azure cloud {name!r}.",
            code="azure-cloud-unknown",
            field="cloud",
            hint=f"Use one of: {', '.join(CLOUDS)}; or the absolute path of a JSON file with its addresses.",
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        names = {field.name for field in dataclasses.fields(Cloud)}
        cloud = Cloud(**{key: str(value).rstrip("/") for key, value in document.items() if key in names})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InvalidSpec(
            f"The cloud described in {path} cannot be read ({error}).",
            code="azure-cloud-file-unreadable",
            field="cloud",
        ) from None
    for key, value in dataclasses.asdict(cloud).items():
        if key != "name" and value and not value.startswith("https://"):
            raise InvalidSpec(
                f"{key} of the cloud in {path} is not an https address.", code="azure-cloud-address", field="cloud"
            )
    return cloud


def file() -> Path:
    """Return the path of the settings."""
    from jupyter_core.paths import jupyter_config_dir

    return Path(jupyter_config_dir()) / "distdl_azure.json"


def read() -> AzureSettings:
    """Return the settings, or defaults without a file. Raises DistDLError if the file is invalid."""
    try:
        content = json.loads(file().read_text(encoding="utf-8"))
        names = {field.name for field in dataclasses.fields(AzureSettings)}
        return AzureSettings(**{name: value for name, value in content.items() if name in names})
    except FileNotFoundError:
        return AzureSettings()
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DistDLError(
            f"The settings for Azure in {file()} cannot be read ({type(error).__name__}).",
            code="azure-settings-unreadable",
            hint="Correct or delete that file.",
        ) from None


def changed(**changes: Any) -> AzureSettings:
    """Return the settings with some changes, not stored; an empty value means the default. Raises InvalidSpec."""
    settings = dataclasses.replace(read(), **{name: _checked(name, value) for name, value in changes.items()})
    _ = settings.endpoints
    return settings


def change(**changes: Any) -> AzureSettings:
    """Store some changes and return the settings. Raises InvalidSpec."""
    settings = changed(**changes)
    atomic_write.write(file(), dataclasses.asdict(settings))
    return settings


def _checked(name: str, value: Any) -> Any:
    fields = {field.name: field for field in dataclasses.fields(AzureSettings)}
    if name not in fields and looks_secret(name):
        raise InvalidSpec(
            f"{name} looks like a secret, and secrets are not stored in the settings.",
            code="azure-setting-secret",
            field=name,
            hint="Sign in, or set it in the environment of Jupyter.",
        )
    if name not in fields:
        raise InvalidSpec(unknown(name, list(fields), "setting", "for Azure"), code="azure-setting-unknown", field=name)
    if value in (None, ""):
        return fields[name].default
    if name == "credential" and value not in get_args(CredentialKind):
        raise InvalidSpec(
            unknown(str(value), list(get_args(CredentialKind)), "sign-in method"),
            code="azure-credential-unknown",
            field=name,
        )
    if name == "token_cache" and value != "keyring":
        raise InvalidSpec(
            f"Unknown value {value!r} for token_cache.",
            code="token-cache-invalid",
            field="token_cache",
            hint="Use keyring, or leave it empty to allow a file on machines without a keyring.",
        )
    return str(value)
