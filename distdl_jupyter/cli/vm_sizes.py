"""``distdl vm-sizes``: Azure's GPU sizes with filters, and their prices.

No request is sent without ``--prices`` (the Retail Prices API); its prices are cached and shown with their day.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import table
from distdl_jupyter.core.humanize import money, plural

if TYPE_CHECKING:
    from distdl_jupyter.azure import VmSize
    from distdl_jupyter.azure.prices import Price


def add_to(commands: Any) -> None:
    """Add the command to the parser of ``distdl``."""
    text = "list Azure GPU sizes with prices"
    one = commands.add_parser("vm-sizes", help=text, description="List Azure GPU sizes with prices.")
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
    one.add_argument("--prices", action="store_true", help="fetch the region's prices from the Retail Prices API")
    one.add_argument(
        "--currency", default="", metavar="CODE", help="currency of prices (default: USD, or the configured one)"
    )
    one.add_argument("--json", action="store_true", help="print everything as JSON")


def _list(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.azure import catalogue, catalogue_date, prices
    from distdl_jupyter.azure.vm_sizes import select

    if chosen.prices:
        prices.fetch(region=chosen.region, currency=chosen.currency)
    sizes = select(
        catalogue(), gpu=chosen.gpu, min_gpu_memory_gib=chosen.min_gpu_memory, min_gpus=chosen.min_gpus,
        infiniband=chosen.infiniband, retired=chosen.retired,
    )  # fmt: skip
    priced = [(size, prices.cached(size.name, chosen.region, chosen.currency)) for size in sizes]
    if chosen.json:
        print(json.dumps([_data(size, price) for size, price in priced], indent=1))
        return 0
    if priced:
        print(table.text([_HEAD, *(_row(size, price) for size, price in priced)]))
    print(f"{plural(len(priced), 'size')}. Catalog: Microsoft documentation, {catalogue_date()}.")
    for source in dict.fromkeys(price.source for _, price in priced if price):
        print(f"Prices: {source}.")
    return 0


_HEAD = ("SIZE", "GPUS", "MEMORY PER GPU", "VCPUS", "INTERCONNECT", "PRICE PER HOUR", "REMARK")


def _row(size: VmSize, price: Price | None) -> tuple[str, ...]:
    between = {
        True: f"InfiniBand {size.fabric_text}".strip(),
        False: f"Ethernet {size.ethernet_text}".strip(),
        None: "",
    }
    return (
        size.name, size.gpus_text, size.memory_text, "" if size.vcpus is None else str(size.vcpus),
        between[size.infiniband], money(price.per_hour, price.currency) if price else "",
        f"retired {size.retirement_date}" if size.retired else "",
    )  # fmt: skip


def _data(size: VmSize, price: Price | None) -> dict[str, Any]:
    return {
        **dataclasses.asdict(size),
        "gpu_count": float(size.gpu_count),
        "status_date": str(size.status_date or ""),
        "retirement_date": str(size.retirement_date or ""),
        "sources": list(size.sources),
        "price": dataclasses.asdict(price) if price else None,
    }
