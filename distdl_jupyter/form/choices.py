"""The choices in the launch form: sizes, backends and clusters.

Unavailable choices are listed with the reason. No request is sent: prices come from the cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import platform
import sys
from collections.abc import Sequence

from distdl_jupyter import azure
from distdl_jupyter.azure import prices
from distdl_jupyter.clusters import cluster_configs, status
from distdl_jupyter.clusters.base import Provisioner
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.humanize import money
from distdl_jupyter.core.options import ABOUT, MOST_RESTARTS
from distdl_jupyter.form.arguments import option_field
from distdl_jupyter.form.schema import BackendChoice, ClusterChoice, FormChoices, OptionField, OptionKind, VmSizeChoice
from distdl_jupyter.form.values import other_options
from distdl_jupyter.views.wire import from_fields

_SYSTEMS = {"darwin": "macOS", "linux": "Linux"}


def choices() -> FormChoices:
    """Return all current choices."""
    return FormChoices(
        sizes=vm_sizes(),
        catalogue_date=str(azure.catalogue_date()),
        backends=backends(),
        clusters=clusters(),
        most_restarts=MOST_RESTARTS,
        options=tuple(map(_option_field, other_options())),
    )


def _option_field(name: str) -> OptionField:
    about = ABOUT[name]
    kind: OptionKind = "flag" if about.switch else "number" if about.value_type in (int, float) else "text"
    return OptionField(name, about.label, about.help, kind)


def backends() -> tuple[BackendChoice, ...]:
    """Return the backends to choose from, single-process backends last, each with the reason if it cannot be used."""
    plugins = sorted(registry.backends(), key=lambda plugin: not plugin.meets)
    labels = [
        label for plugin in plugins for label in ([plugin.name] if plugin.name in plugin.labels else plugin.labels)
    ]
    return tuple(map(_backend_choice, labels))


def _backend_choice(label: str) -> BackendChoice:
    plugin, options = registry.backend(label, {})
    preset = plugin.labels.get(label, {})
    return BackendChoice(
        label=label,
        backend=plugin.name,
        reason=plugin.unavailable(options),
        detail=plugin.detail(options) or f"Python {platform.python_version()}",
        options=tuple(option_field(field) for field in dataclasses.fields(plugin.Options) if field.name not in preset),
    )


def likely_backend(offered: Sequence[BackendChoice], preferred: str, process_count: int) -> str:
    """Return the label to preselect: that of the backend used by the code, else the default for the process count."""
    matching = [choice for choice in offered if choice.backend == preferred]
    if matching:
        return next((choice for choice in matching if not choice.reason), matching[0]).label
    has_default = any(choice.label == registry.DEFAULT and not choice.reason for choice in offered)
    return registry.DEFAULT if process_count > 1 and has_default else registry.SINGLE


def clusters() -> tuple[ClusterChoice, ...]:
    """Return the clusters, user-defined ones last, each with the reason why it cannot be used."""
    configs = cluster_configs.kinds()
    with contextlib.suppress(DistDLError):
        configs += cluster_configs.named()
    return tuple(map(_cluster_choice, configs))


def _cluster_choice(target: cluster_configs.ClusterConfig) -> ClusterChoice:
    is_local = target.kind == "local"
    system = _SYSTEMS.get(sys.platform, "") if is_local and not target.named else ""
    choice = ClusterChoice(target.name, system=system, local=is_local, named=target.named)
    try:
        plugin, options = status.plugin(target)
        return dataclasses.replace(
            choice,
            title=plugin.title if not system else "",
            detail=plugin.detail(options),
            reason=plugin.unavailable(options),
            is_remote=plugin.is_remote,
            rents=isinstance(plugin, Provisioner),
        )
    except DistDLError as error:
        return dataclasses.replace(choice, reason=str(error))


# VM sizes ---------------------------------------------------------------------------------------------


def vm_sizes() -> tuple[VmSizeChoice, ...]:
    """Return one row per size by ascending GPU memory; fractional, incompletely known and retired sizes come last."""
    return tuple(dataclasses.replace(row, price=_cached_price(row.name)) for row in _size_rows())


@functools.cache
def _size_rows() -> tuple[VmSizeChoice, ...]:
    return tuple(_size_row(size) for size in sorted(azure.catalogue(), key=_sort_key))


def _sort_key(size: azure.VmSize) -> tuple[bool, bool, bool, float, int, str]:
    memory = float(size.gpu_count * (size.gpu_memory_gib or 0))
    network_unknown = size.infiniband is None and size.ethernet_gbps is None
    return size.retired, size.gpu_count < 1, network_unknown, memory, size.vcpus or 0, size.name


def _size_row(size: azure.VmSize) -> VmSizeChoice:
    return from_fields(
        VmSizeChoice,
        size,
        gpus=size.gpus_text,
        memory=size.memory_text,
        memory_gib=size.gpu_memory_gib,
        network={True: "InfiniBand", False: "Ethernet", None: "not stated"}[size.infiniband],
        rate=size.fabric_text if size.infiniband else size.ethernet_text,
        retired=str(size.retirement_date) if size.retired else "",
        search_text=" ".join([size.name, size.series, size.gpu_model, size.gpu]).lower(),
        price="",
    )


def _cached_price(name: str) -> str:
    """Return ``3.50 USD/h (source)``, "" if none is cached."""
    price = prices.cached(name)
    return f"{money(price.per_hour, price.currency)}/h ({price.source})" if price else ""
