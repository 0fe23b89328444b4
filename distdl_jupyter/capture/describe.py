"""What a captured value is, in a few words: ``class, cell [3]``, ``ndarray 1797 x 64``, ``int = 100``.

Only shapes, counts and short plain numbers are told. The value of a name that looks secret never is, and no
``repr`` of a user's class is called.
"""

from __future__ import annotations

import functools
import types
from pathlib import Path
from typing import Any, Literal

from distdl_jupyter.capture.notebook import cell_number
from distdl_jupyter.core import humanize
from distdl_jupyter.core.spec import looks_secret
from distdl_jupyter.worker.watch import tensors

_LONGEST_TEXT = 24
Kind = Literal["class", "function", "module", "value"]


def kind_of(value: object) -> Kind:
    """Return the kind of a value as lists show it."""
    if isinstance(value, type):
        return "class"
    if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinFunctionType) or _wrapped(value):
        return "function"
    return "module" if isinstance(value, types.ModuleType) else "value"


def detail_of(name: str, value: object) -> str:
    """Return what the value is; only its type when ``name`` looks secret."""
    kind = kind_of(value)
    if kind in ("class", "function"):
        where = place_of(value)
        return f"{kind}, {where}" if where else kind
    if kind == "module":
        return "module"
    return type(value).__name__ if looks_secret(name) else _value(value)


def place_of(value: object) -> str:
    """Return where a function or class was written: ``cell [3]``, ``train.py``, "" when unknown."""
    filename = filename_of(value)
    if not filename:
        return ""
    number = cell_number(filename)
    if number is not None:
        return f"cell [{number}]"
    return Path(filename).name if filename.endswith(".py") else ""


def filename_of(value: object) -> str:
    """Return the file name that the value's code carries, "" when it has none."""
    code = code_of(value)
    return code.co_filename if code is not None else ""


def _wrapped(value: object) -> types.FunctionType | None:
    """Return the function inside a decorated one or a partial."""
    inner = value.func if isinstance(value, functools.partial) else getattr(value, "__dict__", {}).get("__wrapped__")
    return inner if isinstance(inner, types.FunctionType) else None


def code_of(value: object) -> types.CodeType | None:
    """Return the code object of a function, or that of a class's first own method."""
    if isinstance(value, types.MethodType):
        value = value.__func__
    value = _wrapped(value) or value
    if isinstance(value, types.FunctionType):
        return value.__code__
    if isinstance(value, type):
        own = (m for m in vars(value).values() if isinstance(m, types.FunctionType))
        return next((m.__code__ for m in own if m.__module__ == value.__module__), None)
    return None


def _value(value: Any) -> str:
    name = type(value).__name__
    if value is None:
        return "None"
    if isinstance(value, bool | int | float | complex):
        return f"{name} = {_number(value)}"
    if isinstance(value, str):
        return f"str = {value!r}" if len(value) <= _LONGEST_TEXT else f"str, {humanize.plural(len(value), 'character')}"
    if isinstance(value, bytes | bytearray):
        return f"{name}, {humanize.size(len(value))}"
    if isinstance(value, list | tuple | set | frozenset | dict):
        return f"{name}, {humanize.plural(len(value), 'item')}"
    return _library_value(value, name)


def _number(value: complex) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def _library_value(value: Any, name: str) -> str:
    if (count := tensors.parameters(value)) is not None:
        return f"{name}, {humanize.plural(count, 'parameter')}"
    shape = tensors.shape(value)
    if shape is None:
        return name
    dims = f" {humanize.TIMES} ".join(str(n) for n in shape) if shape else "scalar"
    device = str(getattr(value, "device", ""))
    return f"{name} {dims}, {device}" if device.startswith("cuda") else f"{name} {dims}"
