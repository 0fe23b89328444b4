"""Plug-ins as pages show them: why one cannot be used here, and its options as a JSON schema for the fields of a form.

Options are declared once, as a dataclass whose fields carry ``help`` and ``choices``, and ``first`` for those that a
form asks before the others.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import msgspec

from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError


@dataclass(frozen=True, slots=True)
class Plugin:
    """One backend or kind of cluster; ``options`` is the JSON schema of its options.

    A property with ``x-asked`` has values that the server can be asked for.

    ``problem`` says why it cannot be used here ("" when it can), ``remedy`` what changes that, ``code`` names it.
    """

    name: str
    title: str
    labels: tuple[str, ...]
    options: dict[str, Any]
    problem: str
    remedy: str
    code: str = ""


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
    return _mark_asked(schema, plugin)


def _mark_asked(schema: dict[str, Any], plugin: Any) -> dict[str, Any]:
    """Mark the properties whose values the plug-in knows when it is asked."""
    for name in set(getattr(plugin, "asks", ())) & set(schema["properties"]):
        schema["properties"][name]["x-asked"] = True
    return schema


def _problem(kind: registry.Kind, plugin: Any) -> str:
    """Return why a plug-in cannot be used, as far as that can be said without options that must be given."""
    if kind == "clusters" and not plugin.complete:
        return ""
    return str(plugin.unavailable(plugin.Options()))


def json_schema(options: type) -> dict[str, Any]:
    """Return the schema of an ``Options`` dataclass; an option without a default is required."""
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
