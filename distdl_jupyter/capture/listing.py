"""The list of captured names for display, and the sources of captured code for tracebacks and checks."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import textwrap
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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

#: Number of items sampled to estimate the size of a container.
_SAMPLE = 200


def is_reference(value: object) -> bool:
    """Return whether a value is sent by name: a module, or a function or class that a rank can import."""
    if isinstance(value, types.ModuleType):
        return True
    if isinstance(value, types.FunctionType | type):
        return not travels_by_value(value)
    return isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType | None)


def captured_list(
    values: Iterable[tuple[str, object]], sizes: Mapping[str, int], modules: Iterable[LocalModule]
) -> tuple[Captured, ...]:
    """Return the names that are sent by value, then the modules from the notebook's folder."""
    described = [(name, *_describe(name, value)) for name, value in values if not is_reference(value)]
    variables = [Captured(name=name, kind=kind, detail=text, size=sizes[name]) for name, kind, text in described]
    variables.sort(key=lambda variable: variable.kind)  # class, function, value
    shipped = [Captured(name=m.label, kind="module", detail=m.detail, size=m.size) for m in modules]
    return tuple(variables + shipped)


def numbers_of(values: Iterable[tuple[str, object]]) -> dict[str, float]:
    """Return the plain numbers among the values."""
    return {k: v for k, v in values if isinstance(v, int | float) and not isinstance(v, bool)}


def sources_of(dump: PickleReport, location: CodeLocation) -> dict[str, CodeText]:
    """Return the notebook's source of every function that is sent by value, by the file name of its code object.

    Existing files are omitted, because tracebacks can read them.
    """
    sources: dict[str, CodeText] = {}
    for filename in {function.__code__.co_filename for function in dump.functions.values()}:
        text = code_text(filename, location)
        if text is not None and (text.cell is not None or not Path(filename).exists()):
            sources[filename] = text
    return sources


def texts_of(dump: PickleReport, location: CodeLocation) -> list[CodeText]:
    """Return the text of each function that is sent by value, except those of installed packages."""
    is_installed = installed()
    functions = [f for f in dump.functions.values() if not is_installed(f.__code__.co_filename)]
    texts = (function_text(function, location) for function in functions)
    return list({(text.label, text.first_line): text for text in texts if text is not None}.values())


def function_text(function: types.FunctionType, location: CodeLocation) -> CodeText | None:
    """Return the text of a function, None if unknown."""
    text, first = code_text(function.__code__.co_filename, location), function.__code__.co_firstlineno
    if text is None:
        return None
    block = "".join(inspect.getblock(text.text.splitlines(keepends=True)[first - 1 :]))
    return CodeText(textwrap.dedent(block), text.label, text.cell, text.first_line + first - 1)


def aliases_of(values: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Return the full names of all modules, functions and classes that a rank imports, by their name in the code."""
    aliases: dict[str, str] = {}
    for name, value in values:
        if isinstance(value, types.ModuleType):
            aliases[name] = value.__name__
        elif is_reference(value):
            aliases[name] = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', name)}"
    return aliases


def announce_large(values: Mapping[str, object], unit: str) -> None:
    """Print a message about large values to standard error before they are pickled, which is slow."""
    for name, value in values.items():
        size = 0 if is_reference(value) else _estimated_size(value)
        if size >= LARGE:
            remedy = f"load it inside the {unit}, or have it sent to each node once with data="
            print(f"`{name}` is {humanize.size(size)} and is sent with the job: {remedy}.", file=sys.stderr, flush=True)  # noqa: T201


def _estimated_size(value: Any, depth: int = 3) -> int:
    """Estimate the bytes of arrays, tensors and strings in a value from a sample of its items."""
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
    """Return the text of every Python file that is sent with the job."""
    return [CodeText(text, path, beside=True) for module in modules for path, text in module.texts()]


# short descriptions of values --------------------------------------------------------------------

_LONGEST_TEXT = 24


def _describe(name: str, value: object) -> tuple[str, str]:
    """Return kind and description of a value; the description is only its type if ``name`` looks secret."""
    code = _code_of(value)
    if isinstance(value, type):
        kind = "class"
    elif code is not None or isinstance(value, types.BuiltinFunctionType | types.MethodType):
        kind = "function"
    else:
        return "value", type(value).__name__ if looks_secret(name) else _value(value)
    number = cell_number(code.co_filename) if code is not None else None
    if code is None or (number is None and not code.co_filename.endswith(".py")):
        return kind, kind
    return kind, f"{kind}, {f'cell [{number}]' if number is not None else Path(code.co_filename).name}"


def _code_of(value: object) -> types.CodeType | None:
    """Return the code object of a function (unwrapped if decorated) or of the first method that a class defines."""
    if isinstance(value, type):
        methods = (m for m in vars(value).values() if isinstance(m, types.FunctionType))
        return next((m.__code__ for m in methods if m.__module__ == value.__module__), None)
    function = value.__func__ if isinstance(value, types.MethodType) else value
    inner = value.func if isinstance(value, functools.partial) else getattr(function, "__dict__", {}).get("__wrapped__")
    function = inner if isinstance(inner, types.FunctionType) else function
    return function.__code__ if isinstance(function, types.FunctionType) else None


def _value(value: Any) -> str:
    name = type(value).__name__
    if value is None:
        return "None"
    if isinstance(value, bool | int | float | complex):
        text = repr(value)
        return f"{name} = {text if len(text) <= _LONGEST_TEXT else f'{text[: _LONGEST_TEXT - 1]}…'}"
    if isinstance(value, str):
        return f"str = {value!r}" if len(value) <= _LONGEST_TEXT else f"str, {humanize.plural(len(value), 'character')}"
    if isinstance(value, bytes | bytearray):
        return f"{name}, {humanize.size(len(value))}"
    if isinstance(value, list | tuple | set | frozenset | dict):
        return f"{name}, {humanize.plural(len(value), 'item')}"
    return _library_value(value, name)


def _library_value(value: Any, name: str) -> str:
    if (count := tensors.parameters(value)) is not None:
        return f"{name}, {humanize.plural(count, 'parameter')}"
    shape = tensors.shape(value)
    if shape is None:
        return name
    dims = f" {humanize.TIMES} ".join(str(n) for n in shape) if shape else "scalar"
    device = str(getattr(value, "device", ""))
    return f"{name} {dims}, {device}" if device.startswith("cuda") else f"{name} {dims}"
