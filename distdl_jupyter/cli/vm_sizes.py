"""``distdl vm-sizes``: Azure's GPU sizes with filters, what Azure says of them in a region, and their prices.

Nothing is asked without ``--refresh`` (Azure, after a sign-in) or ``--prices`` (the Retail Prices API); both answers
are kept and shown with their day from then on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.humanize import money, plural
from distdl_jupyter.views import table

if TYPE_CHECKING:
    from distdl_jupyter.azure import VmSize
    from distdl_jupyter.azure.prices import Price


def add_to(commands: Any) -> None:
    """Add the command to the parser of ``distdl``."""
    text = "list Azure GPU sizes with quota and prices"
    one = commands.add_parser("vm-sizes", help=text, description="List Azure GPU sizes with quota and prices.")
    one.set_defaults(run=_list)
    one.add_argument("gpu", nargs="?", help="GPU model: A100, T4, H100")
    one.add_argument("--min-gpu-memory", type=float, metavar="GIB", help="minimum memory per GPU")
    one.add_argument("--min-gpus", type=float, metavar="N", help="minimum number of GPUs")
    one.add_argument(
        "--infiniband",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="only sizes with, or without, InfiniBand",
    )
    one.add_argument("--retired", action="store_true", help="include sizes that can no longer be rented")
    one.add_argument(
        "--region", default="", help="region such as westeurope (default: the region of %%dist_config azure)"
    )
    one.add_argument(
        "--refresh", action="store_true", help="ask Azure for the sizes and quota of the region (needs a sign-in)"
    )
    one.add_argument("--prices", action="store_true", help="fetch the region's prices from the Retail Prices API")
    one.add_argument(
        "--currency", default="", metavar="CODE", help="currency of prices (default: USD, or the configured one)"
    )
    one.add_argument("--json", action="store_true", help="print everything as JSON")


def _list(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.azure import prices, skus
    from distdl_jupyter.azure.merged import sizes
    from distdl_jupyter.azure.vm_sizes import select

    if chosen.refresh:
        skus.refresh(chosen.region)
    if chosen.prices:
        prices.ask(region=chosen.region, currency=chosen.currency)
    found = select(
        sizes(chosen.region), gpu=chosen.gpu, min_gpu_memory_gib=chosen.min_gpu_memory, min_gpus=chosen.min_gpus,
        infiniband=chosen.infiniband, retired=chosen.retired,
    )  # fmt: skip
    priced = [(size, prices.known(size.name, chosen.region, chosen.currency)) for size in found]
    if chosen.json:
        print(json.dumps([_data(size, price) for size, price in priced], indent=1))
        return 0
    if priced:
        print(table.text([_HEAD, *(_row(size, price) for size, price in priced)]))
    print("\n".join(_sources(priced, chosen.region)))
    return 0


_HEAD = ("SIZE", "GPUS", "MEMORY PER GPU", "VCPUS", "INTERCONNECT", "PRICE PER HOUR", "QUOTA", "REMARK")


def _row(size: VmSize, price: Price | None) -> tuple[str, ...]:
    between = {
        True: f"InfiniBand {size.fabric_text}".strip(),
        False: f"Ethernet {size.ethernet_text}".strip(),
        None: "",
    }
    remark = f"retired {size.retirement_date}" if size.retired else size.restriction
    return (
        size.name, size.gpus_text, size.memory_text, "" if size.vcpus is None else str(size.vcpus),
        between[size.infiniband], money(price.per_hour, price.currency) if price else "",
        size.quota.text if size.quota else "", remark,
    )  # fmt: skip


def _sources(priced: list[tuple[VmSize, Price | None]], region: str) -> list[str]:
    """Return who says what is shown, and since when."""
    from distdl_jupyter.azure import catalogue_date, skus

    listed = skus.known(region)
    lines = [f"{plural(len(priced), 'size')}. Catalog: Microsoft documentation, {catalogue_date()}."]
    lines += [f"Availability and quota: {listed.source}."] if listed else []
    lines += [f"Prices: {one}." for one in dict.fromkeys(price.source for _, price in priced if price)]
    return lines


def _data(size: VmSize, price: Price | None) -> dict[str, Any]:
    row = dataclasses.asdict(size)
    return {
        **row,
        "gpu_count": float(size.gpu_count),
        "status_date": str(size.status_date or ""),
        "retirement_date": str(size.retirement_date or ""),
        "origins": dict(size.origins),
        "sources": list(size.sources),
        "price": {**dataclasses.asdict(price), "source": price.source} if price else None,
    }
