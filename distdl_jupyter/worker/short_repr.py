"""Short descriptions of values, without code that can take long, raise, or wait for a GPU.

``repr`` is called only for classes that are known to be harmless; other values are shown as their class.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from distdl_jupyter.worker.hooks.tensors import shape

TIMES = "\N{MULTIPLICATION SIGN}"
#: Longest text of one string, and of one value.
LONGEST_STRING = 80
LONGEST = 160
_ITEMS = 6
#: Modules of the standard library whose classes have a short and cheap ``repr``.
_HARMLESS = ("pathlib", "datetime", "decimal", "fractions", "uuid", "enum")


def short(value: Any) -> str:
    """Return the value in at most LONGEST characters: ``312``, ``Tensor 32 x 10 float32``, ``dict, keys a, b``."""
    try:
        text = _describe(value, 2)
    except Exception:  # noqa: BLE001  attributes of user-defined classes are read
        text = type(value).__name__
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _describe(value: Any, depth: int) -> str:
    simple = _SIMPLE.get(type(value))
    if simple is not None:
        return simple(value)
    name = type(value).__name__
    module = str(getattr(type(value), "__module__", ""))
    if isinstance(value, type):
        return f"class {value.__name__}"
    if type(value) in (list, tuple, set, frozenset):
        return _items(value, depth)
    if (sizes := shape(value)) is not None:
        return _array(name, value, sizes)
    if (keys := keys_of(value)) is not None:
        return f"{name}, {_keys(keys, value)}"
    if isinstance(value, BaseException):
        return f"{name}: {str(value)[:LONGEST_STRING]}"
    if module.partition(".")[0] in _HARMLESS or isinstance(value, range | slice):
        return repr(value)
    return name


def keys_of(value: Any) -> list[Any] | None:
    """Return the first keys (nine at most) of a mapping or of an object with ``keys()``, None for anything else."""
    if isinstance(value, dict):
        return list(islice(dict.keys(value), 9))
    if isinstance(value, type) or not (isinstance(value, Mapping) or callable(getattr(type(value), "keys", None))):
        return None
    try:
        return list(islice(value.keys(), 9))
    except Exception:  # noqa: BLE001  a user-defined method
        return None


def format_names(names: list[Any], more: int = 0) -> str:
    """Join names for a sentence: ``image``, ``image and target``, ``a, b, c and 4 more``."""
    parts = [str(name)[:40] for name in names] + ([f"{more} more"] if more else [])
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _keys(keys: list[Any], value: Any) -> str:
    if not keys:
        return "empty"
    shown = ", ".join(str(key)[:40] for key in keys[:8])
    total = len(value) if isinstance(value, dict) else len(keys)
    return f"keys {shown}" + (f" and {total - 8:,} more" if total > 8 else "")


def _array(name: str, value: Any, sizes: tuple[int, ...]) -> str:
    kind = str(getattr(value, "dtype", "")).rpartition(".")[2]
    device = str(getattr(value, "device", "cpu"))
    location = "" if device.lower().startswith(("cpu", "<")) or not device else device
    what = f" {TIMES} ".join(map(str, sizes)) or "scalar"
    if not sizes and not location and callable(getattr(value, "item", None)):
        what = _describe(value.item(), 0)
    return " ".join(part for part in (name, what, kind, location) if part)


def _items(value: Any, depth: int) -> str:
    if len(value) > _ITEMS or depth <= 0:
        return f"{type(value).__name__} of {len(value):,}"
    opened, closed = _BRACKETS[type(value)] if value else (f"{type(value).__name__}(", ")")
    return f"{opened}{', '.join(_describe(item, depth - 1) for item in value)}{closed}"


def _float(value: float) -> str:
    text = repr(value)
    return text if len(text) <= 8 else f"{value:.6g}"


def _int(value: int) -> str:
    return repr(value) if abs(value) < 10**30 else f"int of {value.bit_length():,} bits"


def _string(value: str | bytes) -> str:
    cut = repr(value[:LONGEST_STRING])
    return cut if len(value) <= LONGEST_STRING else f"{cut}… ({len(value):,})"


_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"),
                                          frozenset: ("frozenset({", "})")}  # fmt: skip
_SIMPLE: dict[type, Callable[[Any], str]] = {
    type(None): repr,
    bool: repr,
    int: _int,
    float: _float,
    complex: repr,
    str: _string,
    bytes: _string,
    types.FunctionType: lambda value: f"function {value.__name__}",
    types.BuiltinFunctionType: lambda value: f"function {value.__name__}",
    types.MethodType: lambda value: f"method {value.__name__}",
    types.ModuleType: lambda value: f"module {value.__name__}",
}
