"""Where inside a value the thing sits that cannot be pickled: ``model.logger.handlers[0].stream: TextIOWrapper``.

The value's parts are tried one by one, the failing one is opened in turn, until a part fails of which no part fails.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from distdl_jupyter.capture.pickler import PickleReport, why_not
from distdl_jupyter.capture.references import globals_of, parts_of, short_key, travels_by_value
from distdl_jupyter.core.errors import InvalidSpec

#: The search stops here and names what it has found so far. Every step pickles a part once more.
_SECONDS = 5.0
_MOST_ITEMS = 2000
_BASIC = (int, float, complex, bool, str, bytes, bytearray, type(None), types.ModuleType)

#: What to do instead of sending a value, by the name of its type.
_REMEDIES = {
    "InteractiveShell": "Remove get_ipython() from it: it exists only in the notebook.",
    "generator": "Convert it to a list, or create it inside the {unit}.",
    "TextIOWrapper": "Open the file inside the {unit}.",
    "BufferedReader": "Open the file inside the {unit}.",
    "BufferedWriter": "Open the file inside the {unit}.",
    "Connection": "Open the connection inside the {unit}.",
    "socket": "Open the connection inside the {unit}.",
    "module": "Import it inside the {unit}.",
}


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


def refuse(dump: PickleReport, values: Mapping[str, Any], *, unit: str) -> None:
    """Raise InvalidSpec when names cannot be pickled: all of them, each with the place inside it and the remedy."""
    if not dump.errors:
        return
    by_value: dict[int, Unpicklable] = {}
    for name, error in dump.errors.items():
        failure = find(name, values[name], error)
        known = by_value.get(id(failure.value))
        if known is None or len(failure.path) < len(known.path):
            by_value[id(failure.value)] = failure
    sentences = [_sentence(failure, unit) for failure in by_value.values()]
    first = next(iter(by_value.values()))
    raise InvalidSpec(" ".join(sentences), code="not-picklable", field=first.path)


def _sentence(part: Unpicklable, unit: str) -> str:
    names = [cls.__name__ for cls in type(part.value).__mro__]
    remedy = next((_REMEDIES[name] for name in names if name in _REMEDIES), "Create it inside the {unit}.")
    reason = (
        str(part.error).strip().splitlines()[0].rstrip(".") if str(part.error).strip() else type(part.error).__name__
    )
    detail = "" if part.type_name in reason and "cannot pickle" in reason.lower() else f" ({reason})"
    article = "an" if part.type_name[:1].lower() in "aeiou" else "a"
    return (
        f"{part.path} cannot be sent to the ranks: it is {article} {part.type_name}{detail}. {remedy.format(unit=unit)}"
    )


def find(name: str, value: object, error: Exception, clock: Callable[[], float] = time.monotonic) -> Unpicklable:
    """Return the part of ``value`` that makes pickling fail with ``error``."""
    ends = clock() + _SECONDS
    path, visited = name, {id(value)}
    while clock() < ends:
        step = _failing_part(path, value, visited, lambda: clock() < ends)
        if step is None:
            break
        path, value, error = step
        visited.add(id(value))
    return Unpicklable(path, value, error)


def _failing_part(
    path: str, value: object, visited: set[int], in_time: Callable[[], bool]
) -> tuple[str, object, Exception] | None:
    for part_path, part in _parts(path, value):
        if id(part) in visited or isinstance(part, _BASIC):
            continue
        error = why_not(part)
        if error is not None:
            return part_path, part, error
        if not in_time():
            return None
    return None


def _parts(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the parts that are sent with a value, each with its path."""
    if isinstance(value, types.FunctionType) and travels_by_value(value):
        # A global has a name of its own in the notebook: the path starts anew with it.
        space = value.__globals__
        yield from ((name, space[name]) for name in globals_of(value.__code__) if name in space)
    parts = parts_of(path, value)
    yield from _parts_of_instance(path, value) if parts is None else parts


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
    yield from ((f"{path}[{short_key(k)}]", v) for _, (k, v) in zip(range(_MOST_ITEMS), pairs or (), strict=False))
    yield from ((_argument_path(path, value, part), part) for part in arguments)


def _argument_path(path: str, value: object, part: object) -> str:
    attributes = getattr(value, "__dict__", {})
    name = next((key for key, held in attributes.items() if held is part), None)
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
        entries = [(k, v) for k, v in part.items() if isinstance(k, str) and getattr(value, k, None) is v]
        yield from ((f"{path}.{k}", v) for k, v in entries)
    yield f"{path}.{key}", part
