"""The VM sizes that the launch form offers: the catalogue with cached prices. Sends no request."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from distdl_jupyter.azure import catalogue, prices, successor_of
from distdl_jupyter.core.humanize import money
from distdl_jupyter.form.schema import VmSizeChoice

if TYPE_CHECKING:
    from distdl_jupyter.azure import VmSize


def sizes() -> tuple[VmSizeChoice, ...]:
    """Return one row for each size, from little GPU memory to much; shares, little known and retired ones last."""
    return tuple(replace(row, price=_price(row.name)) for row in _rows())


@functools.cache
def _rows() -> tuple[VmSizeChoice, ...]:
    return tuple(_row(size) for size in sorted(catalogue(), key=_order))


def _order(size: VmSize) -> tuple[bool, bool, bool, float, int, str]:
    memory = float(size.gpu_count * (size.gpu_memory_gib or 0))
    network_unknown = size.infiniband is None and size.ethernet_gbps is None
    return size.retired, size.gpu_count < 1, network_unknown, memory, size.vcpus or 0, size.name


def _row(size: VmSize) -> VmSizeChoice:
    found = successor_of(size)
    return VmSizeChoice(
        name=size.name,
        series=size.series,
        gpu=size.gpu,
        gpus=size.gpus_text,
        per_node=size.whole_gpus,
        memory=size.memory_text,
        memory_gib=size.gpu_memory_gib,
        network={True: "InfiniBand", False: "Ethernet", None: "not stated"}[size.infiniband],
        rate=size.fabric_text if size.infiniband else size.ethernet_text,
        retired=str(size.retirement_date) if size.retired else "",
        successor=found.size.name if found else "",
        successor_reason=found.reason if found else "",
        words=" ".join([size.name, size.series, size.gpu_model, size.gpu]).lower(),
        sources=size.sources,
        notes=size.notes,
    )


def _price(name: str) -> str:
    """Return ``3.50 USD/h (source)``, "" where none is cached."""
    price = prices.cached(name)
    return f"{money(price.per_hour, price.currency)}/h ({price.source})" if price else ""
