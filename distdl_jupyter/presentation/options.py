"""The options of a plug-in as a JSON schema, from which a page makes the fields of a form.

Options are declared once, as a dataclass whose fields carry ``help`` and ``choices``, and ``first`` for those that a
form asks before the others.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

_TYPES: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number", types.NoneType: "null"}


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
    found = _kind(hint)
    if choices := field.metadata.get("choices"):
        found = {"enum": list(choices)}
    if help_ := field.metadata.get("help"):
        found["description"] = help_
    if field.metadata.get("first"):
        found["x-first"] = True
    default = _default(field)
    if default is not dataclasses.MISSING:
        found["default"] = list(default) if isinstance(default, tuple) else default
    return found


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _kind(hint: Any) -> dict[str, Any]:
    """Return the schema of a type; one that JSON does not know is anything."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [_TYPES[part] for part in parts if part in _TYPES]
        return {"type": kinds} if len(kinds) == len(parts) else {}
    if origin is typing.Literal:
        return {"enum": list(parts)}
    if origin in (tuple, list):
        return {"type": "array", "items": _kind(parts[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _kind(parts[1])}
    return {"type": _TYPES[hint]} if hint in _TYPES else {}
