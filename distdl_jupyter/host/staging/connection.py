"""One kept-alive connection to a Blob endpoint: TLS always, the machine's proxy where it has one, no redirects."""

from __future__ import annotations

import base64
import http.client
import ssl
import urllib.request
from urllib.parse import unquote, urlsplit

from distdl_jupyter.host.staging.failure import Failure

#: Seconds in which something must come.
_SILENCE = 30.0


def trust(ca: str = "") -> ssl.SSLContext:
    """Return whom to trust: this machine's certificates, and those in ``ca`` (PEM). Raises Failure."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca:
        try:
            context.load_verify_locations(cadata=ca)
        except ssl.SSLError as error:
            raise Failure(f"The certificates of the order cannot be read ({error.reason}).") from None
    return context


class Connection:
    """A connection to the host of ``address``, opened when it is needed and again after its end."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        split = urlsplit(address)
        self._host, self._port = str(split.hostname), split.port or 443
        self._http = _direct_or_not(self._host, self._port, context)

    @property
    def fresh(self) -> bool:
        """Whether the next request opens a connection; one that was idle may have been ended by the other side."""
        return self._http.sock is None

    def get(self, target: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Return the answer to GET, its body unread. Raises OSError, HTTPException."""
        self._http.putrequest("GET", target, skip_accept_encoding=True)
        for name, value in headers.items():
            self._http.putheader(name, value)
        self._http.endheaders()
        return self._http.getresponse()

    def close(self) -> None:
        """End it; the next request opens another one."""
        self._http.close()


def _direct_or_not(host: str, port: int, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    proxy = urllib.request.getproxies().get("https", "")
    if not proxy or urllib.request.proxy_bypass(f"{host}:{port}"):
        return http.client.HTTPSConnection(host, port, timeout=_SILENCE, context=context)
    split = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    connection = http.client.HTTPSConnection(str(split.hostname), split.port or 8080, timeout=_SILENCE, context=context)
    connection.set_tunnel(host, port, _authorization(split.username, split.password))
    return connection


def _authorization(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    pair = f"{unquote(user)}:{unquote(password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
