"""Requests to Azure's resource manager and its services with azure-core's pipeline (retries, bearer tokens).

Errors contain Azure's message as one sentence, without tokens and signatures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import AzureRefused
from distdl_jupyter.worker.secret_patterns import mask

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

_HINTS = {
    401: "Sign in to Azure again.",
    403: "Your account lacks the permission. Ask the owner of the subscription for it, or use another account.",
    429: "Azure limits the number of requests. Try again in a few minutes.",
}


class RestClient:
    """Client of a service at an https address. Without a ``credential``, requests have no token (Retail Prices API)."""

    def __init__(self, address: str, credential: TokenCredential | None, scope: str = "", *, retries: int = 3) -> None:
        from azure.core import PipelineClient
        from azure.core.pipeline import policies

        authentication = [] if credential is None else [policies.BearerTokenCredentialPolicy(credential, scope)]
        self.address = address.rstrip("/")
        self._client: Any = PipelineClient(
            self.address,
            policies=[
                policies.HeadersPolicy({"Accept": "application/json"}),
                policies.UserAgentPolicy("distdl-jupyter"),
                policies.RetryPolicy(retry_total=retries, retry_backoff_factor=0.5),
                *authentication,
            ],
        )

    def get(self, path: str, api_version: str = "", **parameters: str) -> Any:
        """Return the data of a GET request. ``path`` may be a full address of this service. Raises AzureRefused."""
        return self.send("GET", path, api_version, parameters).json()

    def iter_items(self, path: str, api_version: str = "", **parameters: str) -> Iterator[dict[str, Any]]:
        """Yield the items of all pages of a list (``value``, ``nextLink``; Prices API: ``Items``)."""
        page = self.get(path, api_version, **parameters)
        while True:
            yield from page.get("value") or page.get("Items") or ()
            next_link = page.get("nextLink") or page.get("NextPageLink")
            if not next_link:
                return
            page = self.get(next_link)

    def post(self, path: str, api_version: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the data of a POST request, or {} for an empty response. Raises AzureRefused."""
        response = self.send("POST", path, api_version, {}, body or {})
        return response.json() if response.content else {}

    def send(
        self,
        method: str,
        path: str,
        api_version: str = "",
        parameters: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the response (status_code, headers, json()). Raises AzureRefused, NotSignedIn."""
        from azure.core.exceptions import AzureError
        from azure.core.rest import HttpRequest

        url = path if path.startswith("https://") else self.address + path
        if _get_host(url) != _get_host(self.address):
            raise AzureRefused(
                f"{_get_host(self.address)} redirected to {_get_host(url)}, which is not trusted with a token.",
                code="azure-redirect",
            )
        query = {**({"api-version": api_version} if api_version else {}), **(parameters or {})}
        request = HttpRequest(method, url, params=query, json=body, headers=dict(headers or {}))
        try:
            response = self._client.send_request(request)
            response.read()
        except AzureError as error:
            raise AzureRefused(
                f"{_get_host(url)} cannot be reached: {mask(str(error).strip().partition(chr(10))[0])[:300]}",
                code="azure-unreachable",
                hint="Check the network connection of this machine. Behind a proxy, set HTTPS_PROXY.",
            ) from None
        if response.status_code >= 400:
            raise make_error(response)
        return response


def make_error(response: Any) -> AzureRefused:
    """Return the error for a response with a status of at least 400."""
    try:
        document = response.json()
        fields = document.get("error", document)
        fields = fields if isinstance(fields, dict) else {"code": fields, "message": document.get("error_description")}
    except (ValueError, AttributeError):  # not a JSON object
        fields = {}
    code, message = str(fields.get("code") or ""), mask(str(fields.get("message") or "")).strip()
    status, host = response.status_code, _get_host(response.request.url)
    text = f"{host} responded with {status}{' ' + code if code else ''}" + (f": {message}" if message else ".")
    return AzureRefused(text, status=status, code="azure-request-refused", azure_code=code, hint=_HINTS.get(status, ""))


def _get_host(url: str) -> str:
    """Return the host of an https address, without the port 443 in the next-page links of the Prices API."""
    return url.split("/")[2].removesuffix(":443")
