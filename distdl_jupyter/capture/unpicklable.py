"""Where inside a value the thing sits that cannot be pickled: ``model.logger.handlers[0].stream: TextIOWrapper``.

The value's parts are tried one by one, the failing one is opened in turn, until a part fails of which no part fails.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from distdl_jupyter.capture.pickler import why_not
from distdl_jupyter.capture.references import closure_of, globals_of, travels_by_value

#: The search stops here and names what it has found so far. Every step pickles a part once more.
_SECONDS = 5.0
_MOST_ITEMS = 2000
_BASIC = (int, float, complex, bool, str, bytes, bytearray, type(None), types.ModuleType)


@dataclass(frozen=True, slots=True)
class Unpicklable:
    """The innermost part that fails, with the path to it and the pickler's own words."""

    path: str
    value: object
    error: Exception

    @property
    def type_name(self) -> str:
        """Name of the part's type."""
        return type(self.value).__name__


def find(name: str, value: object, error: Exception, clock: Callable[[], float] = time.monotonic) -> Unpicklable:
    """Return the part of ``value`` that makes pickling fail with ``error``."""
    ends = clock() + _SECONDS
    path, seen = name, {id(value)}
    while clock() < ends:
        step = _failing_part(path, value, seen, lambda: clock() < ends)
        if step is None:
            break
        path, value, error = step
        seen.add(id(value))
    return Unpicklable(path, value, error)


def _failing_part(
    path: str, value: object, seen: set[int], in_time: Callable[[], bool]
) -> tuple[str, object, Exception] | None:
    for part_path, part in parts(path, value):
        if id(part) in seen or isinstance(part, _BASIC):
            continue
        error = why_not(part)
        if error is not None:
            return part_path, part, error
        if not in_time():
            return None
    return None


def parts(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the parts that travel with a value, each with its path."""
    if isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, type):
        yield from _parts_of_class(path, value)
    elif isinstance(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, dict):
        yield from _entries(path, value)
    elif isinstance(value, list | tuple):
        yield from ((f"{path}[{n}]", item) for n, item in enumerate(value[:_MOST_ITEMS]))
    elif isinstance(value, set | frozenset):
        yield from ((f"an item of {path}", item) for item in list(value)[:_MOST_ITEMS])
    else:
        yield from _parts_of_instance(path, value)


def _entries(path: str, value: dict[Any, Any]) -> Iterator[tuple[str, object]]:
    for key, item in list(value.items())[:_MOST_ITEMS]:
        yield f"{path}[{_short(key)}]", item
        yield f"the key {_short(key)} of {path}", key


def _short(key: object) -> str:
    return repr(key)[:40] if isinstance(key, int | str | float | bool) else type(key).__name__


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    if not travels_by_value(function):
        return
    space = function.__globals__
    # A global or an outer variable has a name of its own in the notebook: the path starts anew with it.
    yield from ((name, space[name]) for name in globals_of(function.__code__) if name in space)
    yield from closure_of(function).items()
    yield f"the defaults of {function.__name__}", function.__defaults__
    yield f"the defaults of {function.__name__}", function.__kwdefaults__
    yield from ((f"{function.__name__}.{key}", part) for key, part in vars(function).items())


def _parts_of_class(path: str, value: type) -> Iterator[tuple[str, object]]:
    if not travels_by_value(value):
        return
    for key, part in vars(value).items():
        if isinstance(part, property):
            yield from ((f"{path}.{key}", f) for f in (part.fget, part.fset) if f is not None)
        elif key not in ("__dict__", "__weakref__", "__doc__", "__module__"):
            yield f"{path}.{key}", getattr(part, "__func__", part)
    yield from ((base.__name__, base) for base in value.__bases__ if base is not object)


def _parts_of_instance(path: str, value: object) -> Iterator[tuple[str, object]]:
    try:
        reduced = value.__reduce_ex__(5)
    except Exception:  # noqa: BLE001 - the value itself is the culprit when it cannot even say what it is made of
        return
    if isinstance(reduced, str):
        return
    _, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    yield from _state(path, value, state)
    yield from ((f"{path}[{n}]", item) for n, item in zip(range(_MOST_ITEMS), items or (), strict=False))
    yield from ((f"{path}[{_short(k)}]", v) for _, (k, v) in zip(range(_MOST_ITEMS), pairs or (), strict=False))
    yield from ((_argument_path(path, value, part), part) for part in arguments)


def _argument_path(path: str, value: object, part: object) -> str:
    own = getattr(value, "__dict__", {})
    name = next((key for key, held in own.items() if held is part), None)
    return f"{path}.{name}" if name else f"a part of {path}"


def _state(path: str, value: object, state: Any) -> Iterator[tuple[str, object]]:
    if isinstance(state, tuple) and len(state) == 2 and all(isinstance(s, dict | type(None)) for s in state):
        for half in state:
            yield from _state(path, value, half)
    elif isinstance(state, dict):
        for key, part in state.items():
            yield from _attribute(path, value, key, part)
    elif state is not None:
        yield f"the state of {path}", state


def _attribute(path: str, value: object, key: Any, part: object) -> Iterator[tuple[str, object]]:
    """Yield an attribute; those that a torch module keeps in ``_modules`` and the like under the name users write."""
    if isinstance(part, dict) and isinstance(key, str) and key.startswith("_"):
        own = [(k, v) for k, v in part.items() if isinstance(k, str) and getattr(value, k, None) is v]
        yield from ((f"{path}.{k}", v) for k, v in own)
    yield f"{path}.{key}", part
