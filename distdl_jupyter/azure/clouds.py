"""Where Azure's services are reached: one row for each of its clouds, or a file that describes another one.

The addresses are those of azure-ai-ml's own table of environments (azure-ai-ml 1.35.2). A file is for Azure Stack Hub
and for stand-ins; it has the fields of ``Cloud`` as JSON.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from distdl_jupyter.core.errors import InvalidSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """The addresses of one cloud, without a slash at their end. ``blob`` holds ``{account}``."""

    name: str
    #: Who gives tokens (Entra ID).
    authority: str
    resource_manager: str
    blob: str
    #: What a token for Azure Machine Learning's own services is asked for.
    ml_audience: str
    portal: str
    #: What a token for Blob is asked for.
    storage_audience: str = "https://storage.azure.com"
    #: The Retail Prices API, which takes no token; "" where there is none.
    prices: str = ""

    def blob_endpoint(self, account: str) -> str:
        """Return the address of a storage account's blobs."""
        return self.blob.format(account=account)

    def scope(self, audience: str) -> str:
        """Return the scope that a token for ``audience`` is asked for with."""
        return f"{audience}/.default"


CLOUDS = {
    cloud.name: cloud
    for cloud in (
        Cloud(
            name="AzureCloud",
            authority="https://login.microsoftonline.com",
            resource_manager="https://management.azure.com",
            blob="https://{account}.blob.core.windows.net",
            ml_audience="https://ml.azure.com",
            portal="https://portal.azure.com",
            prices="https://prices.azure.com/api/retail/prices",
        ),
        Cloud(
            name="AzureUSGovernment",
            authority="https://login.microsoftonline.us",
            resource_manager="https://management.usgovcloudapi.net",
            blob="https://{account}.blob.core.usgovcloudapi.net",
            ml_audience="https://ml.azure.us",
            portal="https://portal.azure.us",
            prices="https://prices.azure.com/api/retail/prices",
        ),
        Cloud(
            name="AzureChinaCloud",
            authority="https://login.chinacloudapi.cn",
            resource_manager="https://management.chinacloudapi.cn",
            blob="https://{account}.blob.core.chinacloudapi.cn",
            ml_audience="https://ml.azure.cn",
            portal="https://portal.azure.cn",
        ),
    )
}


def cloud(name: str) -> Cloud:
    """Return the cloud of this name, or the one that the JSON file at this path describes. Raises InvalidSpec."""
    if name in CLOUDS:
        return CLOUDS[name]
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
        fields = {field.name for field in dataclasses.fields(Cloud)}
        found = Cloud(**{key: str(value).rstrip("/") for key, value in document.items() if key in fields})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InvalidSpec(
            f"The cloud described in {path} cannot be read ({error}).",
            code="azure-cloud-file-unreadable",
            field="cloud",
        ) from None
    for field in dataclasses.fields(found):
        value = getattr(found, field.name)
        if field.name != "name" and value and not value.startswith("https://"):
            raise InvalidSpec(
                f"{field.name} of the cloud in {path} is not an https address.",
                code="azure-cloud-address",
                field="cloud",
            )
    return found
