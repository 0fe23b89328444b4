"""Dataclasses as plain JSON data that any reader takes: numbers without a place in JSON become null."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


def finite(value: float | None) -> float | None:
    """Return the number when JSON has a place for it, else None."""
    return value if value is not None and math.isfinite(value) else None


def plain(value: Any) -> Any:
    """Return ``value`` made of dicts with string keys, lists, strings, finite numbers, booleans and None."""
    # A list of jobs has tens of thousands of values: the common kinds are told apart at once.
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is list or kind is tuple:
        return [plain(one) for one in value]
    if names := _names(kind):
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    return _unusual(value)


_AS_THEY_ARE = frozenset((type(None), str, bool, int))


_KNOWN: dict[type, tuple[str, ...]] = {}


def _names(kind: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields, () for any other class."""
    known = _KNOWN.get(kind)
    if known is None:
        known = tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()
        _KNOWN[kind] = known
    return known


def _unusual(value: Any) -> Any:
    """Return what is of no common kind: a member of an enumeration, a number of numpy, another iterable."""
    if isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return finite(value)
    return {} if dataclasses.is_dataclass(value) else [plain(one) for one in value]
