"""What users choose from over HTTP: backends, kinds of clusters, GPU sizes of Azure; and advice on a choice."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from distdl_jupyter.api.call import get, post
from distdl_jupyter.azure import VmSize, catalogue, catalogue_date, find, prices, successor_of
from distdl_jupyter.core import gpus, registry
from distdl_jupyter.form.history import past_jobs
from distdl_jupyter.node.headroom import cores
from distdl_jupyter.preflight import Advice, Request, advise
from distdl_jupyter.views.plugins import plugin_view
from distdl_jupyter.views.schema import Plugin

Count = Annotated[int, Meta(ge=1, le=100_000)]


@dataclass(frozen=True, slots=True)
class PluginList:
    """All plug-ins."""

    backends: tuple[Plugin, ...]
    clusters: tuple[Plugin, ...]


@get("/plugins")
def plugins() -> PluginList:
    """List the plug-ins with their options, and why some cannot be used."""
    return PluginList(
        backends=tuple(plugin_view("backends", name) for name in registry.names("backends")),
        clusters=tuple(plugin_view("clusters", name) for name in registry.names("clusters")),
    )


@dataclass(frozen=True, slots=True)
class VmSizeRow:
    """One GPU size of Azure; None and "" mean that no source states it."""

    name: str
    series: str
    gpu: str
    gpu_model: str
    #: A share of a GPU is below 1.
    gpu_count: float
    #: Ranks that can own a GPU of it.
    per_node: int
    gpu_memory_gib: int | None
    vcpus: int | None
    ram_gib: int | None
    nvlink: bool | None
    infiniband: bool | None
    fabric: str
    ethernet_gbps: float | None
    retired: bool
    #: ISO date, "" for none.
    retirement_date: str
    successor: str
    successor_reason: str
    #: Of one node; None and "" where it is not known.
    price_per_hour: float | None
    currency: str
    price_source: str
    notes: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VmSizeList:
    """Sizes, series by series, and the day on which their availability was read."""

    sizes: tuple[VmSizeRow, ...]
    date: str


@get("/vm-sizes")
def vm_sizes(
    *,
    series: Annotated[str, Meta(description="a series, such as NCads_A100_v4")] = "",
    q: Annotated[str, Meta(description="text to find in name, series or GPU")] = "",
    min_gpus: Annotated[float, Meta(ge=0, le=1000, description="minimum number of GPUs")] | None = None,
    retired: Annotated[bool, Meta(description="include sizes that can no longer be rented")] = False,
) -> VmSizeList:
    """List the VM sizes of the catalogue."""
    words = q.lower().split()
    chosen = [
        size
        for size in catalogue()
        if (retired or not size.retired)
        and (not series or size.series.lower() == series.lower())
        and (min_gpus is None or size.gpu_count >= min_gpus)
        and all(word in f"{size.name} {size.series} {size.gpu_model}".lower() for word in words)
    ]
    return VmSizeList(tuple(_row(size) for size in chosen), str(catalogue_date()))


def _row(size: VmSize) -> VmSizeRow:
    successor, price = successor_of(size), prices.cached(size.name)
    changed: dict[str, Any] = {
        "gpu_count": float(size.gpu_count),
        "per_node": size.whole_gpus,
        "fabric": size.fabric_text,
        "retirement_date": str(size.retirement_date or ""),
        "successor": successor.size.name if successor else "",
        "successor_reason": successor.reason if successor else "",
        "price_per_hour": price.per_hour if price else None,
        "currency": price.currency if price else "",
        "price_source": price.source if price else "",
    }
    names = [field.name for field in dataclasses.fields(VmSizeRow)]
    return VmSizeRow(**{name: changed[name] if name in changed else getattr(size, name) for name in names})


@dataclass(frozen=True, slots=True)
class AdviceList:
    """All advice, costliest first."""

    advice: tuple[Advice, ...]


@post("/advice", action="read")
def advice(
    *,
    node_count: Annotated[Count, Meta(description="nodes")] = 1,
    process_count_per_node: Annotated[Count, Meta(description="processes on each node")] = 1,
    distributed_backend: str = "plain",
    compute_target: str = "local",
    vm_size: str = "",
    use_gpu: bool | None = None,
    name: str = "",
    code: str = "",
    batch_size: Annotated[float, Meta(ge=0, description="samples in a batch of one process")] | None = None,
    learning_rate: Annotated[float, Meta(ge=0, description="learning rate of one process")] | None = None,
) -> AdviceList:
    """Return advice on a job before it is submitted."""
    request = Request(
        node_count=node_count,
        process_count_per_node=process_count_per_node,
        distributed_backend=distributed_backend,
        compute_target=compute_target,
        vm_size=find(vm_size) if vm_size else None,
        use_gpu=use_gpu,
        name=name,
        code=code,
        batch_size=batch_size or None,
        learning_rate=learning_rate or None,
        cores=cores(),
        gpus=len(gpus.visible()),
    )
    return AdviceList(tuple(advise(request, catalogue(), past_jobs())))
