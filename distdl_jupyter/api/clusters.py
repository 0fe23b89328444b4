"""HTTP API for clusters and plug-ins: the clusters of this user, and the known backends and cluster types."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import msgspec

from distdl_jupyter.api.endpoint import ServerContext, delete, get, post
from distdl_jupyter.clusters import cluster_configs, handle
from distdl_jupyter.clusters.base import NodeCheck, OptionValue
from distdl_jupyter.clusters.cluster_configs import ClusterConfig
from distdl_jupyter.clusters.handle import merge_hosts
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.live.clusters import ClusterRow, list_active_jobs, read_clusters


@get("/clusters")
async def list_clusters(context: ServerContext) -> tuple[ClusterRow, ...]:
    """List all clusters with their nodes."""
    return await read_clusters(context.run, context.job_index, context.cluster_status)


@post("/clusters", status=201)
async def add(context: ServerContext, *, name: str, kind: str, options: dict[str, Any] | None = None) -> ClusterRow:
    """Add a cluster with a name and options."""
    return await _read_row(context, await context.run(cluster_configs.add, name, kind, options or {}))


@get("/clusters/{name}")
async def show(context: ServerContext, name: str) -> ClusterRow:
    """Show one cluster with its nodes."""
    return await _read_row(context, await context.run(cluster_configs.get, name))


async def _read_row(context: ServerContext, config: ClusterConfig) -> ClusterRow:
    (row,) = await read_clusters(context.run, context.job_index, context.cluster_status, [config])
    return row


@delete("/clusters/{name}", status=204)
def remove(context: ServerContext, name: str) -> None:
    """Remove a cluster on which no job is running."""
    cluster_configs.remove(name, list_active_jobs(name, context.job_index.read_all()))


@post("/clusters/{name}/check", action="execute")
async def check(context: ServerContext, name: str) -> list[NodeCheck]:
    """Check every node for problems that would prevent a job; this can take 30 s."""
    config = await context.run(cluster_configs.get, name)
    return merge_hosts(await context.cluster_status.run_checks(config, None))


@post("/choices", action="execute", slow=True)
def list_choices(*, kind: str, option: str, options: dict[str, Any] | None = None) -> list[OptionValue]:
    """List the known values of one option of a cluster type, given its other options; this can take seconds."""
    return handle.list_choices(kind, option, options or {})


@dataclass(frozen=True, slots=True)
class Plugin:
    """One backend or cluster type; ``options`` is the JSON schema of its options.

    The values of a property with ``x-asked`` can be listed (``POST /choices``). ``problem`` is the reason why the
    plug-in cannot be used here, or "" if it can; ``remedy`` is the fix, and ``code`` the stable name of the problem.
    """

    kind: registry.Kind
    name: str
    title: str
    labels: tuple[str, ...]
    options: dict[str, Any]
    problem: str
    remedy: str = ""
    code: str = "plugin-unavailable"


@get("/plugins")
def list_plugins() -> list[Plugin]:
    """List the backends and cluster types with their options, and why some cannot be used."""
    return [_describe(kind, name) for kind in registry.KINDS for name in registry.list_names(kind)]


def _describe(kind: registry.Kind, name: str) -> Plugin:
    """Return one plug-in with its options; if that fails, the error is its ``problem``."""
    try:
        plugin = registry.get(kind, name)
        # A cluster with required options cannot be checked without them.
        defaults = {} if kind == "backends" else plugin.default_options()
        problem = "" if defaults is None else str(plugin.unavailable(plugin.Options(**defaults)))
        title, labels = getattr(plugin, "title", "") or name, tuple(getattr(plugin, "labels", ()))
        return Plugin(kind, name, title, labels, _create_options_schema(plugin), problem)
    except Exception as exception:  # noqa: BLE001 - a broken third-party plug-in must not hide the others
        failure = DistDLError(f"The plug-in failed: {type(exception).__name__}: {exception}", code="plugin-failed")
        error = exception if isinstance(exception, DistDLError) else failure
    return Plugin(kind, name, name, (), {"type": "object", "properties": {}}, error.message, error.hint, error.code)


def _create_options_schema(plugin: Any) -> dict[str, Any]:
    """Return the JSON schema of the options of a plug-in, with suggested values and ``x-asked``."""
    schema = create_json_schema(plugin.Options)
    for name, values in (plugin.suggestions() if hasattr(plugin, "suggestions") else {}).items():
        schema["properties"][name]["examples"] = list(values)
    for name in set(getattr(plugin, "dynamic_options", ())) & set(schema["properties"]):
        schema["properties"][name]["x-asked"] = True
    return schema


def create_json_schema(options: type) -> dict[str, Any]:
    """Return the JSON schema of an ``Options`` dataclass; an option without a default is required.

    The metadata of a field may have ``help``, ``choices``, and ``first`` for options at the top of a form.
    """
    _, schemas = msgspec.json.schema_components([options], schema_hook=lambda _type: {})
    schema = schemas[options.__name__]
    for field in dataclasses.fields(options):
        property_ = schema["properties"].get(field.name, {})
        if choices := field.metadata.get("choices"):
            property_.pop("type", None)
            property_["enum"] = list(choices)
        if help_ := field.metadata.get("help"):
            property_["description"] = help_
        if field.metadata.get("first"):
            property_["x-first"] = True
    return {**schema, "additionalProperties": False}
