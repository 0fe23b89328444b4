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
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.clusters.base import Cluster, Provisioner
from distdl_jupyter.clusters.cluster_configs import CachedStatus, ClusterConfig
from distdl_jupyter.clusters.handle import merge_hosts
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.humanize import money
from distdl_jupyter.core.options import MAX_RESTARTS, OPTIONS
from distdl_jupyter.form.arguments import describe_option
from distdl_jupyter.form.schema import (
    BackendChoice,
    ClusterChoice,
    CurrentCost,
    FormChoices,
    FormValues,
    OptionField,
    OptionKind,
    VmSizeChoice,
)
from distdl_jupyter.form.values import list_other_options
from distdl_jupyter.views.card import format_hourly_cost
from distdl_jupyter.views.wire import from_fields

#: Display names of operating systems, by ``sys.platform``.
_SYSTEMS = {"darwin": "macOS", "linux": "Linux"}


def list_choices() -> FormChoices:
    """Return all current choices."""
    return FormChoices(
        sizes=list_vm_sizes(),
        catalogue_date=str(azure.get_catalogue_date()),
        backends=list_backends(),
        clusters=list_clusters(),
        max_restarts_allowed=MAX_RESTARTS,
        options=tuple(map(_describe_option, list_other_options())),
    )


def _describe_option(name: str) -> OptionField:
    option = OPTIONS[name]
    kind: OptionKind = "flag" if option.is_switch else "number" if option.value_type in (int, float) else "text"
    return OptionField(name, option.label, option.help, kind)


def list_backends() -> tuple[BackendChoice, ...]:
    """Return the available backends, single-process backends last, each with the reason if it cannot be used."""
    plugins = sorted(registry.load_backends(), key=lambda plugin: not plugin.communicates)
    labels = [
        label for plugin in plugins for label in ([plugin.name] if plugin.name in plugin.labels else plugin.labels)
    ]
    return tuple(map(_describe_backend, labels))


def _describe_backend(label: str) -> BackendChoice:
    plugin, options = registry.load_backend(label, {})
    preset = plugin.labels.get(label, {})
    fields = (field for field in dataclasses.fields(plugin.Options) if field.name not in preset)
    return BackendChoice(
        label=label,
        backend=plugin.name,
        reason=plugin.unavailable(options),
        detail=plugin.detail(options) or f"Python {platform.python_version()}",
        options=tuple(map(describe_option, fields)),
    )


def guess_backend(choices: Sequence[BackendChoice], code_backend: str, process_count: int) -> str:
    """Return the label to preselect: for the backend that the code uses, else the default for the process count."""
    matches = [choice for choice in choices if choice.backend == code_backend]
    if matches:
        return next((choice for choice in matches if not choice.reason), matches[0]).label
    has_default = any(choice.label == registry.DEFAULT_BACKEND and not choice.reason for choice in choices)
    return registry.DEFAULT_BACKEND if process_count > 1 and has_default else registry.SINGLE_PROCESS_BACKEND


def list_clusters() -> tuple[ClusterChoice, ...]:
    """Return the clusters, user-defined ones last, each with the reason if it cannot be used."""
    configs = cluster_configs.list_defaults()
    with contextlib.suppress(DistDLError):
        configs += cluster_configs.list_named()
    return tuple(map(_describe_cluster, configs))


def _describe_cluster(config: cluster_configs.ClusterConfig) -> ClusterChoice:
    is_local = config.kind == "local"
    system = _SYSTEMS.get(sys.platform, "") if is_local and not config.named else ""
    choice = ClusterChoice(config.name, system=system, local=is_local, named=config.named)
    try:
        plugin, options = cluster_configs.load_plugin(config)
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


def list_vm_sizes() -> tuple[VmSizeChoice, ...]:
    """Return one row per size by ascending GPU memory. Incompletely known, fractional and retired sizes come last."""
    return tuple(dataclasses.replace(row, price=_format_cached_price(row.name)) for row in _list_size_rows())


@functools.cache
def _list_size_rows() -> tuple[VmSizeChoice, ...]:
    return tuple(_describe_size(size) for size in sorted(azure.load_catalogue(), key=_get_sort_key))


def _get_sort_key(size: azure.VmSize) -> tuple[bool, bool, bool, float, int, str]:
    memory = float(size.gpu_count * (size.gpu_memory_gib or 0))
    has_unknown_network = size.infiniband is None and size.ethernet_gbps is None
    return size.is_retired, size.gpu_count < 1, has_unknown_network, memory, size.vcpus or 0, size.name


def _describe_size(size: azure.VmSize) -> VmSizeChoice:
    return from_fields(
        VmSizeChoice,
        size,
        gpus=size.gpus_text,
        memory=size.memory_text,
        memory_gib=size.gpu_memory_gib,
        network={True: "InfiniBand", False: "Ethernet", None: "not stated"}[size.infiniband],
        rate=size.fabric_text if size.infiniband else size.ethernet_text,
        retired=str(size.retirement_date) if size.is_retired else "",
        search_text=" ".join([size.name, size.series, size.gpu_model, size.gpu]).lower(),
        price="",
    )


def _format_cached_price(name: str) -> str:
    """Return ``3.50 USD/h (source)``, or "" if no price is cached."""
    price = prices.find_cached(name)
    return f"{money(price.per_hour, price.currency)}/h ({price.source})" if price else ""


# the selected cluster ---------------------------------------------------------------------------------

#: Levels of checks that need a remedy, the most severe first.
_LEVELS = ("error", "warning")


def find_cluster(name: str) -> tuple[ClusterConfig | None, Cluster | None]:
    """Return a cluster and its class, or (None, None) if it is unknown or cannot be loaded."""
    with contextlib.suppress(DistDLError):
        config = cluster_configs.find(name)
        return config, registry.get("clusters", config.kind)
    return None, None


def poll_cluster(compute_target: str, backend: str, timeout: float, *, fresh: bool = False) -> CachedStatus | None:
    """Return the current state of a remote cluster, or None for another one. Polling continues in the background."""
    config, plugin = find_cluster(compute_target)
    if config is not None and plugin is not None and plugin.is_remote:
        with contextlib.suppress(DistDLError):
            return cluster_configs.FORM_CACHE.get_cached(
                config, cluster_configs.get_needs(backend), timeout, fresh=fresh
            )
    return None


def select_problems(cached: CachedStatus) -> CachedStatus:
    """Return the state with only those checks that need a remedy, the most severe first."""
    if cached.checks is None:
        return cached
    checks = [check for check in merge_hosts(cached.checks) if check.level in _LEVELS]
    return dataclasses.replace(cached, checks=tuple(sorted(checks, key=lambda check: _LEVELS.index(check.level))))


def get_min_gpus(cached: CachedStatus | None) -> int:
    """Return the number of GPUs that every running node has, or 0 if it is unknown."""
    nodes = [node for node in cached.status.nodes if node.state == "up"] if cached and cached.status else []
    return min((node.gpus for node in nodes), default=0)


# cost -------------------------------------------------------------------------------------------------

#: The reason why the price of Spot nodes is unknown.
SPOT_PRICE_PROBLEM = "Spot prices vary. Enter the price yourself."


class RentedNodes(NamedTuple):
    """The nodes that a cluster rents. ``size`` is "" if it is unknown; ``is_interruptible`` nodes may be preempted."""

    is_billed: bool = False
    size: str = ""
    is_interruptible: bool = False


def get_rented_nodes(compute_target: str, vm_size: str) -> RentedNodes:
    """Return what is known about the nodes of a cluster without a request to it."""
    config, plugin = find_cluster(compute_target)
    is_provisioner = isinstance(plugin, Provisioner)
    if config is None or not is_provisioner:
        return RentedNodes()
    options = config.options
    is_spot = str(options.get("job_tier") or "").lower() == "spot"
    return RentedNodes(is_billed=True, size=vm_size or str(options.get("vm_size") or ""), is_interruptible=is_spot)


def compute_cost(values: FormValues) -> CurrentCost | None:
    """Return the current cost of all nodes, or None if they are free. A price typed by the user takes precedence."""
    nodes, node_count = get_rented_nodes(values.compute_target, values.vm_size), values.node_count
    if not nodes.is_billed and not values.price_per_hour.strip():
        return None
    price, problem, is_wrong = None, "", False
    if values.price_per_hour.strip():
        try:
            price = prices.parse_price(values.price_per_hour)
        except InvalidSpec as error:
            problem, is_wrong = str(error), True
    elif nodes.is_interruptible:
        problem = SPOT_PRICE_PROBLEM
    elif not nodes.size:
        problem = "The price is unknown because no VM size is selected."
    else:
        price, problem = prices.look_up(nodes.size)
    if price is None:
        return CurrentCost(bills=nodes.is_billed, nodes=node_count, problem=problem, wrong=is_wrong)
    return CurrentCost(
        bills=nodes.is_billed,
        nodes=node_count,
        per_hour=money(price.per_hour * node_count, price.currency),
        text=format_hourly_cost(price.per_hour, price.currency, node_count),
        source=price.source,
        problem=problem,
    )
