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
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    return [plain(one) for one in value]
