"""Sends the notebook's functions and classes to processes that a rank starts by spawn or forkserver.

Such a process imports functions and classes by name, but a notebook has no file to import. So functions and classes of
``__main__`` are sent by value, and those returned by a child are resolved by name, so that objects have the rank's own
classes. This applies to loader workers, ``multiprocessing``, ``torch.multiprocessing`` and process pools, which all use
``multiprocessing.reduction.ForkingPickler``.
"""

from __future__ import annotations

import io
import pickle
import sys
from types import FunctionType, ModuleType
from typing import Any

from distdl_jupyter.worker.hooks.imports import PostImport
from distdl_jupyter.worker.payload import NotebookUnpickler

_generation: int | None = None
"""0 in a rank, 1 in its children, 2 in theirs; None in a child that has received nothing yet."""


def watch(finder: PostImport) -> None:
    """Extend the pickler of ``multiprocessing`` when it is imported."""
    global _generation
    _generation = 0
    finder.after("multiprocessing.reduction", _prepare)


def _prepare(reduction: ModuleType) -> None:
    reduction.ForkingPickler.reducer_override = lambda _pickler, value: _reduce(value)


def _reduce(value: Any) -> Any:
    if not isinstance(value, (FunctionType, type)) or value.__module__ != "__main__" or _has_a_file():
        return NotImplemented
    return _receive, (_generation or 0, value.__qualname__, _by_value(value))


def _has_a_file() -> bool:
    """Return whether ``__main__`` is a script, which a child runs itself."""
    return getattr(sys.modules["__main__"], "__file__", None) is not None


def _by_value(value: Any) -> bytes:
    import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise pickle.PicklingError(
            f"{value.__qualname__} of the notebook cannot be sent to a child process: {error}. Pass "
            f"multiprocessing_context='fork', or let {value.__qualname__} create that object itself."
        ) from error
    return pickled


def _receive(generation: int, name: str, pickled: bytes) -> Any:
    """Return an object sent by a process of ``generation``: by name if a child sent it, by value if a parent did."""
    global _generation
    names = sys.modules["__main__"].__dict__
    if _generation is None:
        _generation = generation + 1
        _prepare(sys.modules["multiprocessing.reduction"])
    if generation >= _generation and name in names:
        return names[name]
    # Keep what the child has set since the first message, because every message contains the sender's values.
    existing = {key: value for key, value in names.items() if not isinstance(value, (FunctionType, type))}
    value = NotebookUnpickler(io.BytesIO(pickled), names).load()
    names.update(existing)
    if "." not in name:
        names[name] = value
    return value
