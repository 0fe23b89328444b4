"""Dataclasses as strict JSON data: a number that JSON cannot hold becomes null."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


def finite(value: float | None) -> float | None:
    """Return the number if JSON can hold it, else None."""
    return value if value is not None and math.isfinite(value) else None


def to_json(value: Any) -> Any:
    """Return ``value`` made of dicts with string keys, lists, strings, finite numbers, booleans and None."""
    # A list of jobs has tens of thousands of values: the common types are tested first.
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is list or kind is tuple:
        return [to_json(item) for item in value]
    if names := _field_names(kind):
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    return _uncommon(value)


_ATOMS = frozenset((type(None), str, bool, int))
_FIELDS: dict[type, tuple[str, ...]] = {}


def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields, () for any other class."""
    names = _FIELDS.get(kind)
    if names is None:
        names = tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()
        _FIELDS[kind] = names
    return names


def _uncommon(value: Any) -> Any:
    """Return a member of an enumeration, a NumPy number or another iterable as JSON data."""
    if isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return finite(value)
    return {} if dataclasses.is_dataclass(value) else [to_json(item) for item in value]
