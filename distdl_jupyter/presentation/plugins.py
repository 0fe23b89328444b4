"""Plug-ins as pages show them: the options as a schema with suggestions, and why one cannot be used here."""

from __future__ import annotations

from typing import Any

from distdl_jupyter import registry
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.presentation.options import json_schema
from distdl_jupyter.presentation.schema import Plugin


def told(kind: registry.Kind, name: str) -> Plugin:
    """Return one plug-in with its options; what is wrong with it is its problem. Never raises."""
    try:
        plugin = registry.get(kind, name)
        return Plugin(
            name=name,
            title=getattr(plugin, "title", "") or name,
            labels=tuple(getattr(plugin, "labels", ())),
            options=_options(plugin),
            problem=_problem(kind, plugin),
            remedy="",
            wanted=_wanted(plugin),
        )
    except DistDLError as error:
        return Plugin(name, name, (), {"type": "object", "properties": {}}, error.message, error.hint)
    except Exception as error:  # noqa: BLE001 - a plug-in of somebody else must not hide the other ones
        reason = f"It failed when it was asked: {type(error).__name__}: {error}"
        return Plugin(name, name, (), {"type": "object", "properties": {}}, reason, "")


def _options(plugin: Any) -> dict[str, Any]:
    found = json_schema(plugin.Options)
    suggestions = plugin.suggestions() if hasattr(plugin, "suggestions") else {}
    for name, values in suggestions.items():
        found["properties"][name]["examples"] = list(values)
    return _asked(found, plugin)


def _wanted(plugin: Any) -> dict[str, Any] | None:
    return _asked(json_schema(plugin.Wanted), plugin) if getattr(plugin, "can_create", False) else None


def _asked(schema: dict[str, Any], plugin: Any) -> dict[str, Any]:
    """Mark the properties whose values the plug-in knows when it is asked."""
    for name in set(getattr(plugin, "asks", ())) & set(schema["properties"]):
        schema["properties"][name]["x-asked"] = True
    return schema


def _problem(kind: registry.Kind, plugin: Any) -> str:
    """Return why a plug-in cannot be used, as far as that can be said without options that must be given."""
    if kind == "clusters" and not plugin.complete:
        return ""
    return str(plugin.unavailable(plugin.Options()))
