"""What the launch form can know of a training function, or of a cell, without running it.

Numbers count only when they are really there: as an argument, a default, a closure's or a notebook's
variable, or set once in the cell.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distdl_jupyter.core import registry

BATCH_NAMES = ("batch_size", "batch", "train_batch_size", "per_device_batch_size")
RATE_NAMES = ("lr", "learning_rate", "base_lr")
_WORLD = r"(?:\w+\.)?(?:size|get_world_size|num_replicas|world_size|WORLD_SIZE)\b"
_SCALES = re.compile(
    rf"(?:{'|'.join(RATE_NAMES)})\w*\s*\*=?\s*{_WORLD}|{_WORLD}(?:\(\))?\s*\*\s*(?:{'|'.join(RATE_NAMES)})"
)


@dataclass(frozen=True, slots=True)
class Training:
    """What is known of one function with the arguments it will be called with, or of one cell."""

    name: str
    code: str
    batch_size: float | None = None
    learning_rate: float | None = None
    rate_name: str = "lr"
    rate_is_argument: bool = False
    scales_rate: bool = False

    def wanted_backend(self) -> str:
        """Return the backend that the source speaks of ("horovod", "torch", "tensorflow"), "" when it names none.

        Where it speaks of several the default one comes last: much is built on it.
        """
        found = [one.name for one in registry.backends() if one.usage.words and re.search(one.usage.words, self.code)]
        return min(found, key=lambda name: name == registry.DEFAULT, default="")


def inspect_training(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    code: str = "",
    numbers: Mapping[str, float] | None = None,
) -> Training:
    """Return what is known; ``code`` and ``numbers`` (captured with it, by name) when the caller has them already."""
    code = code or source_of(function)
    arguments = _arguments(function, args, kwargs)
    known = {**(numbers or {}), **arguments}
    _, batch = _first_number(known, BATCH_NAMES)
    rate_name, rate = _first_number(known, RATE_NAMES)
    return Training(
        name=getattr(function, "__name__", type(function).__name__),
        code=code,
        batch_size=batch,
        learning_rate=rate,
        rate_name=rate_name or "lr",
        rate_is_argument=rate_name in arguments,
        scales_rate=_SCALES.search(code) is not None,
    )


def inspect_cell(code: str, *, name: str, more: str = "", numbers: Mapping[str, float] | None = None) -> Training:
    """Return what is known of a cell's code; ``more`` is the source of what it calls, ``numbers`` travel with it."""
    own = _assigned_numbers(code)
    known = {**(numbers or {}), **own}
    _, batch = _first_number(known, BATCH_NAMES)
    rate_name, rate = _first_number(known, RATE_NAMES)
    every = f"{code}\n{more}"
    return Training(
        name=name,
        code=every,
        batch_size=batch,
        learning_rate=rate,
        rate_name=rate_name or "lr",
        scales_rate=_SCALES.search(every) is not None,
    )


def _assigned_numbers(code: str) -> dict[str, float]:
    """Return the numbers of names that the code sets exactly once, to a number; none when it is no Python."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    stores = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    found: dict[str, float] = {}
    for node in nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        value = node.value.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.update({t.id: value for t in node.targets if isinstance(t, ast.Name) and stores.count(t.id) == 1})
    return found


def source_of(function: Callable[..., Any]) -> str:
    """Return a function's source, "" when it cannot be had (a built-in, a class instance)."""
    try:
        return textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    except (OSError, TypeError):
        return ""


def _arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    try:
        bound = inspect.signature(function).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return dict(kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _first_number(known: Mapping[str, Any], names: Sequence[str]) -> tuple[str, float | None]:
    for name in names:
        value = known.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
            return name, value
    return "", None
