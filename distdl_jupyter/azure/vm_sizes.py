"""The GPU sizes of Azure's virtual machines, read from ``vm_sizes.csv`` beside this file.

Every row carries the page and the commit it was read from; a cell that no page stated is empty there and ``None``
here, and stays unknown in whatever is derived from it. There are no prices. Nothing here asks Azure.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import functools
import re
from datetime import date
from fractions import Fraction
from importlib import resources
from typing import TYPE_CHECKING

from distdl_jupyter.azure.vm_size import PREFIX, VmSize
from distdl_jupyter.core.errors import InvalidSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd


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


def find(name: str) -> VmSize:
    """Return the size of this name, written with or without ``Standard_``, in any case.

    A series' word ("NCv3", "NCads_H100_v5") means its size with the most GPUs, the fastest network and the most
    memory, because one large machine comes before several. Raises InvalidSpec that names the nearest sizes.
    """
    wanted = _key(name)
    for size in catalogue():
        if _key(size.name) == wanted:
            return size
    if members := [size for size in catalogue() if wanted and wanted in _series_keys(size.series)]:
        return max(members, key=_largest)
    raise InvalidSpec(
        f"{name!r} is no GPU size of the catalogue. {_nearest(wanted)}",
        field="vm_size",
        hint="distdl_jupyter.vm_sizes() lists them all.",
    )


def _key(text: str) -> str:
    return re.sub(r"[\s\-]+", "_", text.strip().lower()).removeprefix(PREFIX.lower())


def _series_keys(series: str) -> set[str]:
    """Return the words for a series: "NC (v1)" is "nc" and "ncv1", "NCasT4_v3" is also "ncast4v3"."""
    word = series.split(" (", maxsplit=1)[0]
    words = {word, f"{word}-series"} | ({f"{word}v1"} if "(v1)" in series else set())
    keys = {_key(w) for w in words}
    return keys | {key.replace("_", "") for key in keys}


def _largest(size: VmSize) -> tuple[Fraction, bool, int]:
    return size.gpu_count, bool(size.infiniband), size.ram_gib or 0


def _nearest(wanted: str) -> str:
    names = {_key(size.name): size.name for size in catalogue()}
    names |= {key: size.series.split(" (")[0] for size in catalogue() for key in _series_keys(size.series)}
    near = dict.fromkeys(names[key] for key in difflib.get_close_matches(wanted, names, n=3, cutoff=0.5))
    if not near:
        return f"The newest are {', '.join(size.name for size in _newest())}."
    return f"Nearest: {', '.join(near)}."


def _newest() -> list[VmSize]:
    return [size for size in catalogue() if size.infiniband and not size.retired][-3:]


def select(
    sizes: Iterable[VmSize],
    *,
    gpu: str | None = None,
    min_gpu_memory_gib: float | None = None,
    min_gpus: float | None = None,
    infiniband: bool | None = None,
    retired: bool = False,
) -> list[VmSize]:
    """Return the sizes that pass every given condition.

    ``gpu`` is a model's short word ("A10" is not "A100") or else a part of its full name, in any case; a size whose
    value is unknown passes no condition on it; ``retired=True`` adds the retired ones.
    """
    return [
        size
        for size in sizes
        if (retired or not size.retired)
        and (gpu is None or _is_gpu(size, gpu.strip().lower()))
        and (min_gpu_memory_gib is None or (size.gpu_memory_gib or 0) >= min_gpu_memory_gib)
        and (min_gpus is None or size.gpu_count >= min_gpus)
        and (infiniband is None or size.infiniband is infiniband)
    ]


def _is_gpu(size: VmSize, word: str) -> bool:
    if word in _gpu_words():
        return size.gpu.lower() == word
    return word in f"{size.gpu} {size.gpu_model}".lower()


@functools.cache
def _gpu_words() -> frozenset[str]:
    return frozenset(size.gpu.lower() for size in catalogue())


def vm_sizes(
    gpu: str | None = None,
    min_gpu_memory_gib: float | None = None,
    *,
    infiniband: bool | None = None,
    min_gpus: float | None = None,
    retired: bool = False,
) -> pd.DataFrame:
    """Return the catalogue as a table, one row a size, unknown values missing.

    ``vm_sizes("A100")``, ``vm_sizes(min_gpu_memory_gib=80, infiniband=True)``; ``retired=True`` adds the retired sizes
    (column ``retirement_date``). ``gpu_count`` is a number here, e.g. 0.5 for half a GPU.
    """
    import pandas as pd

    sizes = select(
        catalogue(), gpu=gpu, min_gpu_memory_gib=min_gpu_memory_gib, min_gpus=min_gpus, infiniband=infiniband,
        retired=retired,
    )  # fmt: skip
    names = [field.name for field in dataclasses.fields(VmSize)]
    rows = [[getattr(size, name) for name in names] for size in sizes]
    table = pd.DataFrame(rows, columns=pd.Index(names))
    table.insert(2, "gpu", [size.gpu for size in sizes])
    table["gpu_count"] = table["gpu_count"].astype(float)
    for name in _WHOLE_NUMBERS:
        table[name] = table[name].astype("Int64")
    for name in _YES_OR_NO:
        table[name] = table[name].astype("boolean")
    return table.set_index("name")


_WHOLE_NUMBERS = (
    "gpu_memory_gib", "vcpus", "ram_gib", "infiniband_gbps_per_gpu", "infiniband_gbps_per_vm", "temp_disk_gib",
)  # fmt: skip
_YES_OR_NO = ("nvlink", "infiniband", "local_nvme_encrypted")
