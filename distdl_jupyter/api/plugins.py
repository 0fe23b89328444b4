"""HTTP API for backends and cluster types, with their options as JSON schema."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import msgspec

from distdl_jupyter.api.call import get
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError


@dataclass(frozen=True, slots=True)
class Plugin:
    """One backend or cluster type; ``options`` is the JSON schema of its options.

    The values of a property with ``x-asked`` can be listed (``POST choices``). ``problem`` is the reason why the
    plug-in cannot be used here, "" if it can, ``remedy`` is the fix, and ``code`` the stable name of the problem.
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
        backends=tuple(_plugin("backends", name) for name in registry.names("backends")),
        clusters=tuple(_plugin("clusters", name) for name in registry.names("clusters")),
    )


def _plugin(kind: registry.Kind, name: str) -> Plugin:
    """Return one plug-in with its options; an error becomes its problem."""
    try:
        plugin = registry.get(kind, name)
        # A cluster with required options cannot be checked without them.
        defaults = {} if kind == "backends" else plugin.default_options()
        problem = "" if defaults is None else str(plugin.unavailable(plugin.Options(**defaults)))
        title, labels = getattr(plugin, "title", "") or name, tuple(getattr(plugin, "labels", ()))
        return Plugin(name, title, labels, _options(plugin), problem, "", code="plugin-unavailable")
    except DistDLError as error:
        problem, remedy, code = error.message, error.hint, error.code
    except Exception as error:  # noqa: BLE001 - a broken third-party plug-in must not hide the others
        problem, remedy, code = f"It failed: {type(error).__name__}: {error}", "", "plugin-failed"
    return Plugin(name, name, (), {"type": "object", "properties": {}}, problem, remedy, code)


def _options(plugin: Any) -> dict[str, Any]:
    schema = json_schema(plugin.Options)
    suggestions = plugin.suggestions() if hasattr(plugin, "suggestions") else {}
    for name, values in suggestions.items():
        schema["properties"][name]["examples"] = list(values)
    for name in set(getattr(plugin, "dynamic_options", ())) & set(schema["properties"]):
        schema["properties"][name]["x-asked"] = True
    return schema


def json_schema(options: type) -> dict[str, Any]:
    """Return the JSON schema of an ``Options`` dataclass; an option without a default is required.

    The metadata of a field may have ``help``, ``choices``, and ``first`` for options at the top of a form.
    """
    _, schemas = msgspec.json.schema_components([options], schema_hook=lambda _type: {})
    schema = schemas[options.__name__]
    required = {"required": schema["required"]} if schema["required"] else {}
    for field in dataclasses.fields(options):
        property_ = schema["properties"].get(field.name, {})
        if choices := field.metadata.get("choices"):
            property_.pop("type", None)
            property_["enum"] = list(choices)
        if help_ := field.metadata.get("help"):
            property_["description"] = help_
        if field.metadata.get("first"):
            property_["x-first"] = True
    return {"type": "object", "properties": schema["properties"], **required, "additionalProperties": False}
