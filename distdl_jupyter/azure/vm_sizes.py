"""Sizes found by name, chosen by conditions, and listed as a table: the catalogue with what Azure said since.

Nothing here asks Azure; ``skus.refresh`` and ``prices.ask`` do, and what they were told is kept.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from fractions import Fraction
from typing import TYPE_CHECKING

from distdl_jupyter.azure import prices, skus
from distdl_jupyter.azure.catalogue_file import catalogue, catalogue_date
from distdl_jupyter.azure.merged import sizes
from distdl_jupyter.azure.vm_size import PREFIX, VmSize
from distdl_jupyter.core import link
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.link import Link

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd


def find(name: str) -> VmSize:
    """Return the size of this name, written with or without ``Standard_``, in any case.

    A series' word ("NCv3", "NCads_H100_v5") means its size with the most GPUs, the fastest network and the most
    memory, because one large machine comes before several. Raises InvalidSpec that names the nearest sizes.
    """
    wanted = _key(name)
    for size in sizes():
        if _key(size.name) == wanted:
            return size
    if members := [size for size in sizes() if wanted and wanted in _series_keys(size.series)]:
        return max(members, key=_largest)
    raise InvalidSpec(
        f"Unknown GPU size {name!r}. {_nearest(wanted)}",
        code="vm-size-unknown",
        field="vm_size",
        hint="To list all sizes, call distdl_jupyter.vm_sizes().",
    )


def link_of(text: str) -> Link:
    """Return the link that ``1gbit,0.2ms`` or ``NC64as_T4_v3,0.2ms`` means.

    That of a size is its Ethernet, which Gloo and MPI over TCP go by; where only InfiniBand is stated, that. No page
    states a latency: without one it is 0, so what more a message takes is what runs have measured. Raises InvalidSpec
    for a size that is unknown, or of which no rate is stated.
    """
    name, bits, latency = link.words(text)
    if bits is not None:
        return Link(bits, latency or 0.0, "set by you")
    size = find(name)
    by_infiniband = size.ethernet_gbps is None
    gbps = size.infiniband_gbps_per_vm if by_infiniband else size.ethernet_gbps
    if not gbps:
        raise InvalidSpec(
            f"The network rate of {size.name} is not documented.",
            code="vm-size-without-network-rate",
            field="rehearse",
            hint="Set the rate, for example 32gbit.",
        )
    column = "infiniband_gbps_per_vm" if by_infiniband else "ethernet_gbps"
    told = next((who for field, who in size.origins if field == column), size.source)
    said = f"{'InfiniBand' if by_infiniband else 'Ethernet'} rate: {told}"
    said += "; latency: " + ("set by you" if latency is not None else "not documented")
    return Link(1e9 * gbps, latency or 0.0, said, size.name)


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
    names = {_key(size.name): size.name for size in sizes()}
    names |= {key: size.series.split(" (")[0] for size in sizes() for key in _series_keys(size.series)}
    near = dict.fromkeys(names[key] for key in difflib.get_close_matches(wanted, names, n=3, cutoff=0.5))
    if not near:
        return f"The newest sizes are {', '.join(size.name for size in _newest())}."
    return f"Did you mean {' or '.join(near)}?"


def _newest() -> list[VmSize]:
    return [size for size in sizes() if size.infiniband and not size.retired][-3:]


def select(
    among: Iterable[VmSize],
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
        for size in among
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
    region: str = "",
    refresh: bool = False,
    ask_prices: bool = False,
) -> pd.DataFrame:
    """Return the catalogue of Azure GPU sizes as a DataFrame with one row per size; unknown values are missing.

    Examples: ``vm_sizes("A100")``, ``vm_sizes(min_gpu_memory_gib=80, infiniband=True)``. ``retired=True`` adds retired
    sizes (column ``retirement_date``). ``gpu_count`` is a number, for example 0.5 for half a GPU.

    For a ``region`` (default: that of ``%dist_config azure``), values reported by Azure replace those of the catalogue
    (column ``told_by_azure`` lists them with their date), and ``restriction`` and ``quota`` are those of the
    subscription. ``refresh=True`` requests them from Azure now and needs a sign-in; ``ask_prices=True`` requests prices
    from the Retail Prices API and needs none. Both responses are cached. ``attrs`` contains ``catalogue_date``.
    Raises InvalidSpec, NotSignedIn, and AzureRefused if a request fails.
    """
    import pandas as pd

    if refresh:
        skus.refresh(region)
    if ask_prices:
        prices.ask(region=region)
    chosen = select(
        sizes(region), gpu=gpu, min_gpu_memory_gib=min_gpu_memory_gib, min_gpus=min_gpus, infiniband=infiniband,
        retired=retired,
    )  # fmt: skip
    names = [field.name for field in dataclasses.fields(VmSize) if field.name not in _NESTED]
    rows = [[getattr(size, name) for name in names] for size in chosen]
    table = pd.DataFrame(rows, columns=pd.Index(names))
    table.insert(2, "gpu", [size.gpu for size in chosen])
    table["gpu_count"] = table["gpu_count"].astype(float)
    for name in _WHOLE_NUMBERS:
        table[name] = table[name].astype("Int64")
    for name in _YES_OR_NO:
        table[name] = table[name].astype("boolean")
    _add_azure_columns(table, chosen, region)
    table.attrs["catalogue_date"] = str(catalogue_date())
    return table.set_index("name")


def _add_azure_columns(table: pd.DataFrame, chosen: list[VmSize], region: str) -> None:
    """Add what Azure said of each size, and its price, as far as they are known."""
    found = [prices.known(size.name, region) for size in chosen]
    table["zones"] = [", ".join(size.zones) for size in chosen]
    table["quota"] = [size.quota.text if size.quota else "" for size in chosen]
    table["told_by_azure"] = ["; ".join(size.origin_texts) for size in chosen]
    table["price_per_hour"] = [price.per_hour if price else float("nan") for price in found]
    table["currency"] = [price.currency if price else "" for price in found]
    table["price_source"] = [price.source if price else "" for price in found]


#: Fields that hold several values; they stand in columns of words.
_NESTED = ("zones", "quotas", "origins")
_WHOLE_NUMBERS = (
    "gpu_memory_gib", "vcpus", "ram_gib", "infiniband_gbps_per_gpu", "infiniband_gbps_per_vm", "temp_disk_gib",
)  # fmt: skip
_YES_OR_NO = ("nvlink", "infiniband", "local_nvme_encrypted")
