"""Commands for Azure: sign in and out, select a subscription, list GPU sizes with prices. Tokens are never printed.

``distdl vm-sizes`` sends a request only with ``--prices`` (to the Retail Prices API). Prices are cached and shown with
their date.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Any, get_args

from distdl_jupyter.cli.command import Reply, add_command, add_group
from distdl_jupyter.core import humanize
from distdl_jupyter.core.errors import NotSignedIn
from distdl_jupyter.core.humanize import money, plural

if TYPE_CHECKING:
    from distdl_jupyter.azure import VmSize
    from distdl_jupyter.azure.prices import Price
    from distdl_jupyter.core.azure import SignInStatus

#: Seconds between two polls of a pending sign-in.
_POLL_SECONDS = 1.0
#: Arguments of ``sign-in`` that are settings.
_SIGN_IN_FLAGS = ("tenant_id", "client_id", "cloud", "token_cache")


def add_commands(commands: Any) -> None:
    """Add the commands to the parser of ``distdl``."""
    from distdl_jupyter.azure.settings import CredentialKind

    summary = "sign in to Azure, sign out, select a subscription"
    description = "Without a command, show the signed-in account."
    group = add_group(commands, "azure", _show_status, summary, details=description, has_json=True)
    summary = "sign in for all your notebooks, Jupyter servers and jobs"
    command = add_command(group, "sign-in", _sign_in, summary)
    command.add_argument(
        "--credential", choices=get_args(CredentialKind), help="sign-in method (default: the last one, or device_code)"
    )
    command.add_argument("--tenant-id", help="tenant (directory) to sign in to")
    command.add_argument("--client-id", help="client id of an app registration or a managed identity")
    command.add_argument("--cloud", help="AzureCloud, AzureUSGovernment, AzureChinaCloud, or a file with endpoints")
    command.add_argument("--token-cache", help="keyring: do not fall back to a file if there is no keyring")
    add_command(group, "sign-out", _sign_out, "sign out")
    add_command(group, "status", _show_status, "show the signed-in account and the method", has_json=True)
    command = add_command(
        group, "subscriptions", _list_subscriptions, "list the account's subscriptions", has_json=True
    )
    command.add_argument("--use", metavar="ID", help="select this subscription, by its id or name")

    command = add_command(commands, "vm-sizes", _list_vm_sizes, "list Azure GPU sizes with prices", has_json=True)
    command.add_argument("gpu", nargs="?", help="GPU model: A100, T4, H100")
    command.add_argument("--min-gpu-memory", type=float, metavar="GIB", help="minimum memory per GPU")
    command.add_argument("--min-gpus", type=float, metavar="N", help="minimum number of GPUs")
    command.add_argument(
        "--infiniband",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="only sizes with, or without, InfiniBand",
    )
    command.add_argument("--retired", action="store_true", help="include sizes that can no longer be rented")
    region_help = "region such as westeurope (default: the region of %%dist_config azure)"
    command.add_argument("--region", default="", help=region_help)
    command.add_argument("--prices", action="store_true", help="fetch the region's prices from the Retail Prices API")
    currency_help = "currency of prices (default: USD, or the configured one)"
    command.add_argument("--currency", default="", metavar="CODE", help=currency_help)


def _show_status(_: argparse.Namespace) -> Reply:
    from distdl_jupyter.views import azure

    view = azure.make_sign_in_view()
    return Reply(view, "\n".join(azure.format_sign_in(view)), code=0 if view.state == "signed_in" else 1)


def _sign_in(args: argparse.Namespace) -> Reply:
    from distdl_jupyter.azure import identity, settings

    kind = args.credential or settings.read().credential or "device_code"
    options = {name: getattr(args, name) for name in _SIGN_IN_FLAGS if getattr(args, name) is not None}
    status = identity.sign_in(kind, **options)
    try:
        status = _wait_for_sign_in(status)
    except KeyboardInterrupt:
        identity.cancel()
        raise
    if status.problem:
        raise NotSignedIn(status.problem.message, code=status.problem.code, hint=status.problem.hint)
    return _show_status(args)


def _wait_for_sign_in(status: SignInStatus) -> SignInStatus:
    """Print the instructions for the user, wait until the sign-in has ended, and return its status."""
    from distdl_jupyter.azure import identity
    from distdl_jupyter.views import azure

    if status.state == "waiting":
        print("\n".join(azure.format_sign_in(azure.make_sign_in_view(status))), file=sys.stderr, flush=True)
    while status.state == "waiting":
        time.sleep(_POLL_SECONDS)
        status = identity.get_status()
    return status


def _sign_out(_: argparse.Namespace) -> None:
    from distdl_jupyter.azure import identity

    identity.sign_out()
    print(f"Signed out of Azure. {identity.SIGN_OUT_NOTE}")


def _list_subscriptions(args: argparse.Namespace) -> Reply:
    from distdl_jupyter.azure import identity, settings
    from distdl_jupyter.core.errors import InvalidSpec

    subscriptions = identity.list_subscriptions()
    if args.use:
        match = next((item for item in subscriptions if args.use in (item.id, item.name)), None)
        if match is None:
            raise InvalidSpec(
                f"The account has no access to subscription {args.use!r}.",
                code="subscription-unknown",
                field="subscription_id",
                hint="List the subscriptions with: distdl azure subscriptions",
            )
        settings.change(subscription_id=match.id)
    selected_id = settings.read().subscription_id
    rows = [("*" if item.id == selected_id else "", item.name, item.id, item.state) for item in subscriptions]
    message = "The account has no access to any subscription."
    return Reply(
        subscriptions,
        humanize.format_text(humanize.WholeRows([("", "NAME", "ID", "STATE"), *rows])) if rows else message,
    )


# sizes and prices -------------------------------------------------------------------------------------


def _list_vm_sizes(args: argparse.Namespace) -> Reply:
    from distdl_jupyter.azure import get_catalogue_date, load_catalogue, prices
    from distdl_jupyter.azure.vm_sizes import select_sizes

    if args.prices:
        prices.fetch(region=args.region, currency=args.currency)
    sizes = select_sizes(
        load_catalogue(),
        gpu=args.gpu,
        min_gpu_memory_gib=args.min_gpu_memory,
        min_gpus=args.min_gpus,
        infiniband=args.infiniband,
        retired=args.retired,
    )
    priced = [(size, prices.find_cached(size.name, args.region, args.currency)) for size in sizes]
    lines = [humanize.format_text([_COLUMNS, *(_format_row(size, price) for size, price in priced)])] if priced else []
    lines.append(f"{plural(len(priced), 'size')}. Catalog: Microsoft documentation, {get_catalogue_date()}.")
    lines += [f"Prices: {source}." for source in dict.fromkeys(price.source for _, price in priced if price)]
    return Reply([_to_dict(size, price) for size, price in priced], "\n".join(lines))


_COLUMNS = ("SIZE", "GPUS", "MEMORY PER GPU", "VCPUS", "INTERCONNECT", "PRICE PER HOUR", "REMARK")


def _format_row(size: VmSize, price: Price | None) -> tuple[str, ...]:
    interconnect = {
        True: f"InfiniBand {size.fabric_text}".strip(),
        False: f"Ethernet {size.ethernet_text}".strip(),
        None: "",
    }
    return (
        size.name,
        size.gpus_text,
        size.memory_text,
        "" if size.vcpus is None else str(size.vcpus),
        interconnect[size.infiniband],
        money(price.per_hour, price.currency) if price else "",
        f"retired {size.retirement_date}" if size.is_retired else "",
    )


def _to_dict(size: VmSize, price: Price | None) -> dict[str, Any]:
    return {
        **dataclasses.asdict(size),
        "gpu_count": float(size.gpu_count),
        "status_date": str(size.status_date or ""),
        "retirement_date": str(size.retirement_date or ""),
        "sources": list(size.sources),
        "price": dataclasses.asdict(price) if price else None,
    }
