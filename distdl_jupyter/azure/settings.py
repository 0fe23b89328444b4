"""What a user has settled about Azure: how to sign in, as whom, to which cloud.

Kept in ``distdl_azure.json`` in the user's Jupyter configuration folder, so that kernels, the server, supervisors and
the command line mean the same. It holds no secret: names and ids only.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from distdl_jupyter.azure.clouds import Cloud, cloud
from distdl_jupyter.core import atomic_write
from distdl_jupyter.core.aliases import unknown
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.spec import looks_secret

FILE = "distdl_azure.json"
TokenCache = Literal["", "keyring"]
CredentialKind = Literal["cli", "device_code", "browser", "managed_identity", "environment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSettings:
    """Settings by the names of ``%dist_config azure``; "" leaves a choice to Azure's own default."""

    credential: CredentialKind | Literal[""] = field(
        default="",
        metadata={
            "help": "How to sign in: cli (az login), device_code, browser, managed_identity or environment "
            "(AZURE_CLIENT_ID and related variables)."
        },
    )
    tenant_id: str = field(default="", metadata={"help": "Tenant (directory) to sign in to."})
    client_id: str = field(
        default="",
        metadata={"help": "Client id of an app registration, or of a user-assigned managed identity."},
    )
    subscription_id: str = field(default="", metadata={"help": "Subscription that is preselected."})
    region: str = field(
        default="",
        metadata={"help": "Region for VM sizes, quotas and prices, such as westeurope."},
    )
    currency: str = field(default="USD", metadata={"help": "Currency of prices, such as USD or EUR."})
    cloud: str = field(
        default="AzureCloud",
        metadata={
            "help": "AzureCloud, AzureUSGovernment, AzureChinaCloud, or the path of a JSON file with the addresses of "
            "another cloud."
        },
    )
    token_cache: TokenCache = field(
        default="",
        metadata={
            "help": "Where a sign-in by device code or browser is stored. By default, this is the keyring of this "
            "machine, or a file that only you can read if there is none. The value keyring does not allow the file."
        },
    )

    @property
    def endpoints(self) -> Cloud:
        """The addresses of the cloud. Raises InvalidSpec."""
        return cloud(self.cloud)


def file() -> Path:
    """Return where the settings are kept."""
    from jupyter_core.paths import jupyter_config_dir

    return Path(jupyter_config_dir()) / FILE


def read() -> AzureSettings:
    """Return the settings, defaults where there is no file. Raises DistDLError when it is broken."""
    try:
        kept = json.loads(file().read_text(encoding="utf-8"))
        names = {one.name for one in dataclasses.fields(AzureSettings)}
        kept["token_cache"] = _token_cache(kept.get("token_cache", ""))
        return AzureSettings(**{name: value for name, value in kept.items() if name in names})
    except FileNotFoundError:
        return AzureSettings()
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DistDLError(
            f"The settings for Azure in {file()} cannot be read ({type(error).__name__}).",
            code="azure-settings-unreadable",
            hint="Correct or delete that file.",
        ) from None


def change(**given: Any) -> AzureSettings:
    """Set some settings and return them all; an empty value goes back to the default. Raises InvalidSpec."""
    settings = dataclasses.replace(read(), **{name: _checked(name, value) for name, value in given.items()})
    _ = settings.endpoints
    write(settings)
    return settings


def _checked(name: str, value: Any) -> Any:
    fields = {one.name: one for one in dataclasses.fields(AzureSettings)}
    if name not in fields and looks_secret(name):
        raise InvalidSpec(
            f"{name} looks like a secret, and secrets are not stored in the settings.",
            code="azure-setting-secret",
            field=name,
            hint="Sign in, or set it in the environment of Jupyter.",
        )
    if name not in fields:
        raise InvalidSpec(unknown(name, list(fields), "setting", "for Azure"), code="azure-setting-unknown", field=name)
    if name == "token_cache":
        return _token_cache(str(value or "").lower())
    if value in (None, ""):
        return fields[name].default
    if name == "credential" and value not in get_args(CredentialKind):
        raise InvalidSpec(
            unknown(str(value), list(get_args(CredentialKind)), "sign-in method"),
            code="azure-credential-unknown",
            field=name,
        )
    return str(value)


def _token_cache(value: str) -> str:
    if value not in ("", "keyring"):
        raise InvalidSpec(
            f"Unknown value {value!r} for token_cache.",
            code="token-cache-invalid",
            field="token_cache",
            hint="Use keyring, or leave it empty to allow a file on machines without a keyring.",
        )
    return value


def write(settings: AzureSettings) -> None:
    """Put the settings in their place whole; only their owner may read them."""
    atomic_write.write(file(), dataclasses.asdict(settings))
