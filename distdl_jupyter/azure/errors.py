"""Each failure to sign in as one sentence with its remedy. Reads what azure-identity raised; knows no credential.

The numbers are Entra ID's (learn.microsoft.com/entra/identity-platform/reference-error-codes), which says that they may
change: a number that is not here is shown with what Entra ID wrote. No token or secret passes: texts are cut to Entra
ID's own first sentence and go through ``rest.masked``.
"""

from __future__ import annotations

import re

from distdl_jupyter.azure.rest import masked
from distdl_jupyter.core.errors import NotSignedIn

_CODE = re.compile(r"AADSTS(\d+)")
_AGAIN = "Sign in again."
_POLICY = (
    "The organisation's policy refuses this way to sign in.",
    "Take another one (browser, or az login on a machine that it trusts), or ask the tenant's administrator.",
)
#: What is said when the cache holds no token that could be renewed.
EXPIRED = "The sign-in has expired."
_EXPIRED = (EXPIRED, _AGAIN)
_CODE_EXPIRED = ("The code was not entered in time.", "Start again and enter the new code.")
_DECLINED = ("The sign-in was declined.", "Start again and choose an account that may use Azure.")
_SECOND_FACTOR = (
    "Azure asks for a second factor, which this way to sign in cannot show.",
    "Sign in with a browser or a device code.",
)
_WRONG_TENANT = (
    "There is no such tenant.",
    "Set the right one: %dist_config azure tenant_id=... (its id or a domain of it).",
)
_NOT_A_MEMBER = (
    "This account is no member of the tenant.",
    "Choose another account, or set its tenant: %dist_config azure tenant_id=...",
)
_CONSENT = (
    "Nobody agreed yet that this app may use Azure for the account.",
    "Agree at the sign-in page, or ask the tenant's administrator to.",
)
_UNKNOWN_APP = (
    "The tenant knows no app with this client id.",
    "Check client_id and tenant_id, in %dist_config azure or AZURE_CLIENT_ID and AZURE_TENANT_ID.",
)

#: AADSTS number -> (what happened, remedy).
AADSTS: dict[str, tuple[str, str]] = {
    "50020": _NOT_A_MEMBER,
    "50034": _NOT_A_MEMBER,
    "90072": _NOT_A_MEMBER,
    "50053": ("The account is locked.", "Wait some minutes, or ask the tenant's administrator."),
    "50055": ("The account's password has expired.", "Change it at the sign-in page, then sign in again."),
    "50057": ("The account is disabled.", "Choose another account, or ask the tenant's administrator."),
    "50059": _WRONG_TENANT,
    "90002": _WRONG_TENANT,
    "900021": _WRONG_TENANT,
    "900023": _WRONG_TENANT,
    "50072": _SECOND_FACTOR,
    "50074": _SECOND_FACTOR,
    "50076": _SECOND_FACTOR,
    "50079": _SECOND_FACTOR,
    "50158": _SECOND_FACTOR,
    "50105": ("The account may not use this app.", "Ask the tenant's administrator to assign it."),
    "50126": ("User name or password was wrong.", _AGAIN),
    "50078": _EXPIRED,
    "50173": _EXPIRED,
    "70008": _EXPIRED,
    "70043": _EXPIRED,
    "70044": _EXPIRED,
    "700082": _EXPIRED,
    "700084": _EXPIRED,
    "50199": _POLICY,
    "53000": _POLICY,
    "53001": _POLICY,
    "53002": _POLICY,
    "53003": _POLICY,
    "53004": _POLICY,
    "530003": _POLICY,
    "530004": _POLICY,
    "530032": _POLICY,
    "530036": _POLICY,
    "65001": _CONSENT,
    "65004": ("The account did not agree to what this app asks for.", "Start again and agree at the sign-in page."),
    "90094": _CONSENT,
    "70018": _DECLINED,
    "70019": _CODE_EXPIRED,
    "70020": _CODE_EXPIRED,
    "700016": _UNKNOWN_APP,
    "7000112": ("The app registration is disabled.", "Ask the tenant's administrator, or use another client id."),
    "7000215": (
        "The client secret is wrong.",
        "Put the secret's value (not its id) into AZURE_CLIENT_SECRET and restart Jupyter.",
    ),
    "7000218": (
        "The app registration allows no sign-in without a secret.",
        "Switch on 'Allow public client flows' for it, or leave client_id empty.",
    ),
    "7000222": ("The client secret has expired.", "Make a new one, put it into AZURE_CLIENT_SECRET, restart Jupyter."),
    "500011": ("The tenant does not know this service.", "Check tenant_id and cloud in %dist_config azure."),
    "50011": (
        "The app registration lacks the address that the browser is sent back to.",
        "Add http://localhost to its redirect addresses (mobile and desktop applications).",
    ),
}  # fmt: skip

_CLI_AGAIN = "Run az login in a terminal of this machine, then try again."
#: What is said of a machine where tokens cannot be kept encrypted.
NO_KEYRING = "This machine has no keyring, and token_cache=keyring refuses a file."
#: What azure-identity writes -> (what happened, remedy). The first that is found in the text is taken.
_TEXTS: tuple[tuple[str, tuple[str, str]], ...] = (
    (
        "Azure CLI not found",
        (
            "The Azure command line (az) is not installed on this machine.",
            "Install it and run az login, or sign in with a device code.",
        ),
    ),
    ("Please run 'az login'", ("Nobody is logged in with az.", _CLI_AGAIN)),
    ("Failed to invoke the Azure CLI", ("az gave no answer in time.", _CLI_AGAIN)),
    ("authorization_declined", _DECLINED),
    ("access_denied", _DECLINED),
    ("expired_token", _CODE_EXPIRED),
    ("code_expired", _CODE_EXPIRED),
    ("Timed out", ("Nobody signed in within the time given.", "Start again.")),
    (
        "Failed to open a browser",
        (
            "No browser can be opened on the machine where Jupyter runs.",
            "Sign in with a device code instead.",
        ),
    ),
    (
        "start an HTTP server",
        ("No port is free for the browser to come back to.", "Sign in with a device code instead."),
    ),
    (
        "Cache encryption is impossible",
        (NO_KEYRING, "Take the account of az login, or empty token_cache to allow a file that only you may read."),
    ),
    (
        "No identity has been assigned",
        (
            "This machine has no managed identity, or not the one that client_id names.",
            "Assign one to it in the Azure portal.",
        ),
    ),
    (
        "ManagedIdentityCredential authentication unavailable",
        ("This machine has no managed identity.", "It is for machines of Azure; sign in otherwise here."),
    ),
    ("The sign-in was cancelled", ("The sign-in was cancelled.", "Start again when you want to.")),
    ("interaction_required", _EXPIRED),
    ("Interactive authentication is required", _EXPIRED),
    ("Unable to get authority configuration", _WRONG_TENANT),
    ("Invalid tenant", _WRONG_TENANT),
    ("not well-known", ("Entra ID does not know this cloud.", "Check cloud in %dist_config azure.")),
    ("CERTIFICATE_VERIFY_FAILED", (
        "The certificate of the sign-in service is not trusted here.",
        "Behind a company's proxy set REQUESTS_CA_BUNDLE to its certificate.",
    )),
)  # fmt: skip
_NO_NETWORK = re.compile(
    r"(getaddrinfo|Name or service not known|NameResolution|Failed to resolve|Connection (refused|aborted|reset)"
    r"|Max retries|timed out|Failed to establish|Cannot connect|Network is unreachable)",
    re.IGNORECASE,
)
_SILENT = (
    "The sign-in service cannot be reached.",
    "Check this machine's connection; behind a proxy set HTTPS_PROXY.",
)
_TAIL = re.compile(r"\s*(Trace ID|Correlation ID|Timestamp|To mitigate|Visit https).*", re.DOTALL)


def explain(error: BaseException) -> NotSignedIn:
    """Return what hindered a sign-in as the error that users read."""
    if isinstance(error, NotSignedIn):
        return error
    return explained(str(error))


def explained(text: str) -> NotSignedIn:
    """Return the error for what azure-identity or Entra ID wrote."""
    number = _CODE.search(text)
    if number and number.group(1) in AADSTS:
        message, hint = AADSTS[number.group(1)]
        return NotSignedIn(f"{message[:-1]} (AADSTS{number.group(1)}).", hint=hint)
    if number is None:
        for word, (message, hint) in _TEXTS:
            if word in text:
                return NotSignedIn(message, hint=hint)
        if _NO_NETWORK.search(text):
            return NotSignedIn(_SILENT[0], hint=_SILENT[1])
    return NotSignedIn(f"Azure gave no token. {_shortened(text)}", hint=_AGAIN)


def _shortened(text: str) -> str:
    """Return the first sentence of somebody else's text, without ids, tokens and signatures."""
    lines = _TAIL.sub("", masked(text)).strip().splitlines()
    first = (lines[0] if lines else "no reason was given").removeprefix("Authentication failed: ")[:300]
    return first if first.endswith(".") else f"{first}."
