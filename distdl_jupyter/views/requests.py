"""What a page sends, read by msgspec: strings of a query, or JSON of a body or of a message.

A value that is none is answered with one sentence that names the field and what it takes.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from distdl_jupyter.core.aliases import unknown
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.views.wire import Request

R = TypeVar("R", bound=Request)


def from_query(form: type[R], arguments: Mapping[str, list[bytes]]) -> R:
    """Return the request that a query string fills; names that it does not know are left to others.

    Raises InvalidSpec.
    """
    try:
        given = {name: arguments[name][-1].decode() for name in form.__struct_fields__ if arguments.get(name)}
    except UnicodeDecodeError:
        raise InvalidSpec("The query string is not valid UTF-8.", code="query-not-utf-8") from None
    hints = typing.get_type_hints(form)
    found = {name: _parts(text) if typing.get_origin(hints[name]) is tuple else text for name, text in given.items()}
    return from_data(form, found, strict=False)


def _parts(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def from_data(form: type[R], data: object, *, strict: bool = True) -> R:
    """Return the request that plain data fills; texts stand for numbers where that is not ``strict``.

    Raises InvalidSpec.
    """
    try:
        return msgspec.convert(data, form, strict=strict)
    except msgspec.ValidationError as error:
        raise _invalid(form, error) from None


def from_json(form: type[R], data: bytes | bytearray) -> R:
    """Return the request that JSON fills; none at all is {}. Raises InvalidSpec."""
    try:
        return msgspec.json.decode(data or b"{}", type=form)
    except msgspec.ValidationError as error:
        raise _invalid(form, error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidSpec("The request body is not valid JSON.", code="request-not-json") from None


#: msgspec's words for kinds of values, and ours.
_KINDS = {"str": "a string", "int": "an integer", "float": "a number", "bool": "true or false", "array": "a list",
          "object": "an object", "null": "nothing"}  # fmt: skip


def _invalid(form: type[Request], error: msgspec.ValidationError) -> InvalidSpec:
    """Return what msgspec says of a value as a sentence about its field."""
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
        f"{names[-1]} must be {_takes(form, names[-1], reason)}.", code="request-field-invalid", field=names[-1]
    )


def _takes(form: type[Request], name: str, reason: str) -> str:
    """Return what a field takes: one of its words, a number between its limits, or another kind of value."""
    schemas = [schema["properties"].get(name, {}) for schema in _schemas(form).values()]
    said: Any = {key: value for one in schemas for kind in one.get("anyOf", [one]) for key, value in kind.items()}
    if "enum" in said:
        return f"one of {', '.join(word or 'nothing' for word in said['enum'])}"
    expected = re.match(r"Expected `([^`]*)`( [<>]=)?", reason)
    if expected is None:
        return "a smaller number"
    if expected[2]:
        high = f" to {said['maximum']:,}" if "maximum" in said else ""
        return f"a number from {said['minimum']:,}{high}"
    return " or ".join(_KINDS[kind] for kind in expected[1].split(" | "))


def _schemas(form: type[Request]) -> dict[str, Any]:
    """Return the JSON schema of a request, and of all that it is made of, by name."""
    return msgspec.json.schema_components([form])[1]
