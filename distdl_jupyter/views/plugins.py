"""Plug-ins as pages show them: why one cannot be used here, and its options as a JSON schema for the fields of a form.

Options are declared once, as a dataclass whose fields carry ``help`` and ``choices``, and ``first`` for those that a
form asks before the others.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.views.schema import Plugin

_TYPES: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number", types.NoneType: "null"}


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
    hints = typing.get_type_hints(options)
    fields = dataclasses.fields(options)
    required = [field.name for field in fields if _default(field) is dataclasses.MISSING]
    return {
        "type": "object",
        "properties": {field.name: _property(field, hints[field.name]) for field in fields},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _property(field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    schema = _type_schema(hint)
    if choices := field.metadata.get("choices"):
        schema = {"enum": list(choices)}
    if help_ := field.metadata.get("help"):
        schema["description"] = help_
    if field.metadata.get("first"):
        schema["x-first"] = True
    default = _default(field)
    if default is not dataclasses.MISSING:
        schema["default"] = list(default) if isinstance(default, tuple) else default
    return schema


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _type_schema(hint: Any) -> dict[str, Any]:
    """Return the schema of a type; {} for one that JSON does not know."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [_TYPES[part] for part in parts if part in _TYPES]
        return {"type": kinds} if len(kinds) == len(parts) else {}
    if origin is typing.Literal:
        return {"enum": list(parts)}
    if origin in (tuple, list):
        return {"type": "array", "items": _type_schema(parts[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type_schema(parts[1])}
    return {"type": _TYPES[hint]} if hint in _TYPES else {}
