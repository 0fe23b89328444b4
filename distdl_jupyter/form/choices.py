"""What the launch form offers: sizes, backends, clusters and durations.

What cannot be used here is offered with the reason why not. No request is sent: prices are cached ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import platform
import sys
from collections.abc import Sequence
from typing import Any, Literal

from distdl_jupyter import azure
from distdl_jupyter.azure import prices
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.humanize import money
from distdl_jupyter.core.options import ABOUT, MOST_RESTARTS, About
from distdl_jupyter.form.schema import (
    BackendChoice,
    Chosen,
    ClusterChoice,
    FormChoices,
    OptionField,
    VmSizeChoice,
)

_KINDS: dict[type, Literal["number"]] = {int: "number", float: "number"}
#: Seconds offered under "Stop after"; 0 is unlimited.
STOP_AFTER = (0, 300, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800)


def choices() -> FormChoices:
    """Return all that there is to choose from now."""
    return FormChoices(
        sizes=vm_sizes(),
        catalogue_date=str(azure.catalogue_date()),
        backends=backends(),
        clusters=clusters(),
        durations=STOP_AFTER,
        most_restarts=MOST_RESTARTS,
        options=tuple(_job_option(name, ABOUT[name]) for name in other_options()),
    )


def other_options() -> list[str]:
    """Return the options of a job that have no control of their own in the form."""
    own = {*Chosen.__struct_fields__, "environment_variables"}
    return [name for name, about in ABOUT.items() if about.in_form and name not in own]


def _job_option(name: str, about: About) -> OptionField:
    return OptionField(name, about.label, about.help, "flag" if about.switch else _KINDS.get(about.word, "text"))


def backends() -> tuple[BackendChoice, ...]:
    """Return the backends to choose from, single-process ones last: label, reason (why not), detail, options."""
    found = sorted(registry.backends(), key=lambda one: not one.meets)
    labels = [label for one in found for label in ([one.name] if one.name in one.labels else one.labels)]
    return tuple(map(_backend, labels))


def _backend(label: str) -> BackendChoice:
    plugin, options = registry.backend(label, {})
    preset = plugin.labels.get(label, {})
    return BackendChoice(
        label=label,
        backend=plugin.name,
        reason=plugin.unavailable(options),
        detail=plugin.detail(options) or f"Python {platform.python_version()}",
        options=tuple(_option(field) for field in dataclasses.fields(plugin.Options) if field.name not in preset),
    )


def likely_backend(offered: Sequence[BackendChoice], wanted: str, process_count: int) -> str:
    """Return the label to begin with: of the backend that the code speaks of, else one that fits the process count."""
    of_wanted = [choice for choice in offered if choice.backend == wanted]
    usable = [choice for choice in of_wanted if not choice.reason]
    if of_wanted:
        return (usable or of_wanted)[0].label
    default = any(choice.label == registry.DEFAULT and not choice.reason for choice in offered)
    return registry.DEFAULT if process_count > 1 and default else registry.SINGLE


def split_label(label: str) -> tuple[str, dict[str, Any]]:
    """Return the offered label that means ``label`` and the options that make it so: ("torch", {transport: nccl}).

    Raises InvalidSpec for a label that no backend knows.
    """
    plugin, _ = registry.backend(label, {})
    labels = registry.backend_labels()
    name = labels.get(label, label)
    if name in labels and label != name:
        return name, dict(plugin.labels.get(label, {}))
    return label, {}


def _option(field: dataclasses.Field[Any]) -> OptionField:
    choices = field.metadata.get("choices")
    default = None if field.default is dataclasses.MISSING else field.default
    kind = "choice" if choices else _kind_of(str(field.type), default)
    return OptionField(
        name=field.name,
        label="",
        help=field.metadata.get("help", ""),
        choices=tuple(str(choice) for choice in choices or ()),
        default=default,
        kind=kind,
    )


def _kind_of(annotation: str, default: Any) -> Literal["number", "flag", "text"]:
    if isinstance(default, bool) or "bool" in annotation:
        return "flag"
    return "number" if "float" in annotation or "int" in annotation else "text"


def clusters() -> tuple[ClusterChoice, ...]:
    """Return the clusters to choose from, those that users named last: what is known, and the reason why not."""
    found = cluster_configs.kinds()
    with contextlib.suppress(DistDLError):
        found += cluster_configs.named()
    return tuple(map(_cluster, found))


def _cluster(target: cluster_configs.ClusterConfig) -> ClusterChoice:
    title = detail = ""
    far = rents = False
    try:
        plugin = registry.get("clusters", target.kind)
        options = registry.check_options("clusters", target.kind, dict(target.options))
        title, far, rents, reason = plugin.title, plugin.far, plugin.can_create, plugin.unavailable(options)
        detail = plugin.detail(options)
    except DistDLError as error:
        reason = str(error)
    local = target.kind == "local"
    return ClusterChoice(
        name=target.name,
        title=title if target.named or not local else "",
        system=_system() if local and not target.named else "",
        detail=detail,
        reason=reason,
        local=local,
        far=far,
        named=target.named,
        rents=rents,
    )


def _system() -> str:
    return {"darwin": "macOS", "linux": "Linux"}.get(sys.platform, "")


# VM sizes ---------------------------------------------------------------------------------------------


def vm_sizes() -> tuple[VmSizeChoice, ...]:
    """Return one row for each size, from little GPU memory to much; shares, little known and retired ones last."""
    return tuple(dataclasses.replace(row, price=_cached_price(row.name)) for row in _size_rows())


@functools.cache
def _size_rows() -> tuple[VmSizeChoice, ...]:
    return tuple(_size_row(size) for size in sorted(azure.catalogue(), key=_order))


def _order(size: azure.VmSize) -> tuple[bool, bool, bool, float, int, str]:
    memory = float(size.gpu_count * (size.gpu_memory_gib or 0))
    network_unknown = size.infiniband is None and size.ethernet_gbps is None
    return size.retired, size.gpu_count < 1, network_unknown, memory, size.vcpus or 0, size.name


def _size_row(size: azure.VmSize) -> VmSizeChoice:
    return VmSizeChoice(
        name=size.name,
        series=size.series,
        gpu=size.gpu,
        gpus=size.gpus_text,
        per_node=size.whole_gpus,
        memory=size.memory_text,
        memory_gib=size.gpu_memory_gib,
        network={True: "InfiniBand", False: "Ethernet", None: "not stated"}[size.infiniband],
        rate=size.fabric_text if size.infiniband else size.ethernet_text,
        retired=str(size.retirement_date) if size.retired else "",
        successor=size.successor,
        successor_reason=size.successor_reason,
        words=" ".join([size.name, size.series, size.gpu_model, size.gpu]).lower(),
        sources=size.sources,
        notes=size.notes,
    )


def _cached_price(name: str) -> str:
    """Return ``3.50 USD/h (source)``, "" where none is cached."""
    price = prices.cached(name)
    return f"{money(price.per_hour, price.currency)}/h ({price.source})" if price else ""
