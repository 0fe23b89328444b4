"""The catalogue of Azure's GPU VM sizes, with successors of retired sizes.

The catalogue is ``vm_sizes.csv``. Each row names the pages and commits that are its source; a value without a source is
empty in the file and ``None`` in ``VmSize``. Only ``vm_sizes(ask_prices=True)`` sends requests.

The successor of a retired size is the size in Azure's migration guide (n-series-migration.md, ncv3-retirement.md), if
it has at least as many GPUs and as much memory per GPU. Otherwise it is the nearest available size with NVLink and
NVIDIA GPUs on an x86 host that meets these conditions.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from importlib import resources
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure import prices
from distdl_jupyter.azure.prices import SIZE_PREFIX
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.humanize import TIMES
from distdl_jupyter.core.options import describe_unknown

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class VmSize:
    """One size, with the columns of the catalogue; ``None`` or ``""`` means unknown.

    ``gpu_count`` is exact, for example ``Fraction(1, 6)`` for a share of a GPU. ``gpu_memory_gib`` is per GPU or share.
    Rates are in Gb/s, in one direction.
    """

    name: str
    series: str
    #: The short name (``A100``, ``T4``, ``RTX PRO 6000``) and the full name of the GPU model.
    gpu: str
    gpu_model: str
    gpu_count: Fraction
    gpu_memory_gib: int | None
    vcpus: int | None
    ram_gib: int | None
    nvlink: bool | None
    infiniband: bool | None
    fabric: str
    infiniband_gbps_per_gpu: int | None
    infiniband_gbps_per_vm: int | None
    ethernet_gbps: float | None
    temp_disk_gib: int | None
    local_nvme: str
    local_nvme_encrypted: bool | None
    #: "retired", "no retirement listed", "GA" or "".
    status: str
    status_date: date | None
    retirement_date: date | None
    #: The size that replaces a retired one, the reason, and the page of Azure's migration guide ("": not from there).
    successor: str
    successor_reason: str
    successor_source: str
    source: str
    notes: str

    @property
    def size(self) -> str:
        """The name in Azure's APIs: ``Standard_NC96ads_A100_v4``."""
        return SIZE_PREFIX + self.name

    @property
    def whole_gpus(self) -> int:
        """The number of ranks that can have a GPU; a share of a GPU counts as one."""
        return max(1, int(self.gpu_count))

    @property
    def is_retired(self) -> bool:
        """Whether the size is no longer available in public regions."""
        return self.status == "retired"

    @property
    def is_nvidia(self) -> bool:
        """Whether its GPUs are NVIDIA GPUs, which run CUDA and NCCL."""
        return self.gpu_model.startswith("NVIDIA")

    @property
    def has_arm_host(self) -> bool:
        """Whether its processor is an Arm processor, which cannot run x86 packages."""
        return self.notes.startswith("Arm host")

    @property
    def gpus_text(self) -> str:
        """Count and model: ``4 × A100``."""
        return f"{self.gpu_count} {TIMES} {self.gpu}"

    @property
    def memory_text(self) -> str:
        """The memory of each GPU: ``80 GB``, or ``not stated``."""
        return "not stated" if self.gpu_memory_gib is None else f"{self.gpu_memory_gib} GB"

    @property
    def fabric_text(self) -> str:
        """The generation and the rate of InfiniBand, as far as known: ``HDR 8 × 200 Gb/s``, ``FDR``."""
        if not self.infiniband:
            return ""
        match = re.search(r"\((\w+)\)", self.fabric)
        generation = match.group(1) if match else self.fabric.split(" CX")[0]
        per_gpu, per_vm = self.infiniband_gbps_per_gpu, self.infiniband_gbps_per_vm
        count = f"{per_vm // per_gpu} {TIMES} {per_gpu}" if per_gpu and per_vm else per_vm
        return " ".join(filter(None, [generation.replace("InfiniBand", ""), f"{count} Gb/s" if count else ""]))

    @property
    def ethernet_text(self) -> str:
        """The Ethernet rate: ``80 Gb/s``, or "" if it is unknown."""
        return "" if self.ethernet_gbps is None else f"{self.ethernet_gbps:g} Gb/s"

    @property
    def sources(self) -> tuple[str, ...]:
        """The pages that are the source of this row."""
        return tuple(part.strip() for part in self.source.split("; ") if part.strip())


#: For each type of column, the parser of its cells and its type in pandas.
_COLUMN_TYPES: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "str": (str, "object"),
    "Fraction": (Fraction, "float"),
    "int | None": (lambda cell: int(cell) if cell else None, "Int64"),
    "float | None": (lambda cell: float(cell) if cell else None, "float"),
    "bool | None": (lambda cell: not cell.startswith("no") if cell else None, "boolean"),
    "date | None": (lambda cell: date.fromisoformat(cell) if cell else None, "object"),
}


@functools.cache
def load_catalogue() -> tuple[VmSize, ...]:
    """Return all sizes, including retired ones, grouped by series."""
    text = resources.files(__package__).joinpath("vm_sizes.csv").read_text(encoding="utf-8")
    columns = {field.name: _COLUMN_TYPES[str(field.type)][0] for field in dataclasses.fields(VmSize)}
    rows = csv.DictReader(text.splitlines())
    return tuple(VmSize(**{name: parse(row[name]) for name, parse in columns.items()}) for row in rows)


def get_catalogue_date() -> date:
    """Return the newest ``status_date`` in the catalogue."""
    return max(size.status_date for size in load_catalogue() if size.status_date)


def find_size(name: str) -> VmSize:
    """Return the size with this name in any case, with or without ``Standard_``. Raises InvalidSpec."""
    names = {_normalize(size.name): size for size in load_catalogue()}
    if size := names.get(_normalize(name)):
        return size
    raise InvalidSpec(
        describe_unknown(name, [size.name for size in load_catalogue()], "GPU size"),
        code="vm-size-unknown",
        field="vm_size",
        hint="To list all sizes, call distdl_jupyter.vm_sizes().",
    )


def _normalize(text: str) -> str:
    return re.sub(r"[\s\-]+", "_", text.strip().lower()).removeprefix(SIZE_PREFIX.lower())


def select_sizes(
    candidates: Iterable[VmSize],
    *,
    gpu: str | None = None,
    min_gpu_memory_gib: float | None = None,
    min_gpus: float | None = None,
    infiniband: bool | None = None,
    retired: bool = False,
) -> list[VmSize]:
    """Return the sizes that meet all conditions; an unknown value meets none.

    ``gpu`` is the short name of a GPU model ("A10" does not match "A100") or a part of its full name, in any case.
    ``retired=True`` adds retired sizes.
    """
    model = (gpu or "").strip().lower()
    is_short = any(size.gpu.lower() == model for size in load_catalogue())
    return [
        size
        for size in candidates
        if (retired or not size.is_retired)
        and (size.gpu.lower() == model if is_short else model in f"{size.gpu} {size.gpu_model}".lower())
        and (min_gpu_memory_gib is None or (size.gpu_memory_gib or 0) >= min_gpu_memory_gib)
        and (min_gpus is None or size.gpu_count >= min_gpus)
        and (infiniband is None or size.infiniband is infiniband)
    ]


def vm_sizes(
    gpu: str | None = None,
    min_gpu_memory_gib: float | None = None,
    *,
    infiniband: bool | None = None,
    min_gpus: float | None = None,
    retired: bool = False,
    region: str = "",
    ask_prices: bool = False,
) -> pd.DataFrame:
    """Return the catalogue of Azure GPU sizes as a DataFrame with one row per size; unknown values are missing.

    Examples: ``vm_sizes("A100")``, ``vm_sizes(min_gpu_memory_gib=80, infiniband=True)``. ``retired=True`` adds retired
    sizes (column ``retirement_date``). ``gpu_count`` is a number, for example 0.5 for half a GPU.

    Prices are those of ``region`` (default: the region of ``%dist_config azure``). ``ask_prices=True`` requests them
    from the Retail Prices API, without a sign-in, and caches them. ``attrs`` contains ``catalogue_date``.
    Raises InvalidSpec, and AzureRefused if a request fails.
    """
    import pandas as pd

    if ask_prices:
        prices.fetch(region=region)
    rows = select_sizes(
        load_catalogue(), gpu=gpu, min_gpu_memory_gib=min_gpu_memory_gib, min_gpus=min_gpus, infiniband=infiniband,
        retired=retired,
    )  # fmt: skip
    types = {field.name: _COLUMN_TYPES[str(field.type)][1] for field in dataclasses.fields(VmSize)}
    table = pd.DataFrame([[getattr(size, name) for name in types] for size in rows], columns=pd.Index(list(types)))
    table = table.astype(types)
    costs = [prices.find_cached(size.name, region) or prices.Price(float("nan"), "", "") for size in rows]
    for column, name in (("price_per_hour", "per_hour"), ("currency", "currency"), ("price_source", "source")):
        table[column] = [getattr(price, name) for price in costs]
    table.attrs["catalogue_date"] = str(get_catalogue_date())
    return table.set_index("name")
