"""How dataclasses travel to pages, and requests from them: as strict JSON. A number that is not finite is null."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import msgspec


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a page sends."""


def finite(value: float | None) -> float | None:
    """Return the number if JSON can hold it, else None."""
    return value if value is not None and math.isfinite(value) else None


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
