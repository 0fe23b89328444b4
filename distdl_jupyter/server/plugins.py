"""What there is to choose from: backends, kinds of clusters, GPU sizes of Azure; and advice on a choice."""

from __future__ import annotations

import dataclasses

from distdl_jupyter.advice import Request, advise
from distdl_jupyter.azure import VmSize, catalogue, catalogue_date, find, prices, successor_of
from distdl_jupyter.core import gpus, registry
from distdl_jupyter.core.machine import cores
from distdl_jupyter.form.history import past_jobs
from distdl_jupyter.server.base import Handler, answers, reads
from distdl_jupyter.server.schema import (
    AdviceList,
    AdviceRequest,
    PluginList,
    VmSizeList,
    VmSizeRow,
    VmSizesQuery,
)
from distdl_jupyter.views import plugins


class Plugins(Handler):
    """Backends and kinds of clusters."""

    @answers(PluginList)
    async def get(self) -> PluginList:
        """List the plug-ins with their options, and why some cannot be used."""
        return await self.run_in_thread(_plugins)


def _plugins() -> PluginList:
    return PluginList(
        backends=tuple(plugins.plugin_view("backends", name) for name in registry.names("backends")),
        clusters=tuple(plugins.plugin_view("clusters", name) for name in registry.names("clusters")),
    )


class VmSizes(Handler):
    """Azure's GPU sizes."""

    @answers(VmSizeList, query=VmSizesQuery)
    async def get(self, query: VmSizesQuery) -> VmSizeList:
        """List the VM sizes of the catalogue."""
        return await self.run_in_thread(_sizes, query)


def _sizes(query: VmSizesQuery) -> VmSizeList:
    words = query.q.lower().split()
    chosen = [
        size
        for size in catalogue()
        if (query.retired or not size.retired)
        and (not query.series or size.series.lower() == query.series.lower())
        and (query.min_gpus is None or size.gpu_count >= query.min_gpus)
        and all(word in f"{size.name} {size.series} {size.gpu_model}".lower() for word in words)
    ]
    return VmSizeList(tuple(_size(size) for size in chosen), str(catalogue_date()))


def _size(size: VmSize) -> VmSizeRow:
    same = [field.name for field in dataclasses.fields(VmSizeRow) if field.name not in _OWN]
    later, price = successor_of(size), prices.cached(size.name)
    return VmSizeRow(
        **{name: getattr(size, name) for name in same},
        gpu_count=float(size.gpu_count),
        per_node=size.whole_gpus,
        fabric=size.fabric_text,
        retirement_date=str(size.retirement_date or ""),
        successor=later.size.name if later else "",
        successor_reason=later.reason if later else "",
        price_per_hour=price.per_hour if price else None,
        currency=price.currency if price else "",
        price_source=price.source if price else "",
    )


_OWN = {
    "gpu_count", "per_node", "fabric", "retirement_date", "successor", "successor_reason", "price_per_hour", "currency",
    "price_source",
}  # fmt: skip


class Advise(Handler):
    """Advice on what is about to be submitted."""

    @answers(AdviceList, body=AdviceRequest)
    @reads
    async def post(self, body: AdviceRequest) -> AdviceList:
        """Return advice on a job before it is submitted."""
        return await self.run_in_thread(_advice, body)


def _advice(asked: AdviceRequest) -> AdviceList:
    request = Request(
        node_count=asked.node_count,
        process_count_per_node=asked.process_count_per_node,
        distributed_backend=asked.distributed_backend,
        compute_target=asked.compute_target,
        vm_size=find(asked.vm_size) if asked.vm_size else None,
        use_gpu=asked.use_gpu,
        name=asked.name,
        code=asked.code,
        batch_size=asked.batch_size or None,
        learning_rate=asked.learning_rate or None,
        cores=cores(),
        gpus=len(gpus.visible()),
    )
    found = advise(request, catalogue(), past_jobs())
    return AdviceList(tuple(found))
