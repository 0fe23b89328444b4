"""Entra ID: discovery, tokens by client secret, device code, authorization code and refresh token.

Tokens are unsigned JWTs with the claims that Azure's have, so that Azurite's ``--oauth basic`` takes them as well. What
a test may do: approve, decline or expire a device code, refuse the next requests with an AADSTS code, revoke refresh
tokens, shorten the life of tokens.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
import uuid
from dataclasses import dataclass, field
from urllib.parse import urlencode

from tests.standin.server import Answer, Request, Server

TENANT = "72f988bf-0000-4000-8000-000000000001"
CLIENT = "a1b2c3d4-0000-4000-8000-0000000000c1"
SECRET = "the~client.secret-of-the-tests"
USER = "ann@example.org"
USER_OID = "0b1d0000-0000-4000-8000-0000000000a1"
APP_OID = "0b1d0000-0000-4000-8000-0000000000a2"
#: What azure-identity signs people in as when no client id is set.
DEVELOPER_CLIENT = "04b07795-8ddb-461a-bbee-02f9e1bf7b46"
_TENANTS = {TENANT, "organizations", "common", "example.org"}


def _part(data: dict) -> str:
    return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")


def unsigned(claims: dict) -> str:
    """Return a JWT that nobody signed."""
    return f"{_part({'typ': 'JWT', 'alg': 'RS256', 'kid': 'none'})}.{_part(claims)}.c2lnbmF0dXJl"


@dataclass
class Code:
    """A device code that somebody was shown."""

    user_code: str
    client_id: str
    scope: str
    state: str = "pending"
    until: float = 0.0
    #: Who entered it.
    user: str = ""


@dataclass
class Login:
    server: Server
    #: Seconds that access tokens live.
    lifetime: int = 3600
    #: Seconds that a device code lives, and between two questions for it.
    code_seconds: int = 900
    interval: int = 1
    #: Who agrees next. What was given before stays with whom it was given to.
    user: str = USER
    clients: dict[str, str] = field(default_factory=lambda: {CLIENT: SECRET})
    codes: dict[str, Code] = field(default_factory=dict)
    #: Every access token, refresh token, device code and secret that was given away: what may stand in no file.
    given: set[str] = field(default_factory=set)
    access: dict[str, dict] = field(default_factory=dict)
    #: Whose each refresh token is.
    refresh: dict[str, str] = field(default_factory=dict)
    _authorized: dict[str, dict] = field(default_factory=dict)
    _refusals: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        route = self.server.route
        route("GET", r"/(?P<tenant>[^/]+)/v2\.0/\.well-known/openid-configuration", self._configuration)
        route("GET", r"/common/discovery/instance", self._instance)
        route("POST", r"/(?P<tenant>[^/]+)/oauth2/v2\.0/token", self._token)
        route("POST", r"/(?P<tenant>[^/]+)/oauth2/v2\.0/devicecode", self._device_code)
        route("GET", r"/(?P<tenant>[^/]+)/oauth2/v2\.0/authorize", self._authorize)

    # What a test does.
    def approve(self) -> None:
        """Let the user enter the newest device code and agree."""
        self._newest.state, self._newest.user = "approved", self.user

    def decline(self) -> None:
        self._newest.state = "declined"

    def expire(self) -> None:
        self._newest.state = "expired"

    def refuse(self, aadsts: str, error: str = "invalid_grant", text: str = "It is refused.", times: int = 1) -> None:
        """Answer the next ``times`` requests for a token with this code of Entra ID."""
        self._refusals += [(aadsts, error, text)] * times

    def revoke(self) -> None:
        """Let no refresh token be good any more."""
        self.refresh.clear()

    def bearer(self, request: Request, audience: str = "") -> dict | None:
        """Return the claims of the token that a request carries; None when it has none, a wrong or an old one."""
        claims = self.access.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if claims is None or claims["exp"] < time.time():
            return None
        return claims if not audience or claims["aud"].rstrip("/") == audience.rstrip("/") else None

    def token(self, audience: str, *, app: bool = False) -> str:
        """Return an access token as it is given to the user, or to the app."""
        client, user = (CLIENT, "") if app else (DEVELOPER_CLIENT, self.user)
        return self._access_token(f"{audience}/.default", client, user)

    @property
    def _newest(self) -> Code:
        return list(self.codes.values())[-1]

    # What is answered.
    def _configuration(self, request: Request) -> Answer:
        tenant = request.words["tenant"]
        if tenant not in _TENANTS:
            return _refused("AADSTS90002", "invalid_tenant", f"Tenant '{tenant}' not found.")
        base = f"{self.server.address}/{tenant}"
        return Answer({
            "issuer": f"{self.server.address}/{TENANT}/v2.0", "token_endpoint": f"{base}/oauth2/v2.0/token",
            "authorization_endpoint": f"{base}/oauth2/v2.0/authorize", "jwks_uri": f"{base}/discovery/v2.0/keys",
            "device_authorization_endpoint": f"{base}/oauth2/v2.0/devicecode",
        })  # fmt: skip

    def _instance(self, request: Request) -> Answer:
        host = self.server.address.removeprefix("https://")
        return Answer({
            "tenant_discovery_endpoint": f"{self.server.address}/{TENANT}/v2.0/.well-known/openid-configuration",
            "api-version": "1.1",
            "metadata": [{"preferred_network": host, "preferred_cache": host, "aliases": [host]}],
        })  # fmt: skip

    def _token(self, request: Request) -> Answer:
        form = request.form
        if self._refusals:
            return _refused(*self._refusals.pop(0))
        kind = form.get("grant_type", "").rsplit(":", 1)[-1]
        answers = {
            "client_credentials": self._by_secret, "device_code": self._by_device_code,
            "refresh_token": self._by_refresh_token, "authorization_code": self._by_authorization_code,
        }  # fmt: skip
        if kind not in answers or not form.get("client_id"):
            return _refused("AADSTS70003", "unsupported_grant_type", f"The grant {kind!r} is not supported.")
        return answers[kind](form)

    def _by_secret(self, form: dict[str, str]) -> Answer:
        client, secret = form["client_id"], form.get("client_secret", "")
        if client not in self.clients:
            return _refused("AADSTS700016", "unauthorized_client", f"Application '{client}' was not found.")
        if secret != self.clients[client]:
            return _refused("AADSTS7000215", "invalid_client", "Invalid client secret provided.", 401)
        if not form.get("scope", "").split()[0].endswith("/.default"):
            return _refused("AADSTS1002012", "invalid_scope", "The scope has to end with /.default.")
        token = self._access_token(form["scope"], client)
        return Answer({"token_type": "Bearer", "expires_in": self.lifetime, "access_token": token})

    def _device_code(self, request: Request) -> Answer:
        form = request.form
        if self._refusals:
            return _refused(*self._refusals.pop(0))
        if not form.get("client_id") or not form.get("scope"):
            return _refused("AADSTS900144", "invalid_request", "The request must have client_id and scope.")
        device, user_code = secrets.token_urlsafe(40), secrets.token_hex(5).upper()[:9]
        until = time.time() + self.code_seconds
        self.codes[device] = Code(user_code, form["client_id"], form["scope"], until=until)
        self.given.add(device)
        return Answer({
            "user_code": user_code, "device_code": device, "verification_uri": f"{self.server.address}/device",
            "expires_in": self.code_seconds, "interval": self.interval,
            "message": f"Open {self.server.address}/device and enter {user_code}.",
        })  # fmt: skip

    def _by_device_code(self, form: dict[str, str]) -> Answer:
        code = self.codes.get(form.get("device_code", ""))
        if code is None or code.client_id != form["client_id"]:
            return _refused("AADSTS70000", "invalid_grant", "The device code is unknown.")
        state = "expired" if code.state == "pending" and time.time() > code.until else code.state
        if state == "pending":
            return _refused("AADSTS70016", "authorization_pending", "OAuth 2.0 device flow error. Still pending.")
        if state == "declined":
            return _refused("AADSTS70018", "authorization_declined", "The user denied the request.")
        if state == "expired":
            return _refused("AADSTS70020", "expired_token", "The device code has expired.")
        return self._for_user(code.user, form["client_id"], code.scope)

    def _by_refresh_token(self, form: dict[str, str]) -> Answer:
        user = self.refresh.get(form.get("refresh_token", ""))
        if user is None:
            return _refused("AADSTS700082", "invalid_grant", "The refresh token has expired due to inactivity.")
        return self._for_user(user, form["client_id"], form["scope"])

    def _authorize(self, request: Request) -> Answer:
        """Stand for the page on which the user chooses an account: at once agree, and send the browser back."""
        query = request.query
        back = query.get("redirect_uri", "")
        if query.get("response_type") != "code" or not back.startswith("http://localhost:"):
            return Answer("AADSTS50011: the redirect address is not registered", 400)
        code = secrets.token_urlsafe(30)
        self.given.add(code)
        self._authorized[code] = query
        told = {"code": code, "state": query.get("state", ""), "client_info": _client_info(self.user)}
        if query.get("response_mode") != "form_post":
            return Answer("", 302, {"Location": f"{back}?{urlencode(told)}"})
        fields = "".join(f'<input type="hidden" name="{name}" value="{value}">' for name, value in told.items())
        return Answer(f'<form method="post" action="{back}">{fields}</form>', headers={"Content-Type": "text/html"})

    def _by_authorization_code(self, form: dict[str, str]) -> Answer:
        asked = self._authorized.pop(form.get("code", ""), None)
        if asked is None or asked["redirect_uri"] != form.get("redirect_uri") or not form.get("code_verifier"):
            return _refused("AADSTS70008", "invalid_grant", "The authorization code is not valid.")
        return self._for_user(self.user, form["client_id"], asked["scope"], asked.get("nonce", ""))

    def _for_user(self, user: str, client: str, scope: str, nonce: str = "") -> Answer:
        refresh = "0.refresh-" + secrets.token_urlsafe(40)
        self.refresh[refresh] = user
        self.given.add(refresh)
        return Answer({
            "token_type": "Bearer", "scope": scope, "expires_in": self.lifetime, "ext_expires_in": self.lifetime,
            "access_token": self._access_token(scope, client, user), "refresh_token": refresh,
            "id_token": unsigned(self._identity(user, client, nonce)), "client_info": _client_info(user),
        })  # fmt: skip

    def _identity(self, user: str, client: str, nonce: str) -> dict:
        now = int(time.time())
        return {
            "aud": client, "iss": f"{self.server.address}/{TENANT}/v2.0", "iat": now, "nbf": now - 300,
            "exp": now + self.lifetime, "name": "Ann Example", "oid": _oid(user), "preferred_username": user,
            "sub": "the-subject", "tid": TENANT, "ver": "2.0", **({"nonce": nonce} if nonce else {}),
        }  # fmt: skip

    def _access_token(self, scope: str, client: str, user: str = "") -> str:
        now = int(time.time())
        resource = next(one for one in scope.split() if one.endswith("/.default")).removesuffix("/.default")
        who = (
            {"oid": _oid(user), "idtyp": "user", "upn": user, "unique_name": user, "name": "Ann Example",
             "scp": "user_impersonation", "sub": "the-subject"}
            if user
            else {"oid": APP_OID, "idtyp": "app", "sub": APP_OID}
        )  # fmt: skip
        claims = {
            "aud": resource, "iss": f"https://sts.windows.net/{TENANT}/", "iat": now - 60, "nbf": now - 60,
            "exp": now + self.lifetime, "appid": client, "tid": TENANT, "ver": "1.0", "uti": secrets.token_hex(8),
            **who,
        }  # fmt: skip
        token = unsigned(claims)
        self.access[token] = claims
        self.given.add(token)
        return token


def _oid(user: str) -> str:
    """Return the id of a user, another one for each."""
    return USER_OID if user == USER else str(uuid.uuid5(uuid.NAMESPACE_DNS, user))


def _client_info(user: str) -> str:
    return _part({"uid": _oid(user), "utid": TENANT})


def _refused(aadsts: str, error: str, text: str, status: int = 400) -> Answer:
    """Return an error as Entra ID writes it."""
    said = f"{aadsts}: {text} Trace ID: 00000000-0000 Correlation ID: 00000000-0001 Timestamp: 2026-01-01 00:00:00Z"
    number = int("".join(char for char in aadsts if char.isdigit()) or 0)
    return Answer({"error": error, "error_description": said, "error_codes": [number]}, status)
