"""From what a request carries to a dataclass: strings of a query or JSON of a body, checked field by field.

A field's type is one of ``str``, ``bool``, ``int``, ``float``, ``Any``, ``Literal``, a union of these with None, a
``tuple`` of one of them, a ``dict`` from strings, or another such dataclass. Its metadata may hold ``minimum`` and
``maximum``. The same dataclasses describe the requests in the OpenAPI file.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from distdl_jupyter.core.aliases import unknown
from distdl_jupyter.core.errors import InvalidSpec

T = TypeVar("T")

_HINTS: dict[type, dict[str, Any]] = {}
_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}


class _Wrong(Exception):
    """A value that is not of its type; the text says what is."""


def from_query(form: type[T], arguments: Mapping[str, list[bytes]]) -> T:
    """Return the dataclass that a query string fills; names that it does not know are left to others.

    Raises InvalidSpec.
    """
    hints = _hints(form)
    try:
        given = {name: values[-1].decode() for name, values in arguments.items() if name in hints and values}
    except UnicodeDecodeError:
        raise InvalidSpec("The query string is no text in UTF-8.") from None
    return _filled(form, {name: _from_text(hints[name], text) for name, text in given.items()})


def from_json(form: type[T], data: object) -> T:
    """Return the dataclass that a body fills. Raises InvalidSpec for unknown, missing and wrong fields."""
    if not isinstance(data, dict):
        raise InvalidSpec("The request's body takes a JSON object.")
    known = _hints(form)
    for name in data:
        if name not in known:
            raise InvalidSpec(unknown(name, known, "field of this request"), field=name)
    return _filled(form, data)


def _hints(form: type) -> dict[str, Any]:
    if form not in _HINTS:
        _HINTS[form] = typing.get_type_hints(form)
    return _HINTS[form]


def _filled(form: type[T], given: Mapping[str, Any]) -> T:
    fields = {field.name: field for field in dataclasses.fields(form)}  # type: ignore[arg-type]  # it is a dataclass
    missing = [name for name, field in fields.items() if name not in given and not _has_default(field)]
    if missing:
        raise InvalidSpec(f"{missing[0]} is missing.", field=missing[0])
    return form(**{name: _checked(fields[name], _hints(form)[name], value) for name, value in given.items()})


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _checked(field: dataclasses.Field[Any], hint: Any, value: object) -> Any:
    try:
        found = _as(hint, value)
        _within(field.metadata, found)
    except _Wrong as wrong:
        raise InvalidSpec(f"{field.name} takes {wrong}.", field=field.name) from None
    return found


def _within(metadata: Mapping[str, Any], value: object) -> None:
    low, high = metadata.get("minimum"), metadata.get("maximum")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if (low is not None and value < low) or (high is not None and value > high):
        upper = "" if high is None else f" to {high:,}"
        raise _Wrong(f"a number from {low:,}{upper}")


def _from_text(hint: Any, text: str) -> Any:
    """Return what a string of a query stands for; a string that stands for nothing stays one and is refused later."""
    kinds = _members(hint)
    if bool in kinds:
        return _BOOLEANS.get(text.lower(), text)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                return text
    if any(typing.get_origin(kind) is tuple for kind in kinds):
        return tuple(part for part in text.split(",") if part)
    return text


def _as(hint: Any, value: object) -> Any:
    reasons = []
    for kind in _members(hint):
        try:
            return _as_one(kind, value)
        except _Wrong as wrong:
            reasons.append(str(wrong))
    raise _Wrong(" or ".join(reasons))


def _members(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _as_one(kind: Any, value: object) -> Any:
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return _choice(typing.get_args(kind), value)
    if origin is tuple:
        return _sequence(typing.get_args(kind)[0], value)
    if origin is dict:
        return {name: _as(typing.get_args(kind)[1], one) for name, one in _object(value).items()}
    if dataclasses.is_dataclass(kind):
        return from_json(kind, _object(value))  # type: ignore[arg-type]  # a class, not an instance
    return value if kind is Any else _plain(kind, value)


def _choice(choices: tuple[Any, ...], value: object) -> Any:
    if value not in choices:
        raise _Wrong(f"one of {', '.join(str(choice) or 'nothing' for choice in choices)}")
    return value


def _sequence(member: Any, value: object) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _Wrong("a list")
    return tuple(_as(member, one) for one in value)


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong("an object")
    return value


_WORDS: dict[type, str] = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


def _plain(kind: type, value: object) -> Any:
    if kind is types.NoneType:
        if value is None:
            return None
        raise _Wrong("nothing")
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if kind is not float and isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise _Wrong(_WORDS[kind])
