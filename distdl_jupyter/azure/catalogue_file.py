"""The GPU sizes of Azure's virtual machines, read from ``vm_sizes.csv`` beside this file.

Every row carries the page and the commit it was read from; a cell that no page stated is empty there and ``None``
here, and stays unknown in whatever is derived from it. There are no prices. Nothing here asks Azure.
"""

from __future__ import annotations

import csv
import functools
from datetime import date
from fractions import Fraction
from importlib import resources

from distdl_jupyter.azure.vm_size import PREFIX, VmSize


@functools.cache
def catalogue() -> tuple[VmSize, ...]:
    """Return all sizes, retired ones included, series by series."""
    text = resources.files(__package__).joinpath("vm_sizes.csv").read_text(encoding="utf-8")
    return tuple(_size(row) for row in csv.DictReader(text.splitlines()))


def catalogue_date() -> date:
    """Return the day of the newest page on which a size's availability was read."""
    return max(size.status_date for size in catalogue() if size.status_date)


def _size(row: dict[str, str]) -> VmSize:
    return VmSize(
        name=row["size"].removeprefix(PREFIX),
        series=row["series"],
        gpu_model=row["gpu_model"],
        gpu_count=Fraction(row["gpu_count"]),
        gpu_memory_gib=_int(row["gpu_memory_gib_each"]),
        vcpus=_int(row["vcpus"]),
        ram_gib=_int(row["ram_gib"]),
        nvlink=_stated(row["nvlink"]),
        nvlink_detail=row["nvlink"],
        infiniband=_stated(row["rdma_infiniband"]),
        fabric=row["ib_fabric"],
        infiniband_gbps_per_gpu=_int(row["ib_gbps_per_gpu"]),
        infiniband_gbps_per_vm=_int(row["ib_gbps_per_vm"]),
        ethernet_gbps=None if not row["network_mbps"] else int(row["network_mbps"]) / 1000,
        temp_disk_gib=_int(row["local_temp_disk_gib"]),
        local_nvme=row["local_nvme"],
        local_nvme_encrypted=_stated(row["local_nvme_encrypted"]),
        status=row["status"],
        status_date=_date(row["status_date"]),
        retirement_date=_date(row["retirement_date"]),
        azure_successor=row["azure_successor"].removeprefix(PREFIX),
        azure_successor_source=row["azure_successor_source"],
        source=row["source"],
        notes=row["notes"],
    )


def _int(cell: str) -> int | None:
    return int(cell) if cell else None


def _date(cell: str) -> date | None:
    return date.fromisoformat(cell) if cell else None


def _stated(cell: str) -> bool | None:
    return None if not cell else not cell.startswith("no")
