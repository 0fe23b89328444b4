"""References of values: the notebook names that functions and classes use, and the parts sent with a value.

Follows what cloudpickle sends by value (functions and classes of the notebook, closures, partials, bound methods,
instances, small containers), so that the list of captured names is complete and sizes are attributed to the right name.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import operator
import sys
import types
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from cloudpickle.cloudpickle import list_registry_pickle_by_value

#: Containers larger than this count as data and are not searched for functions.
_LARGEST_CONTAINER = 1000
#: The search stops after this many parts; missed parts are still sent, but their size counts for their owner.
_MOST_PARTS = 20_000
_PLAIN = (int, float, complex, bool, str, bytes, bytearray, type(None))


def travels_by_value(value: types.FunctionType | type) -> bool:
    """Return whether a function or class is sent by value.

    That is the case if ranks cannot import it from a module, or if its module or package is registered with
    ``cloudpickle.register_pickle_by_value``.
    """
    module = getattr(value, "__module__", None)
    if module in ("__main__", None) or "<locals>" in value.__qualname__ or value.__name__ == "<lambda>":
        return True
    return _is_registered(module)


def _is_registered(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in list_registry_pickle_by_value())


def path_in_module(value: Any) -> tuple[str, str] | None:
    """Return module and qualified name of a function or class that a reloaded module has replaced.

    Such objects remain in the notebook after ``importlib.reload`` or autoreload. Return None for all others, which
    pickle sends by name or by value.
    """
    if travels_by_value(value):
        return None
    try:
        current = operator.attrgetter(value.__qualname__)(sys.modules[value.__module__])
    except (KeyError, AttributeError):
        return None
    path = value.__module__, value.__qualname__
    same_path = (getattr(current, "__module__", None), getattr(current, "__qualname__", None)) == path
    if current is value or type(current) is not type(value) or not same_path:
        return None
    # A decorated function has the name of the wrapped function, but is a different object.
    functions = [candidate for candidate in (value, current) if isinstance(candidate, types.FunctionType)]
    return path if all(candidate.__code__.co_qualname == value.__qualname__ for candidate in functions) else None


def module_of_globals(function: types.FunctionType) -> str:
    """Return the module whose globals a function uses, "" if ranks cannot import it or it is registered by value."""
    spec = function.__globals__.get("__spec__")
    name = getattr(spec, "name", None)
    if not name or name != function.__globals__.get("__name__") or name == "__main__" or _is_registered(name):
        return ""
    return name if _can_be_imported(name.partition(".")[0]) else ""


def _can_be_imported(name: str) -> bool:
    return name in sys.builtin_module_names or any(
        finder.find_spec(name, None) is not None for finder in sys.meta_path if hasattr(finder, "find_spec")
    )


def is_of_notebook(function: types.FunctionType) -> bool:
    """Return whether a function was defined in the notebook or the main program."""
    return function.__module__ == "__main__"


def names_used(value: object, namespace: Mapping[str, Any]) -> list[str]:
    """Return the names of ``namespace`` that ``value`` needs at run time, in order of discovery."""
    names: dict[str, None] = {}
    visited: set[int] = set()
    pending: deque[object] = deque([value])
    while pending and len(visited) < _MOST_PARTS:
        part = pending.popleft()
        if isinstance(part, (*_PLAIN, types.ModuleType)) or id(part) in visited:
            continue
        visited.add(id(part))
        if isinstance(part, types.FunctionType) and part.__globals__ is namespace:
            names.update(dict.fromkeys(globals_of(part.__code__)))
        name = part.__name__ if isinstance(part, types.FunctionType | type) else ""
        if name and namespace.get(name) is part:
            names[name] = None
        if isinstance(part, _CONTAINERS) and len(part) > _LARGEST_CONTAINER:
            continue
        parts = parts_of("", part)
        if parts is None:
            parts = [("", type(part)), *_entries("", dict(getattr(part, "__dict__", {})))]
        pending.extend(inner for _, inner in parts)
    return list(names)


def in_order(names: Iterable[str], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of ``names`` and their dependencies, each after those that it needs."""
    ordered: dict[str, Any] = {}
    visited: set[str] = set()

    def visit(name: str) -> None:
        if name not in visited and name in namespace:
            visited.add(name)
            for needed in names_used(namespace[name], namespace):
                visit(needed)
            ordered[name] = namespace[name]

    for name in names:
        visit(name)
    return ordered


# parts of values that are sent with them --------------------------------------------------------------

_CONTAINERS = (dict, list, tuple, set, frozenset)
_MOST_ITEMS = 2000


def parts_of(path: str, value: object) -> Iterable[tuple[str, object]] | None:
    """Return the parts that are sent with a function, class or container, with their paths; None for other values."""
    match value:
        case types.FunctionType():
            return _parts_of_function(value) if travels_by_value(value) else ()
        case type():
            return _parts_of_class(path, value) if travels_by_value(value) else ()
        case types.MethodType():
            return ((f"{path}.__func__", value.__func__), (f"{path}.__self__", value.__self__))
        case staticmethod() | classmethod():
            return ((path, value.__func__),)
        case property():
            return [(path, function) for function in (value.fget, value.fset, value.fdel) if function is not None]
        case functools.partial():
            return ((path, value.func), (f"{path}.args", value.args), (f"{path}.keywords", value.keywords))
        case dict():
            return _entries(path, value)
        case list() | tuple():
            return ((f"{path}[{index}]", item) for index, item in enumerate(value[:_MOST_ITEMS]))
        case set() | frozenset():
            return ((f"an item of {path}", item) for item in list(value)[:_MOST_ITEMS])
    return None


def _entries(path: str, value: dict[Any, Any]) -> Iterator[tuple[str, object]]:
    for key, item in list(value.items())[:_MOST_ITEMS]:
        yield f"{path}[{short_key(key)}]", item
        yield f"the key {short_key(key)} of {path}", key


def short_key(key: object) -> str:
    """Return a key for display in a path, or its type if it is not a plain value."""
    return repr(key)[:40] if isinstance(key, int | str | float | bool) else type(key).__name__


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    yield from closure_of(function).items()
    yield f"the defaults of {function.__name__}", function.__defaults__
    yield f"the defaults of {function.__name__}", function.__kwdefaults__
    yield from ((f"{function.__name__}.{key}", part) for key, part in vars(function).items())


def closure_of(function: types.FunctionType) -> dict[str, object]:
    """Return the closure variables of a function, except unset ones."""
    variables = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            variables[name] = cell.cell_contents
    return variables


def _parts_of_class(path: str, value: type) -> Iterator[tuple[str, object]]:
    for key, part in vars(value).items():
        if key not in ("__dict__", "__weakref__", "__doc__", "__module__"):
            yield f"{path}.{key}", part
    yield from ((base.__name__, base) for base in value.__bases__ if base is not object)


# compiled code ----------------------------------------------------------------------------------------

READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
WRITES = ("STORE_GLOBAL", "DELETE_GLOBAL")


def code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and all those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


def instructions(code: types.CodeType, operations: Collection[str]) -> Iterator[dis.Instruction]:
    """Yield the instructions of a code object and those inside it that do one of these operations."""
    for part in code_objects(code):
        yield from (step for step in dis.get_instructions(part) if step.opname in operations)


def globals_of(code: types.CodeType) -> list[str]:
    """Return the global names that a code object and those inside it read or write, in order."""
    return list(dict.fromkeys(step.argval for step in instructions(code, (*READS, *WRITES))))


def imports_of(code: types.CodeType) -> list[str]:
    """Return the top-level modules that a code object imports."""
    names = (step.argval for step in instructions(code, ("IMPORT_NAME",)))
    return list(dict.fromkeys(name.partition(".")[0] for name in names if name))


def reads_of(compiled: types.CodeType, skipped: Collection[int] = ()) -> dict[str, int]:
    """Return the global names that compiled code reads, each with its first line outside the skipped ones."""
    lines: dict[str, int] = {}
    for part in code_objects(compiled):
        for step in dis.get_instructions(part) if part.co_name != "__annotate__" else ():
            line = (step.positions and step.positions.lineno) or part.co_firstlineno
            if step.opname in READS and line not in skipped:
                lines[step.argval] = min(line, lines.get(step.argval, line))
    return lines
