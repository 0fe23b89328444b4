"""Sends the notebook's functions and classes to processes that a rank starts by spawn or forkserver.

Such a process imports what it is sent by name, and a notebook has no file to import. So functions and classes of
``__main__`` are sent by value, and what comes back from a child is found by name again, so that it is of the class that
the rank knows. Applies to loader workers, ``multiprocessing``, ``torch.multiprocessing`` and process pools alike: all
of them pickle with ``multiprocessing.reduction.ForkingPickler``.
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
    """Prepare the pickler of ``multiprocessing`` when it is imported."""
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
    """Whether ``__main__`` is a script, which a child runs itself."""
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
    """Return what was sent by a process of ``generation``: from below by its name, from above by its value."""
    global _generation
    names = sys.modules["__main__"].__dict__
    if _generation is None:
        _generation = generation + 1
        _prepare(sys.modules["multiprocessing.reduction"])
    if generation >= _generation and name in names:
        return names[name]
    # What the child has set since the first message is kept: a message brings the values of the sender again.
    existing = {key: value for key, value in names.items() if not isinstance(value, (FunctionType, type))}
    value = NotebookUnpickler(io.BytesIO(pickled), names).load()
    names.update(existing)
    if "." not in name:
        names[name] = value
    return value
