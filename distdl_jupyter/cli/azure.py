"""``distdl azure``: sign in to Azure and out, say who is signed in, list and choose subscriptions. Prints no token."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.azure.identity import Status

#: Seconds between two requests for the status of a sign-in that waits.
_POLL = 1.0
_FLAGS = ("tenant_id", "client_id", "cloud", "token_cache")


def add_to(commands: Any) -> None:
    """Add the command with its own commands to the parser of ``distdl``."""
    from distdl_jupyter.azure.settings import CredentialKind

    text = "sign in to Azure, sign out, choose a subscription"
    parser = commands.add_parser(
        "azure", help=text, description="Show the Azure sign-in, sign in or out, or choose a subscription."
    )
    parser.set_defaults(run=_status, json=False)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND")

    one = _verb(verbs, "sign-in", _sign_in, "sign in, for all notebooks, Jupyter servers and jobs of your user")
    one.add_argument(
        "--credential", choices=get_args(CredentialKind), help="sign-in method (default: the last one, or device_code)"
    )
    one.add_argument("--tenant-id", help="tenant (directory) to sign in to")
    one.add_argument("--client-id", help="client id of an app registration or a managed identity")
    one.add_argument("--cloud", help="AzureCloud, AzureUSGovernment, AzureChinaCloud, or a file with endpoints")
    one.add_argument("--token-cache", help="keyring: do not fall back to a file if there is no keyring")

    _verb(verbs, "sign-out", _sign_out, "sign out")
    one = _verb(verbs, "status", _status, "show the signed-in account and the method")
    one.add_argument("--json", action="store_true", help="print as JSON")
    one = _verb(verbs, "subscriptions", _subscriptions, "list the subscriptions of the account")
    one.add_argument("--use", metavar="ID", help="select this subscription, by its id or name")


def _verb(verbs: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    one.set_defaults(run=run)
    return one


def _status(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.views import azure
    from distdl_jupyter.views.wire import to_json

    view = azure.sign_in_view()
    print(json.dumps(to_json(view), indent=1) if chosen.json else "\n".join(azure.sign_in_lines(view)))
    return 0 if view.state == "signed_in" else 1


def _sign_in(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.azure import identity, settings

    kind = chosen.credential or settings.read().credential or "device_code"
    given = {name: getattr(chosen, name) for name in _FLAGS if getattr(chosen, name) is not None}
    now = identity.sign_in(kind, **given)
    try:
        now = _waited(now)
    except KeyboardInterrupt:
        identity.cancel()
        raise
    if now.problem:
        raise now.problem
    return _status(argparse.Namespace(json=False))


def _waited(now: Status) -> Status:
    """Return the status when nobody is waited for any more; what is to be done is said once."""
    from distdl_jupyter.azure import identity
    from distdl_jupyter.views import azure

    if now.state == "waiting":
        print("\n".join(azure.sign_in_lines(azure.sign_in_view(now))), file=sys.stderr, flush=True)
    while now.state == "waiting":
        time.sleep(_POLL)
        now = identity.status()
    return now


def _sign_out(_: argparse.Namespace) -> int:
    from distdl_jupyter.azure import identity

    identity.sign_out()
    print(f"Signed out of Azure. {identity.REMAINS}")
    return 0


def _subscriptions(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.azure import identity, settings
    from distdl_jupyter.core import table
    from distdl_jupyter.core.errors import InvalidSpec

    found = identity.subscriptions()
    if chosen.use:
        one = next((one for one in found if chosen.use in (one.id, one.name)), None)
        if one is None:
            raise InvalidSpec(
                f"The account has no access to a subscription {chosen.use!r}.",
                code="subscription-unknown",
                field="subscription_id",
                hint="List the subscriptions with: distdl azure subscriptions",
            )
        settings.change(subscription_id=one.id)
    own = settings.read().subscription_id
    rows = [("*" if one.id == own else "", one.name, one.id, one.state) for one in found]
    print(
        table.text(table.WholeRows([("", "NAME", "ID", "STATE"), *rows]))
        if rows
        else "The account has no access to any subscription."
    )
    return 0
