"""Which notebook names the captured functions and classes use in turn.

Follows what cloudpickle ships by value (functions and classes of the notebook, closures, partials, bound methods,
instances, small containers), so that the list of captured names is honest and each name's size is its own.
"""

from __future__ import annotations

import dis
import functools
import operator
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cloudpickle.cloudpickle import list_registry_pickle_by_value

#: Containers larger than this are data, not places where functions are kept.
_LARGEST_CONTAINER = 1000
#: The search stops after this many parts; what it misses still travels, only its size counts with its owner.
_MOST_PARTS = 20_000
_GLOBAL_OPS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL")
_PLAIN = (int, float, complex, bool, str, bytes, bytearray, type(None))


def globals_of(code: types.CodeType) -> list[str]:
    """Return the global names that a code object and those inside it read or write, in order."""
    found = [i.argval for i in dis.get_instructions(code) if i.opname in _GLOBAL_OPS]
    for inner in _inner(code):
        found.extend(globals_of(inner))
    return list(dict.fromkeys(found))


def imports_of(code: types.CodeType) -> list[str]:
    """Return the top-level names of the modules that a code object imports when it runs."""
    found = [i.argval.partition(".")[0] for i in dis.get_instructions(code) if i.opname == "IMPORT_NAME" and i.argval]
    for inner in _inner(code):
        found.extend(imports_of(inner))
    return list(dict.fromkeys(found))


def _inner(code: types.CodeType) -> list[types.CodeType]:
    return [const for const in code.co_consts if isinstance(const, types.CodeType)]


def travels_by_value(value: types.FunctionType | type) -> bool:
    """Say whether a function or class is shipped whole: no module that a rank can import holds it, or its user said so.

    The user says so with ``cloudpickle.register_pickle_by_value``, of a module or of a package with all its modules.
    """
    module = getattr(value, "__module__", None)
    if module in ("__main__", None) or "<locals>" in value.__qualname__ or value.__name__ == "<lambda>":
        return True
    return _is_registered(module)


def _is_registered(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in list_registry_pickle_by_value())


def path_in_module(value: Any) -> tuple[str, str] | None:
    """Return module and qualified name of a function or class whose module now holds a newer object of that name.

    A module that is imported again (``importlib.reload``, autoreload) leaves such objects in the notebook. None for all
    others: pickle names these itself, or they travel by value.
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
    # A decorated function has the name of the function inside it, and is another one.
    functions = [one for one in (value, current) if isinstance(one, types.FunctionType)]
    return path if all(one.__code__.co_qualname == value.__qualname__ for one in functions) else None


def module_of_globals(function: types.FunctionType) -> str:
    """Return the module whose names a function reads, "" when ranks cannot import it or its user ships it by value."""
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
    """Say whether a function was written in the notebook, or in the program that runs."""
    return function.__module__ == "__main__"


def names_used(value: object, namespace: Mapping[str, Any]) -> list[str]:
    """Return the names of ``namespace`` that ``value`` needs at run time, in order of discovery."""
    found: dict[str, None] = {}
    seen: set[int] = set()
    pending: deque[object] = deque([value])
    while pending and len(seen) < _MOST_PARTS:
        part = pending.popleft()
        if isinstance(part, _PLAIN) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, types.FunctionType) and part.__globals__ is namespace:
            found.update(dict.fromkeys(globals_of(part.__code__)))
        name = part.__name__ if isinstance(part, types.FunctionType | type) else ""
        if name and namespace.get(name) is part:
            found[name] = None
        pending.extend(parts_of(part))
    return list(found)


def parts_of(value: object) -> Iterator[object]:
    """Yield what travels inside a value, as far as functions can be kept there."""
    for kind, parts in _PARTS:
        if isinstance(value, kind):
            yield from parts(value)
            return
    yield type(value)
    yield from _items(getattr(value, "__dict__", {}))


def _parts_of_class(value: type) -> Iterator[object]:
    if travels_by_value(value):
        yield from value.__bases__
        yield from vars(value).values()


def _parts_of_function(function: types.FunctionType) -> Iterator[object]:
    if not travels_by_value(function):
        return
    yield from closure_of(function).values()
    yield function.__defaults__
    yield function.__kwdefaults__
    yield from vars(function).values()


def closure_of(function: types.FunctionType) -> dict[str, object]:
    """Return the variables that a function took along from the function around it; unset ones are left out."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def _items(value: Any) -> Iterator[object]:
    if isinstance(value, Mapping):
        value = value.values()
    if len(value) <= _LARGEST_CONTAINER:
        yield from value


_PARTS: tuple[tuple[type | types.UnionType, Callable[[Any], Iterable[object]]], ...] = (
    (types.ModuleType, lambda _: ()),
    (types.FunctionType, _parts_of_function),
    (type, _parts_of_class),
    (types.MethodType, lambda m: (m.__func__, m.__self__)),
    (staticmethod | classmethod, lambda m: (m.__func__,)),
    (property, lambda p: (p.fget, p.fset, p.fdel)),
    (functools.partial, lambda p: (p.func, p.args, p.keywords)),
    (dict | list | tuple | set | frozenset, _items),
)


def in_order(names: list[str], namespace: Mapping[str, Any]) -> list[str]:
    """Return ``names`` and all names that they need in turn, each one behind those that it needs itself."""
    ordered: list[str] = []
    visited: set[str] = set()

    def visit(name: str) -> None:
        if name in visited or name not in namespace:
            return
        visited.add(name)
        for needed in names_used(namespace[name], namespace):
            visit(needed)
        ordered.append(name)

    for name in names:
        visit(name)
    return ordered
