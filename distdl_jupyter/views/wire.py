"""Messages to pages and requests from pages, as strict JSON; a number that is not finite is null.

The error message for an invalid request is one sentence that names the field and its allowed values.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.options import describe_unknown

T = TypeVar("T")
R = TypeVar("R", bound="PageRequest")
#: The functions of a kernel that a page may call, by name.
Handlers = Mapping[str, Callable[..., object]]


class PageRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request of a page."""


def to_finite(value: float | None) -> float | None:
    """Return the number if it is finite, else None."""
    return value if value is not None and math.isfinite(value) else None


def from_fields(type_: type[T], original: object, **values: Any) -> T:
    """Return a dataclass with ``values`` as fields; the other fields are the attributes of ``original``."""
    names = (field.name for field in dataclasses.fields(type_) if field.name not in values)  # type: ignore[arg-type]
    return type_(**{name: getattr(original, name) for name in names}, **values)


def encode(value: object) -> bytes:
    """Return dataclasses, mappings, iterables and plain values as one line of strict JSON, without the newline."""
    return _encoder.encode(value)


def to_json(value: object) -> Any:
    """Return ``value`` as dicts, lists, strings, finite numbers, booleans and None."""
    return msgspec.json.decode(encode(value))


def _encode_other(value: object) -> Any:
    """Convert types that msgspec does not know: mappings, iterables, paths, subclasses of str, int and float."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for type_ in (str, int, float):
        if isinstance(value, type_):
            return type_(value)
    return list(value)  # type: ignore[call-overload]  # a TypeError names the type


_encoder = msgspec.json.Encoder(enc_hook=_encode_other)


def from_query(model: type[R], arguments: Mapping[str, list[bytes]]) -> R:
    """Return a request from a query string; unknown names are ignored. Raises InvalidSpec."""
    try:
        texts = {name: arguments[name][-1].decode() for name in model.__struct_fields__ if arguments.get(name)}
    except UnicodeDecodeError:
        raise InvalidSpec("The query string is not valid UTF-8.", code="query-not-utf-8") from None
    hints = typing.get_type_hints(model)
    values = {
        name: [part for part in text.split(",") if part] if typing.get_origin(hints[name]) is tuple else text
        for name, text in texts.items()
    }
    return from_data(model, values, strict=False)


def from_data(model: type[R], data: object, *, strict: bool = True) -> R:
    """Return a request from plain data; without ``strict``, numbers may be strings. Raises InvalidSpec."""
    try:
        return msgspec.convert(data, model, strict=strict)
    except msgspec.ValidationError as error:
        raise _to_invalid_spec(model, error) from None


def from_json(model: type[R], data: bytes | bytearray) -> R:
    """Return a request from JSON; no data is the same as {}. Raises InvalidSpec."""
    try:
        document = msgspec.json.decode(data or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidSpec("The request body is not valid JSON.", code="request-not-json") from None
    return from_data(model, document)


#: msgspec's names of types, with the text for a message.
_TYPE_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}


def _to_invalid_spec(model: type[PageRequest], error: msgspec.ValidationError) -> InvalidSpec:
    """Return a msgspec error as an error whose message is a sentence about the field."""
    reason, _, path = str(error).partition(" - at `$")
    names = re.findall(r"\.(\w+)", path)
    if match := re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", reason, re.DOTALL):
        if match[1] == "missing required":
            return InvalidSpec(f"{match[2]} is missing.", code="request-field-missing", field=match[2])
        message = f"Unknown field {match[2]!r} of {names[-1]}." if names else ""
        return InvalidSpec(
            message or describe_unknown(match[2], model.__struct_fields__, "request field"),
            code="request-field-unknown",
            field=match[2],
        )
    if not names:
        return InvalidSpec("The request body must be a JSON object.", code="request-not-an-object")
    return InvalidSpec(
        f"{names[-1]} must be {_list_allowed(model, names[-1], reason)}.", code="request-field-invalid", field=names[-1]
    )


def _list_allowed(model: type[PageRequest], name: str, reason: str) -> str:
    """Return the allowed values of a field: a choice, a number between limits, a maximum length, or a type."""
    schemas = [schema["properties"].get(name, {}) for schema in msgspec.json.schema_components([model])[1].values()]
    rules = {key: value for schema in schemas for part in schema.get("anyOf", [schema]) for key, value in part.items()}
    if "enum" in rules:
        return f"one of {', '.join(choice or 'nothing' for choice in rules['enum'])}"
    expected = re.match(r"Expected `([^`]*)`( [<>]=)?", reason)
    if expected is None:
        return "a smaller number"
    if expected[2]:
        upper = f" to {rules['maximum']:,}" if "maximum" in rules else ""
        return f"a number from {rules['minimum']:,}{upper}"
    types = " or ".join(_TYPE_NAMES[type_name] for type_name in expected[1].split(" | "))
    length = re.search("of length <= ([0-9]+)", reason)
    return f"{types} with at most {length[1]} entries" if length else types


def handle_request(handlers: Handlers, request: Mapping[str, Any]) -> dict[str, Any]:
    """Call the function that a request names in its field ``call``; return a response with ``value`` or ``error``.

    Never raises, because the page waits for the response and a plug-in may raise anything.
    """
    name = str(request.get("call"))
    if name not in handlers:
        error = DistDLError(f"Unknown request {name}.", code="kernel-call-unknown", hint="Reload the page.")
        return {"error": error.to_json()}
    try:
        return {"value": to_json(handlers[name](**dict(request.get("arguments") or {})))}
    except Exception as exc:  # noqa: BLE001 - a plug-in may raise anything
        description = f"{type(exc).__name__}: {exc}"
        error = exc if isinstance(exc, DistDLError) else DistDLError(description, code="internal-error")
        return {"error": error.to_json()}
