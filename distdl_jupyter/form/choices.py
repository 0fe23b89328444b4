"""The choices in the launch form: sizes, backends and clusters; and the selected cluster: its nodes, problems and cost.

Unavailable choices are listed with the reason. Their prices come from the cache. Only remote clusters have nodes here,
because the form's checks cover this machine. The price of a cluster is set by the user, or requested from the Retail
Prices API for a billed cluster in the region of ``%dist_config azure``. Without a region, no request is sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import platform
import sys
from collections.abc import Sequence
from typing import NamedTuple

from distdl_jupyter import azure
from distdl_jupyter.azure import prices
from distdl_jupyter.clusters import cluster_configs, status
from distdl_jupyter.clusters.base import Cluster, Provisioner
from distdl_jupyter.clusters.cluster_configs import ClusterConfig
from distdl_jupyter.clusters.handle import merge_hosts
from distdl_jupyter.clusters.status import CachedStatus
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.humanize import money
from distdl_jupyter.core.options import MAX_RESTARTS, OPTIONS
from distdl_jupyter.form.arguments import option_field
from distdl_jupyter.form.schema import (
    BackendChoice,
    ClusterChoice,
    CostNow,
    FormChoices,
    FormValues,
    OptionField,
    OptionKind,
    VmSizeChoice,
)
from distdl_jupyter.form.values import other_options
from distdl_jupyter.views.card import hourly_cost_text
from distdl_jupyter.views.wire import from_fields

_SYSTEMS = {"darwin": "macOS", "linux": "Linux"}


def all_choices() -> FormChoices:
    """Return all current choices."""
    return FormChoices(
        sizes=vm_sizes(),
        catalogue_date=str(azure.catalogue_date()),
        backends=backends(),
        clusters=clusters(),
        max_restarts_allowed=MAX_RESTARTS,
        options=tuple(map(_option_field, other_options())),
    )


def _option_field(name: str) -> OptionField:
    about = OPTIONS[name]
    kind: OptionKind = "flag" if about.is_switch else "number" if about.value_type in (int, float) else "text"
    return OptionField(name, about.label, about.help, kind)


def backends() -> tuple[BackendChoice, ...]:
    """Return the backends to choose from, single-process backends last, each with the reason if it cannot be used."""
    plugins = sorted(registry.load_backends(), key=lambda plugin: not plugin.communicates)
    labels = [
        label for plugin in plugins for label in ([plugin.name] if plugin.name in plugin.labels else plugin.labels)
    ]
    return tuple(map(_backend_choice, labels))


def _backend_choice(label: str) -> BackendChoice:
    plugin, options = registry.load_backend(label, {})
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
    has_default = any(choice.label == registry.DEFAULT_BACKEND and not choice.reason for choice in offered)
    return registry.DEFAULT_BACKEND if process_count > 1 and has_default else registry.SINGLE_PROCESS_BACKEND


def clusters() -> tuple[ClusterChoice, ...]:
    """Return the clusters, user-defined ones last, each with the reason why it cannot be used."""
    configs = cluster_configs.list_defaults()
    with contextlib.suppress(DistDLError):
        configs += cluster_configs.list_named()
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


# the selected cluster ---------------------------------------------------------------------------------

#: Levels of checks that need a remedy, the most severe first.
_LEVELS = ("error", "warning")


def find_cluster(name: str) -> tuple[ClusterConfig | None, Cluster | None]:
    """Return a cluster and its class; None and None if it is unknown or cannot be loaded."""
    with contextlib.suppress(DistDLError):
        target = cluster_configs.find(name)
        return target, registry.get("clusters", target.kind)
    return None, None


def poll_cluster(compute_target: str, backend: str, timeout: float, *, fresh: bool = False) -> CachedStatus | None:
    """Return the current state of a remote cluster, None for others; polling continues in the background."""
    target, plugin = find_cluster(compute_target)
    if target is not None and plugin is not None and plugin.is_remote:
        with contextlib.suppress(DistDLError):
            return status.FORMS.get_cached(target, status.needs(backend), timeout, fresh=fresh)
    return None


def only_problems(status: CachedStatus) -> CachedStatus:
    """Return the state with only those checks that need a remedy, the most severe first."""
    if status.checks is None:
        return status
    checks = [check for check in merge_hosts(status.checks) if check.level in _LEVELS]
    return dataclasses.replace(status, checks=tuple(sorted(checks, key=lambda check: _LEVELS.index(check.level))))


def min_gpus_per_node(status: CachedStatus | None) -> int:
    """Return the number of GPUs that every running node has, 0 if unknown."""
    nodes = [node for node in status.status.nodes if node.state == "up"] if status and status.status else []
    return min((node.gpus for node in nodes), default=0)


# cost -------------------------------------------------------------------------------------------------

#: The problem of an unknown price of Spot nodes.
NO_SPOT_PRICE = "Spot prices vary. Enter the price yourself."


class RentedNodes(NamedTuple):
    """The nodes that a cluster rents; ``size`` is "" if unknown, and ``interruptible`` nodes may be preempted."""

    bills: bool = False
    size: str = ""
    interruptible: bool = False


def rented_nodes(compute_target: str, vm_size: str) -> RentedNodes:
    """Return the known facts about the nodes of a cluster without a request to it."""
    target, plugin = find_cluster(compute_target)
    is_provisioner = isinstance(plugin, Provisioner)
    if target is None or not is_provisioner:
        return RentedNodes()
    options = target.options
    is_spot = str(options.get("job_tier") or "").lower() == "spot"
    return RentedNodes(bills=True, size=vm_size or str(options.get("vm_size") or ""), interruptible=is_spot)


def current_cost(values: FormValues) -> CostNow | None:
    """Return the current cost of all nodes, None if they are free. A price typed by the user takes precedence."""
    nodes, node_count = rented_nodes(values.compute_target, values.vm_size), values.node_count
    if not nodes.bills and not values.price_per_hour.strip():
        return None
    price, problem, is_wrong = None, "", False
    if values.price_per_hour.strip():
        try:
            price = prices.parse_price(values.price_per_hour)
        except InvalidSpec as error:
            problem, is_wrong = str(error), True
    elif nodes.interruptible:
        problem = NO_SPOT_PRICE
    elif not nodes.size:
        problem = "The price is unknown because no VM size is selected."
    else:
        price, problem = prices.lookup(nodes.size)
    if price is None:
        return CostNow(bills=nodes.bills, nodes=node_count, problem=problem, wrong=is_wrong)
    return CostNow(
        bills=nodes.bills,
        nodes=node_count,
        per_hour=money(price.per_hour * node_count, price.currency),
        text=hourly_cost_text(price.per_hour, price.currency, node_count),
        source=price.source,
        problem=problem,
    )
