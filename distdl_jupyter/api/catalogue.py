"""What users choose from over HTTP: backends, kinds of clusters, GPU sizes of Azure; and advice on a choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from distdl_jupyter.api.call import get, post
from distdl_jupyter.azure import catalogue, catalogue_date, find
from distdl_jupyter.core import gpus, registry
from distdl_jupyter.form import choices
from distdl_jupyter.form.schema import VmSizeChoice
from distdl_jupyter.form.state import past_jobs
from distdl_jupyter.node.headroom import cores
from distdl_jupyter.preflight import Advice, Request, advise
from distdl_jupyter.views.plugins import Plugin, plugin_view

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
class VmSizeList:
    """Sizes, series by series, and the day on which their availability was read."""

    sizes: tuple[VmSizeChoice, ...]
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
    gpus_of = {size.name: size.gpu_count for size in catalogue()}
    chosen = (
        row
        for row in choices.vm_sizes()
        if (retired or not row.retired)
        and (not series or row.series.lower() == series.lower())
        and (min_gpus is None or gpus_of[row.name] >= min_gpus)
        and all(word in row.words for word in q.lower().split())
    )
    return VmSizeList(tuple(chosen), str(catalogue_date()))


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
