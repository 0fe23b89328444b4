"""Finds the references of values: the parts that are sent with a value, and the notebook names that it uses.

It follows what cloudpickle sends by value (functions and classes of the notebook, closures, containers, instances), so
that the list of captured names is complete, each size belongs to the right name, and errors name the failing part.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import itertools
import operator
import sys
import types
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from cloudpickle import list_registry_pickle_by_value

#: Maximum number of searched items per container. The others are sent too; their size counts for their owner.
_MAX_ITEMS = 1000
#: Maximum number of searched parts per value.
_MAX_PARTS = 20_000
#: Prefixes of the modules of IPython's objects, which refer to all names of the notebook.
IPYTHON_PREFIXES = ("IPython.", "ipykernel.")
#: Types without parts that are sent with them.
_LEAF_TYPES = (int, float, complex, bool, str, bytes, bytearray, type(None), types.ModuleType, types.CodeType)


def is_sent_by_value(value: types.FunctionType | type) -> bool:
    """Return whether a function or class is sent by value because ranks cannot import it from a module."""
    is_named = "<locals>" not in value.__qualname__ and value.__name__ != "<lambda>"
    return not is_named or getattr(value, "__module__", None) in ("__main__", None)


def find_reloaded(value: Any) -> tuple[str, str] | None:
    """Return module and qualified name of a function or class that a reloaded module has replaced.

    Such objects remain in the notebook after ``importlib.reload`` or autoreload. Return None for all other objects,
    which pickle sends by name or by value.
    """
    if is_sent_by_value(value):
        return None
    try:
        current = operator.attrgetter(value.__qualname__)(sys.modules[value.__module__])
    except (KeyError, AttributeError):
        return None
    path = value.__module__, value.__qualname__
    if current is value or type(current) is not type(value) or (current.__module__, current.__qualname__) != path:
        return None
    # A decorated function has the name of the wrapped function, but is a different object.
    codes = [function.__code__ for function in (value, current) if isinstance(function, types.FunctionType)]
    return path if all(code.co_qualname == path[1] for code in codes) else None


def find_module(function: types.FunctionType) -> str:
    """Return the module whose globals a function uses, or "" if ranks cannot import it or it is registered by value."""
    name = str(getattr(function.__globals__.get("__spec__"), "name", ""))
    by_value = any(f"{name}.".startswith(f"{module}.") for module in list_registry_pickle_by_value())
    if by_value or name in ("", "__main__") or name != function.__globals__.get("__name__"):
        return ""
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    root = name.partition(".")[0]
    is_known = root in sys.builtin_module_names or any(finder.find_spec(root, None) is not None for finder in finders)
    return name if is_known else ""


# parts of values --------------------------------------------------------------------------------------


def iter_parts(path: str, value: object) -> Iterator[tuple[str, Any]]:
    """Yield a value and the parts that are sent with it, each with its path, nearest first.

    The global names of functions are not followed, because they are sent under their own names (``order_values``).
    """
    visited: set[int] = set()
    pending: deque[tuple[str, object]] = deque([(path, value)])
    while pending and len(visited) < _MAX_PARTS:
        path, part = pending.popleft()
        if id(part) in visited or isinstance(part, _LEAF_TYPES) or type(part).__module__.startswith(IPYTHON_PREFIXES):
            continue
        visited.add(id(part))
        if not isinstance(part, types.FunctionType | type) or is_sent_by_value(part):
            yield path, part
            pending.extend(_iter_inner_parts(path, part))


def _iter_inner_parts(path: str, value: Any) -> Iterator[tuple[str, object]]:
    match value:
        case types.FunctionType():
            yield from read_closure(value).items()
            defaults = value.__defaults__, value.__kwdefaults__
            yield from ((f"the defaults of {value.__name__}", part) for part in defaults)
            yield from _iter_attributes(value.__name__, value)
        case dict():
            for key, item in itertools.islice(value.items(), _MAX_ITEMS):
                text = repr(key)[:40] if isinstance(key, int | str | float | bool) else type(key).__name__
                yield from ((f"{path}[{text}]", item), (f"the key {text} of {path}", key))
        case list() | tuple():
            yield from ((f"{path}[{index}]", item) for index, item in enumerate(value[:_MAX_ITEMS]))
        case types.MethodType():
            yield from ((f"{path}.__self__", value.__self__), (f"{path}.__func__", value.__func__))
        case _:
            yield from _iter_attributes(value.__name__ if isinstance(value, type) else path, value)
            yield from ((f"a part of {path}", part) for part in gc.get_referents(value)[:_MAX_ITEMS])


def _iter_attributes(path: str, value: Any) -> Iterator[tuple[str, object]]:
    for name, part in getattr(value, "__dict__", {}).items():
        if name in ("_modules", "_parameters", "_buffers") and isinstance(part, dict):  # attributes of a torch module
            yield from ((f"{path}.{key}", inner) for key, inner in part.items())
        yield f"{path}.{name}", part


def read_closure(function: types.FunctionType) -> dict[str, object]:
    """Return the closure variables of a function, except unset ones."""
    variables = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            variables[name] = cell.cell_contents
    return variables


def find_used_names(value: object, namespace: Mapping[str, Any]) -> list[str]:
    """Return the names of ``namespace`` that ``value`` needs at run time, in order of discovery."""
    names: dict[str, None] = {}
    for _, part in iter_parts("", value):
        name = part.__name__ if isinstance(part, types.FunctionType | type) else ""
        if name and namespace.get(name) is part:
            names[name] = None
        if isinstance(part, types.FunctionType) and part.__globals__ is namespace:
            instructions = iter_instructions(part.__code__, (*READ_OPS, *WRITE_OPS))
            names.update(dict.fromkeys(instruction.argval for instruction in instructions))
    return list(names)


def order_values(names: Iterable[str], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of ``names`` and their dependencies, each after those that it needs."""
    ordered: dict[str, Any] = {}
    visited: set[str] = set()

    def visit(name: str) -> None:
        if name not in visited and name in namespace:
            visited.add(name)
            for dependency in find_used_names(namespace[name], namespace):
                visit(dependency)
            ordered[name] = namespace[name]

    for name in names:
        visit(name)
    return ordered


# compiled code ----------------------------------------------------------------------------------------

READ_OPS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
WRITE_OPS = ("STORE_GLOBAL", "DELETE_GLOBAL")
#: The name of the code that evaluates annotations (Python 3.14).
ANNOTATIONS_NAME = "__annotate__"


def iter_code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and all those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from iter_code_objects(constant)


def iter_instructions(code: types.CodeType, operations: Collection[str]) -> Iterator[dis.Instruction]:
    """Yield the instructions of a code object and those inside it that do one of these operations."""
    for part in iter_code_objects(code):
        yield from (step for step in dis.get_instructions(part) if step.opname in operations)


def find_imports(code: types.CodeType) -> list[str]:
    """Return the top-level modules that a code object imports."""
    names = (step.argval for step in iter_instructions(code, ("IMPORT_NAME",)))
    return list(dict.fromkeys(name.partition(".")[0] for name in names if name))


def find_reads(
    compiled: types.CodeType, skipped: Collection[int] = (), *, with_annotations: bool = False
) -> dict[str, int]:
    """Return the global names that compiled code reads, each with its first line outside the skipped ones.

    Since Python 3.14, annotations are evaluated only on request, for example by a dataclass (PEP 649).
    """
    lines: dict[str, int] = {}
    for part in iter_code_objects(compiled):
        if part.co_name == ANNOTATIONS_NAME and not with_annotations:
            continue
        for step in dis.get_instructions(part):
            line = (step.positions and step.positions.lineno) or part.co_firstlineno
            if step.opname in READ_OPS and line not in skipped:
                lines[step.argval] = min(line, lines.get(step.argval, line))
    return lines
