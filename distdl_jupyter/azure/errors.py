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
    "The policy of your organization does not allow this sign-in method.",
    "Use another method (browser, or az login on a machine that it trusts), or ask the tenant's administrator.",
)
#: What is said when the cache holds no token that could be renewed.
EXPIRED = "The sign-in has expired."
_EXPIRED = (EXPIRED, _AGAIN)
_CODE_EXPIRED = ("The code was not entered in time.", "Sign in again and enter the new code.")
_DECLINED = ("The sign-in was declined.", "Sign in again with an account that may use Azure.")
_SECOND_FACTOR = (
    "Azure requires a second factor, which this sign-in method does not support.",
    "Sign in with a browser or a device code.",
)
_WRONG_TENANT = (
    "The tenant does not exist.",
    "Set its id or one of its domains: %dist_config azure tenant_id=...",
)
_NOT_A_MEMBER = (
    "This account is not a member of the tenant.",
    "Use another account, or set the tenant of this one: %dist_config azure tenant_id=...",
)
_CONSENT = (
    "This app does not yet have consent to use Azure for the account.",
    "Give consent on the sign-in page, or ask the tenant's administrator to do so.",
)
_UNKNOWN_APP = (
    "The tenant has no app with this client id.",
    "Check client_id and tenant_id in %dist_config azure, or AZURE_CLIENT_ID and AZURE_TENANT_ID.",
)

#: AADSTS number -> (what happened, remedy).
AADSTS: dict[str, tuple[str, str]] = {
    "50020": _NOT_A_MEMBER,
    "50034": _NOT_A_MEMBER,
    "90072": _NOT_A_MEMBER,
    "50053": ("The account is locked.", "Wait a few minutes, or ask the tenant's administrator."),
    "50055": ("The account's password has expired.", "Change it on the sign-in page, then sign in again."),
    "50057": ("The account is disabled.", "Use another account, or ask the tenant's administrator."),
    "50059": _WRONG_TENANT,
    "90002": _WRONG_TENANT,
    "900021": _WRONG_TENANT,
    "900023": _WRONG_TENANT,
    "50072": _SECOND_FACTOR,
    "50074": _SECOND_FACTOR,
    "50076": _SECOND_FACTOR,
    "50079": _SECOND_FACTOR,
    "50158": _SECOND_FACTOR,
    "50105": ("The account is not allowed to use this app.", "Ask the tenant's administrator to assign the app to it."),
    "50126": ("The user name or password is wrong.", _AGAIN),
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
    "65004": ("Consent for this app was declined.", "Sign in again and give consent on the sign-in page."),
    "90094": _CONSENT,
    "70018": _DECLINED,
    "70019": _CODE_EXPIRED,
    "70020": _CODE_EXPIRED,
    "700016": _UNKNOWN_APP,
    "7000112": ("The app registration is disabled.", "Ask the tenant's administrator, or use another client id."),
    "7000215": (
        "The client secret is wrong.",
        "Set AZURE_CLIENT_SECRET to the value of the secret (not its id), then restart Jupyter.",
    ),
    "7000218": (
        "The app registration does not allow sign-in without a secret.",
        "Enable 'Allow public client flows' for it, or leave client_id empty.",
    ),
    "7000222": ("The client secret has expired.", "Set AZURE_CLIENT_SECRET to a new one, then restart Jupyter."),
    "500011": ("The tenant does not know this service.", "Check tenant_id and cloud in %dist_config azure."),
    "50011": (
        "The app registration does not list the redirect address of this sign-in.",
        "Add http://localhost to its redirect addresses (mobile and desktop applications).",
    ),
}  # fmt: skip

_CLI_AGAIN = "Run this in a terminal on this machine, then try again: az login"
#: What is said of a machine where tokens cannot be kept encrypted.
NO_KEYRING = "This machine has no keyring, and token_cache=keyring does not allow a file."
#: What azure-identity writes -> (what happened, remedy). The first that is found in the text is taken.
_TEXTS: tuple[tuple[str, tuple[str, str]], ...] = (
    (
        "Azure CLI not found",
        (
            "The Azure command line (az) is not installed on this machine.",
            "Sign in with a device code, or install it and run: az login",
        ),
    ),
    ("Please run 'az login'", ("The Azure command line (az) is not signed in.", _CLI_AGAIN)),
    ("Failed to invoke the Azure CLI", ("The Azure command line (az) did not respond in time.", _CLI_AGAIN)),
    ("authorization_declined", _DECLINED),
    ("access_denied", _DECLINED),
    ("expired_token", _CODE_EXPIRED),
    ("code_expired", _CODE_EXPIRED),
    ("Timed out", ("The sign-in was not completed in time.", _AGAIN)),
    (
        "Failed to open a browser",
        (
            "A browser cannot be opened on the machine that runs Jupyter.",
            "Sign in with a device code instead.",
        ),
    ),
    (
        "start an HTTP server",
        ("No port is free for the response of the browser.", "Sign in with a device code instead."),
    ),
    (
        "Cache encryption is impossible",
        (NO_KEYRING, "Use the account of az login, or clear token_cache to allow a file that only you can read."),
    ),
    (
        "No identity has been assigned",
        (
            "This machine has no managed identity with this client_id.",
            "Assign the identity to this machine in the Azure portal.",
        ),
    ),
    (
        "ManagedIdentityCredential authentication unavailable",
        (
            "This machine has no managed identity.",
            "Managed identities exist only on Azure machines. Use another sign-in method here.",
        ),
    ),
    ("The sign-in was cancelled", ("The sign-in was cancelled.", "Sign in again when you are ready.")),
    ("interaction_required", _EXPIRED),
    ("Interactive authentication is required", _EXPIRED),
    ("Unable to get authority configuration", _WRONG_TENANT),
    ("Invalid tenant", _WRONG_TENANT),
    ("not well-known", ("Entra ID does not know this cloud.", "Check cloud in %dist_config azure.")),
    ("CERTIFICATE_VERIFY_FAILED", (
        "This machine does not trust the certificate of the sign-in service.",
        "Behind a company proxy, set REQUESTS_CA_BUNDLE to the proxy's certificate.",
    )),
)  # fmt: skip
_NO_NETWORK = re.compile(
    r"(getaddrinfo|Name or service not known|NameResolution|Failed to resolve|Connection (refused|aborted|reset)"
    r"|Max retries|timed out|Failed to establish|Cannot connect|Network is unreachable)",
    re.IGNORECASE,
)
_SILENT = (
    "The sign-in service cannot be reached.",
    "Check the network connection of this machine. Behind a proxy, set HTTPS_PROXY.",
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
        return NotSignedIn(f"{message[:-1]} (AADSTS{number.group(1)}).", code=code_of(number.group()), hint=hint)
    if number is None:
        for word, (message, hint) in _TEXTS:
            if word in text:
                return NotSignedIn(message, code=code_of(word), hint=hint)
        if _NO_NETWORK.search(text):
            return NotSignedIn(_SILENT[0], code="azure-sign-in-unreachable", hint=_SILENT[1])
    return NotSignedIn(f"Azure did not issue a token. {_shortened(text)}", code="azure-sign-in-failed", hint=_AGAIN)


def code_of(text: str) -> str:
    """Return the code of the error with this number or text of azure-identity or Entra ID."""
    return "-".join(["azure", *re.findall(r"[a-z0-9]+", text.lower().removeprefix("azure"))])


def _shortened(text: str) -> str:
    """Return the first sentence of somebody else's text, without ids, tokens and signatures."""
    lines = _TAIL.sub("", masked(text)).strip().splitlines()
    first = (lines[0] if lines else "no reason was given").removeprefix("Authentication failed: ")[:300]
    return first if first.endswith(".") else f"{first}."
