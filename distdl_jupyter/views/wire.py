"""How dataclasses travel to pages, and requests from them: as strict JSON. A number that is not finite is null.

An invalid request raises an error of one sentence, which names the field and what it must be.
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

from distdl_jupyter.core.aliases import unknown
from distdl_jupyter.core.errors import DistDLError, InvalidSpec

T = TypeVar("T")
R = TypeVar("R", bound="Request")
#: What a page may ask a kernel for, by name; ``given`` has the arguments.
Calls = Mapping[str, Callable[..., object]]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a page sends."""


def finite(value: float | None) -> float | None:
    """Return the number if JSON can hold it, else None."""
    return value if value is not None and math.isfinite(value) else None


def from_fields(kind: type[T], of: object, **more: Any) -> T:
    """Return a dataclass with ``more``; its other fields are those of an object with the same names."""
    names = (field.name for field in dataclasses.fields(kind) if field.name not in more)  # type: ignore[arg-type]
    return kind(**{name: getattr(of, name) for name in names}, **more)


def encode(value: object) -> bytes:
    """Return ``value`` as one line of strict JSON, without the newline.

    It is made of dataclasses, mappings with string keys, iterables, strings, numbers, booleans and None.
    """
    return _encoder.encode(value)


def to_json(value: object) -> Any:
    """Return ``value`` made of dicts, lists, strings, finite numbers, booleans and None."""
    return msgspec.json.decode(encode(value))


def _uncommon(value: object) -> Any:
    """Return what msgspec does not know: a mapping, an iterable, a path, a string or a number of a derived class."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return list(value)  # type: ignore[call-overload]  # a TypeError says which type it is


_encoder = msgspec.json.Encoder(enc_hook=_uncommon)


def from_query(form: type[R], arguments: Mapping[str, list[bytes]]) -> R:
    """Return the request that a query string fills, without names that it does not have. Raises InvalidSpec."""
    try:
        texts = {name: arguments[name][-1].decode() for name in form.__struct_fields__ if arguments.get(name)}
    except UnicodeDecodeError:
        raise InvalidSpec("The query string is not valid UTF-8.", code="query-not-utf-8") from None
    hints = typing.get_type_hints(form)
    values = {
        name: [part for part in text.split(",") if part] if typing.get_origin(hints[name]) is tuple else text
        for name, text in texts.items()
    }
    return from_data(form, values, strict=False)


def from_data(form: type[R], data: object, *, strict: bool = True) -> R:
    """Return the request that plain data fills; strings may be numbers unless ``strict``. Raises InvalidSpec."""
    try:
        return msgspec.convert(data, form, strict=strict)
    except msgspec.ValidationError as error:
        raise _invalid(form, error) from None


def from_json(form: type[R], data: bytes | bytearray) -> R:
    """Return the request that JSON fills; an empty body is {}. Raises InvalidSpec."""
    try:
        return msgspec.json.decode(data or b"{}", type=form)
    except msgspec.ValidationError as error:
        raise _invalid(form, error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidSpec("The request body is not valid JSON.", code="request-not-json") from None


#: The names of msgspec's types in a message.
_TYPES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}


def _invalid(form: type[Request], error: msgspec.ValidationError) -> InvalidSpec:
    """Return the error of msgspec as a sentence about the field."""
    reason, _, path = str(error).partition(" - at `$")
    names = re.findall(r"\.(\w+)", path)
    if named := re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", reason, re.DOTALL):
        if named[1] == "missing required":
            return InvalidSpec(f"{named[2]} is missing.", code="request-field-missing", field=named[2])
        inside = f"Unknown field {named[2]!r} of {names[-1]}." if names else ""
        return InvalidSpec(
            inside or unknown(named[2], form.__struct_fields__, "request field"),
            code="request-field-unknown",
            field=named[2],
        )
    if not names:
        return InvalidSpec("The request body must be a JSON object.", code="request-not-an-object")
    return InvalidSpec(
        f"{names[-1]} must be {_expected(form, names[-1], reason)}.", code="request-field-invalid", field=names[-1]
    )


def _expected(form: type[Request], name: str, reason: str) -> str:
    """Return what a field must be: one of some words, a number between its limits, or a value of another type."""
    schemas = [schema["properties"].get(name, {}) for schema in msgspec.json.schema_components([form])[1].values()]
    rules = {key: value for schema in schemas for part in schema.get("anyOf", [schema]) for key, value in part.items()}
    if "enum" in rules:
        return f"one of {', '.join(choice or 'nothing' for choice in rules['enum'])}"
    expected = re.match(r"Expected `([^`]*)`( [<>]=)?", reason)
    if expected is None:
        return "a smaller number"
    if expected[2]:
        high = f" to {rules['maximum']:,}" if "maximum" in rules else ""
        return f"a number from {rules['minimum']:,}{high}"
    return " or ".join(_TYPES[name] for name in expected[1].split(" | "))


def answer(calls: Calls, message: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out what a page asks for (``ask``, with ``given`` as arguments); return ``value`` or ``error``.

    Never raises: the page waits, and a plug-in of another package may raise anything.
    """
    name = str(message.get("ask"))
    if name not in calls:
        error = DistDLError(f"Unknown request {name}.", code="kernel-call-unknown", hint="Reload the page.")
        return {"error": error.to_json()}
    try:
        return {"value": to_json(calls[name](**dict(message.get("given") or {})))}
    except Exception as exc:  # noqa: BLE001
        described = f"{type(exc).__name__}: {exc}"
        error = exc if isinstance(exc, DistDLError) else DistDLError(described, code="internal-error")
        return {"error": error.to_json()}
