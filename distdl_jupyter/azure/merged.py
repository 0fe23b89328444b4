"""The catalogue with what Azure itself said of one region laid over it, each such value with its source.

vCPUs, memory and whether a size may be rented are Azure's to say. What pages say of InfiniBand is kept where they say
it, because ``RdmaEnabled`` tells neither generation nor rate. Sizes that only Azure lists are added, with what their
name and the answer tell and nothing more.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from fractions import Fraction
from typing import Any

from distdl_jupyter.azure import skus
from distdl_jupyter.azure.catalogue_file import catalogue
from distdl_jupyter.azure.skus import Region, Sku
from distdl_jupyter.azure.vm_size import VmSize, gpu_in

_REASONS = {"NotAvailableForSubscription": "not available for your subscription in {}",
            "QuotaId": "not offered for your subscription type in {}"}  # fmt: skip


def sizes(region: str = "") -> tuple[VmSize, ...]:
    """Return the catalogue, with what is known of a region (else that of the settings). Asks nobody."""
    found = skus.known(region)
    return catalogue() if found is None else _laid_over(_Same(found))


class _Same:
    """A region as the key of a cache: the same answer is laid over once."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._key = (region.name, region.day, region.subscription, tuple(region.skus.values()),
                     tuple(region.quotas.items()))  # fmt: skip

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._key == other._key


@functools.lru_cache(maxsize=4)
def _laid_over(same: _Same) -> tuple[VmSize, ...]:
    region = same.region
    names = {size.name.lower() for size in catalogue()}
    known = [_in_region(size, region) for size in catalogue()]
    return (*known, *(_new(sku, region) for name, sku in region.skus.items() if name not in names))


def _in_region(size: VmSize, region: Region) -> VmSize:
    sku = region.skus.get(size.name.lower())
    if sku is None:
        missing = "" if size.retired else f"not offered in {region.name}"
        return dataclasses.replace(
            size, restriction=missing, origins=_origins(region, "restriction") if missing else ()
        )
    values = _status(sku, region)
    if size.infiniband is None and sku.rdma is not None:
        values["infiniband"] = sku.rdma
    for name in ("vcpus", "ram_gib"):
        if getattr(sku, name) is not None:
            values[name] = getattr(sku, name)
    return dataclasses.replace(size, **values, origins=_origins(region, *values))


def _status(sku: Sku, region: Region) -> dict[str, Any]:
    reason = _REASONS.get(sku.restriction, f"not available in {{}} ({sku.restriction})") if sku.restriction else ""
    return {
        "restriction": reason.format(region.name),
        "zones": sku.zones,
        "quotas": region.quotas.get(sku.family.lower(), ()),
    }


def _origins(region: Region, *fields: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, region.source) for name in fields)


def _new(sku: Sku, region: Region) -> VmSize:
    values: dict[str, Any] = {field.name: _UNKNOWN.get(field.name) for field in dataclasses.fields(VmSize)}
    own = {
        "name": sku.name,
        "series": re.sub(r"^standard|family$", "", sku.family, flags=re.IGNORECASE) or sku.name,
        "gpu_model": _model(gpu_in(sku.name)),
        "gpu_count": Fraction(sku.gpus).limit_denominator(12),
        "vcpus": sku.vcpus,
        "ram_gib": sku.ram_gib,
        "infiniband": sku.rdma,
        **_status(sku, region),
    }
    notes = "Arm host" if sku.arm_host else "From Azure's list only; not in the catalog."
    return VmSize(**{**values, **own, "notes": notes, "origins": _origins(region, *own)})


def _model(word: str) -> str:
    """Return maker and model; Azure's names hold the model's word alone."""
    return word and f"{'AMD' if word.startswith('MI') else 'NVIDIA'} {word}"


#: What is "" or empty rather than None where nobody says it.
_UNKNOWN: dict[str, Any] = {
    **dict.fromkeys(
        ("nvlink_detail", "fabric", "local_nvme", "status", "azure_successor", "azure_successor_source", "source"), ""
    ),
    "quotas": (), "zones": (), "origins": (), "restriction": "",
}  # fmt: skip
