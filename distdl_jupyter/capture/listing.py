"""The list of what travels, as people are shown it, and the sources of captured code for tracebacks and checks."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import textwrap
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from distdl_jupyter.capture.modules import LocalModule, installed
from distdl_jupyter.capture.notebook import CodeLocation, cell_number, code_text
from distdl_jupyter.capture.pickler import PickleReport
from distdl_jupyter.capture.references import travels_by_value
from distdl_jupyter.core import humanize
from distdl_jupyter.core.findings import LARGE
from distdl_jupyter.core.source import CodeText
from distdl_jupyter.core.spec import Captured
from distdl_jupyter.worker.hooks import tensors
from distdl_jupyter.worker.secret_patterns import looks_secret

#: Items of a container whose sizes stand for all of them.
_SAMPLE = 200
_ORDER = ("class", "function", "value", "module")


def is_reference(value: object) -> bool:
    """Say whether only a name travels for this value: modules, and functions and classes that a rank can import."""
    if isinstance(value, types.ModuleType):
        return True
    if isinstance(value, types.FunctionType | type):
        return not travels_by_value(value)
    return isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType | None)


def captured_list(
    values: Iterable[tuple[str, object]], sizes: Mapping[str, int], modules: Iterable[LocalModule]
) -> tuple[Captured, ...]:
    """Return what travels by value, then the modules beside the notebook."""
    variables = [
        Captured(name=name, kind=kind_of(value), detail=detail_of(name, value), size=sizes[name])
        for name, value in values
        if not is_reference(value)
    ]
    variables.sort(key=lambda variable: _ORDER.index(variable.kind))
    shipped = [Captured(name=m.label, kind="module", detail=m.detail, size=m.size) for m in modules]
    return tuple(variables + shipped)


def numbers_of(values: Iterable[tuple[str, object]]) -> dict[str, float]:
    """Return the plain numbers among the values."""
    return {k: v for k, v in values if isinstance(v, int | float) and not isinstance(v, bool)}


def sources_of(dump: PickleReport, location: CodeLocation) -> dict[str, CodeText]:
    """Return the notebook's source behind every function that is shipped whole, by the file name that its code carries.

    Real files are left out: a traceback finds them by itself.
    """
    sources: dict[str, CodeText] = {}
    for filename in {function.__code__.co_filename for function in dump.functions.values()}:
        text = code_text(filename, location)
        if text is not None and (text.cell is not None or not Path(filename).exists()):
            sources[filename] = text
    return sources


def texts_of(dump: PickleReport, location: CodeLocation) -> list[CodeText]:
    """Return the text of every shipped function by itself; functions of installed packages are left out."""
    texts: dict[tuple[str, int], CodeText] = {}
    is_installed = installed()
    for function in dump.functions.values():
        if is_installed(function.__code__.co_filename):
            continue
        text = code_text(function.__code__.co_filename, location)
        first = function.__code__.co_firstlineno
        if text is not None:
            block = "".join(inspect.getblock(text.text.splitlines(keepends=True)[first - 1 :]))
            texts[text.label, first] = CodeText(
                textwrap.dedent(block), text.label, text.cell, text.first_line + first - 1
            )
    return list(texts.values())


def aliases_of(values: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Return the full name of each module, function and class that a rank imports, by the name it has in the code."""
    aliases: dict[str, str] = {}
    for name, value in values:
        if isinstance(value, types.ModuleType):
            aliases[name] = value.__name__
        elif is_reference(value):
            aliases[name] = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', name)}"
    return aliases


def announce_large(values: Mapping[str, object], unit: str) -> None:
    """Name large values on standard error before they are pickled, which takes long."""
    for name, value in values.items():
        size = 0 if is_reference(value) else _estimated_size(value)
        if size >= LARGE:
            remedy = f"load it inside the {unit}, or have it sent to each node once with data="
            print(f"`{name}` is {humanize.size(size)} and is sent with the job: {remedy}.", file=sys.stderr, flush=True)  # noqa: T201


def _estimated_size(value: Any, depth: int = 3) -> int:
    """Return the bytes of arrays, tensors and texts in a value without going through all of it."""
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if tensors.parameters(value) is not None:
        return sum(int(parameter.nbytes) for parameter in value.parameters())
    if tensors.shape(value) is not None:
        usage = value.memory_usage() if hasattr(value, "memory_usage") else getattr(value, "nbytes", 0)
        return int(usage.sum() if hasattr(usage, "sum") else usage)
    parts = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list | tuple | set | frozenset):
        parts = getattr(value, "__dict__", {}).values() if not isinstance(value, type | types.FunctionType) else ()
    sample = list(itertools.islice(parts, _SAMPLE)) if depth else []
    return sum(_estimated_size(part, depth - 1) for part in sample) * len(parts) // max(len(sample), 1)


def imports_of(dump: PickleReport, *more: Iterable[str]) -> frozenset[str]:
    """Return the top-level modules that the job's code needs."""
    names = [*dump.modules, *(name for names in more for name in names)]
    return frozenset(name.partition(".")[0] for name in names)


def module_texts(modules: Iterable[LocalModule]) -> list[CodeText]:
    """Return every Python file that is shipped."""
    return [CodeText(text, path, beside=True) for module in modules for path, text in module.texts()]


# what a value is, in a few words --------------------------------------------------------------------

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
        methods = (m for m in vars(value).values() if isinstance(m, types.FunctionType))
        return next((m.__code__ for m in methods if m.__module__ == value.__module__), None)
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
