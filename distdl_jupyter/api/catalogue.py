"""What users choose from over HTTP: backends, types of clusters, VM sizes of Azure; and advice on a choice."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from distdl_jupyter.api.call import get, post
from distdl_jupyter.azure import catalogue, catalogue_date, find
from distdl_jupyter.core import gpus, registry
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.form import choices
from distdl_jupyter.form.schema import VmSizeChoice
from distdl_jupyter.form.state import past_jobs
from distdl_jupyter.node.headroom import cores
from distdl_jupyter.preflight import Advice, Request, advise

Count = Annotated[int, Meta(ge=1, le=100_000)]


@dataclass(frozen=True, slots=True)
class Plugin:
    """One backend or type of cluster; ``options`` is the JSON schema of its options.

    The values of a property with ``x-asked`` can be listed (``POST choices``). ``problem`` says why the plug-in cannot
    be used here ("" when it can), ``remedy`` is the fix, ``code`` the stable name of the problem.
    """

    name: str
    title: str
    labels: tuple[str, ...]
    options: dict[str, Any]
    problem: str
    remedy: str
    code: str = ""


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


def plugin_view(kind: registry.Kind, name: str) -> Plugin:
    """Return one plug-in with its options; an error becomes its problem. Never raises."""
    try:
        plugin = registry.get(kind, name)
        return Plugin(
            name=name,
            title=getattr(plugin, "title", "") or name,
            labels=tuple(getattr(plugin, "labels", ())),
            options=_options(plugin),
            problem=_problem(kind, plugin),
            remedy="",
            code="plugin-unavailable",
        )
    except DistDLError as error:
        return Plugin(name, name, (), {"type": "object", "properties": {}}, error.message, error.hint, code=error.code)
    except Exception as error:  # noqa: BLE001 - a broken third-party plug-in must not hide the others
        reason = f"It failed: {type(error).__name__}: {error}"
        return Plugin(name, name, (), {"type": "object", "properties": {}}, reason, "", code="plugin-failed")


def _options(plugin: Any) -> dict[str, Any]:
    schema = json_schema(plugin.Options)
    suggestions = plugin.suggestions() if hasattr(plugin, "suggestions") else {}
    for name, values in suggestions.items():
        schema["properties"][name]["examples"] = list(values)
    for name in set(getattr(plugin, "asks", ())) & set(schema["properties"]):
        schema["properties"][name]["x-asked"] = True
    return schema


def _problem(kind: registry.Kind, plugin: Any) -> str:
    """Return why a plug-in cannot be used, as far as that is known without its required options."""
    if kind == "clusters" and not plugin.complete:
        return ""
    return str(plugin.unavailable(plugin.Options()))


def json_schema(options: type) -> dict[str, Any]:
    """Return the JSON schema of an ``Options`` dataclass; an option without a default is required.

    The fields' metadata may have ``help``, ``choices``, and ``first`` for options that a form asks before the others.
    """
    _, schemas = msgspec.json.schema_components([options], schema_hook=lambda _type: {})
    schema = schemas[options.__name__]
    fields = {field.name: field for field in dataclasses.fields(options)}
    return {
        "type": "object",
        "properties": {name: _property(fields[name], known) for name, known in schema["properties"].items()},
        **({"required": schema["required"]} if schema["required"] else {}),
        "additionalProperties": False,
    }


def _property(field: dataclasses.Field[Any], schema: dict[str, Any]) -> dict[str, Any]:
    if choices := field.metadata.get("choices"):
        schema = {"enum": list(choices)}
    if help_ := field.metadata.get("help"):
        schema["description"] = help_
    if field.metadata.get("first"):
        schema["x-first"] = True
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if default is not dataclasses.MISSING:
        schema["default"] = list(default) if isinstance(default, tuple) else default
    return schema


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
    rows = (
        row
        for row in choices.vm_sizes()
        if (retired or not row.retired)
        and (not series or row.series.lower() == series.lower())
        and (min_gpus is None or gpus_of[row.name] >= min_gpus)
        and all(term in row.words for term in q.lower().split())
    )
    return VmSizeList(tuple(rows), str(catalogue_date()))


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
