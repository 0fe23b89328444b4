"""The list of captured names for display, and the sources of captured code for tracebacks and checks."""

from __future__ import annotations

import inspect
import textwrap
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter.capture.modules import LocalModule, make_installed_test
from distdl_jupyter.capture.notebook import CodeLocation, find_cell_number, read_code_text
from distdl_jupyter.capture.pickler import PickleReport
from distdl_jupyter.capture.references import is_sent_by_value
from distdl_jupyter.core import humanize
from distdl_jupyter.core.source import CodeText
from distdl_jupyter.core.spec import Captured
from distdl_jupyter.worker.hooks import frameworks
from distdl_jupyter.worker.secret_patterns import looks_secret


def is_reference(value: object) -> bool:
    """Return whether a value is sent by name: a module, or a function or class that a rank can import."""
    if isinstance(value, types.ModuleType):
        return True
    if isinstance(value, types.FunctionType | type):
        return not is_sent_by_value(value)
    return isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType | None)


def describe_fields(
    values: Mapping[str, object],
    report: PickleReport,
    modules: Sequence[LocalModule],
    location: CodeLocation,
    *,
    texts: Iterable[CodeText] = (),
    imports: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the fields of ``CapturedCode`` that describe the names and modules that are sent with it.

    ``texts`` is the source of the code itself; ``imports`` are the modules that it imports.
    """
    described = [(name, *_describe(name, value)) for name, value in values.items() if not is_reference(value)]
    captured = [Captured(name=name, kind=kind, detail=text, size=report.sizes[name]) for name, kind, text in described]
    captured.sort(key=lambda variable: variable.kind)  # class, function, value
    is_installed = make_installed_test()
    functions = [f for f in report.functions.values() if not is_installed(f.__code__.co_filename)]
    function_texts = [text for f in functions if (text := read_function_text(f, location)) is not None]
    references: dict[str, Any] = {name: value for name, value in values.items() if is_reference(value)}
    return {
        "captured": (*captured, *(module.captured for module in modules)),
        "modules": tuple(modules),
        "texts": (*texts, *dict.fromkeys(function_texts), *read_module_texts(modules)),
        "aliases": {
            name: value.__name__ if isinstance(value, types.ModuleType) else f"{value.__module__}.{value.__qualname__}"
            for name, value in references.items()
        },
        "imports": frozenset(name.partition(".")[0] for name in (*report.modules, *imports)),
        "names_on_gpu": tuple(report.names_on_gpu),
        "numbers": {k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)},
    }


def collect_sources(report: PickleReport, location: CodeLocation) -> dict[str, dict[str, Any]]:
    """Return the notebook's source of every function that is sent by value, by the file name of its code object.

    Existing files are omitted, because tracebacks can read them.
    """
    sources: dict[str, dict[str, Any]] = {}
    for filename in {function.__code__.co_filename for function in report.functions.values()}:
        text = read_code_text(filename, location)
        if text is not None and (text.cell is not None or not Path(filename).exists()):
            sources[filename] = text.to_json()
    return sources


def read_function_text(function: types.FunctionType, location: CodeLocation) -> CodeText | None:
    """Return the text of a function, or None if it is unknown."""
    text, first_line = read_code_text(function.__code__.co_filename, location), function.__code__.co_firstlineno
    if text is None:
        return None
    block = "".join(inspect.getblock(text.text.splitlines(keepends=True)[first_line - 1 :]))
    return CodeText(textwrap.dedent(block), text.label, text.cell, text.first_line + first_line - 1)


def read_module_texts(modules: Iterable[LocalModule]) -> list[CodeText]:
    """Return the text of every Python file that is sent with the job."""
    return [CodeText(text, path, is_module=True) for module in modules for path, text in module.iter_texts()]


# short descriptions of values --------------------------------------------------------------------

_MAX_LENGTH = 24


def _describe(name: str, value: Any) -> tuple[str, str]:
    """Return kind and description of a value; the description is only its type if ``name`` looks secret."""
    if isinstance(value, type):
        kind, functions = "class", [part for part in vars(value).values() if isinstance(part, types.FunctionType)]
    elif isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        kind, functions = "function", [value] if isinstance(value, types.FunctionType) else []
    else:
        return "value", type(value).__name__ if looks_secret(name) else _describe_value(value)
    numbers = (find_cell_number(function.__code__.co_filename) for function in functions)
    number = next((number for number in numbers if number is not None), None)
    return kind, kind if number is None else f"{kind}, cell [{number}]"


def _describe_value(value: Any) -> str:
    name = type(value).__name__
    if value is None:
        return "None"
    if isinstance(value, bool | int | float | complex):
        text = repr(value)
        return f"{name} = {text if len(text) <= _MAX_LENGTH else f'{text[: _MAX_LENGTH - 1]}…'}"
    if isinstance(value, str):
        return f"str = {value!r}" if len(value) <= _MAX_LENGTH else f"str, {humanize.plural(len(value), 'character')}"
    if isinstance(value, bytes | bytearray):
        return f"{name}, {humanize.size(len(value))}"
    if isinstance(value, list | tuple | set | frozenset | dict):
        return f"{name}, {humanize.plural(len(value), 'item')}"
    if (count := frameworks.count_parameters(value)) is not None:
        return f"{name}, {humanize.plural(count, 'parameter')}"
    shape = frameworks.get_shape(value)
    if shape is None:
        return name
    dims = f" {humanize.TIMES} ".join(str(length) for length in shape) if shape else "scalar"
    device = str(getattr(value, "device", ""))
    return f"{name} {dims}, {device}" if device.startswith("cuda") else f"{name} {dims}"
