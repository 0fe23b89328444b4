"""Reads the code that a rank runs from the job's folder. Only ranks open the pickle.

``payload.pkl`` contains the captured values as consecutive pickles with a shared memo, in the order of ``names``.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import pickle
import site
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from distdl_jupyter import permissions
from distdl_jupyter.worker import installed, owned
from distdl_jupyter.worker.hooks.imports import PostImport

FORMAT = 1


class CannotLoad(RuntimeError):
    """The job's code or a captured variable cannot be loaded in this rank. The message contains the reason."""


class Payload(NamedTuple):
    """The job's code, with the fields of ``payload.json``. ``kind`` is cell, function, script or ranks."""

    kind: str
    code: str = ""
    filename: str = "<cell>"
    names: tuple[str, ...] = ()
    sources: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({})
    path: tuple[str, ...] = ()
    script: str = ""
    arguments: tuple[str, ...] = ()
    #: Values of a trial by variable name. They override captured values.
    parameters: Mapping[str, Any] = types.MappingProxyType({})
    working_directory: str = ""
    #: The layout that execute.lay prepares before a script runs.
    layout: Mapping[str, Any] = types.MappingProxyType({})


def read(folder: Path) -> Payload:
    """Read ``payload.json`` in a job's folder. Raises CannotLoad if it cannot be read or has another format."""
    path = folder / "payload.json"
    try:
        with owned.open_own(path) as file:
            data = json.load(file)
    except (OSError, ValueError) as error:
        raise CannotLoad(f"The job's payload {path} cannot be read: {error}.") from error
    if not isinstance(data, dict):
        raise CannotLoad(f"The job's payload {path} is damaged: it contains no object.")
    if data.get("format") != FORMAT:
        raise CannotLoad(
            f"The job's payload has format {data.get('format')}, but this version of distdl-jupyter reads format "
            f"{FORMAT}. Install the version that submitted the job."
        )
    fields = {name: data[name] for name in Payload._fields if data.get(name) is not None}
    for name in ("names", "path", "arguments"):
        fields[name] = tuple(fields.get(name, ()))
    return Payload(**fields)


def fresh_main() -> types.ModuleType:
    """Replace ``__main__`` with an empty module, as in a new notebook, and return it."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    return module


def extend_path(folder: Path, payload: Payload) -> None:
    """Put the modules sent with the job first on ``sys.path``, and folders of installed packages last.

    A script runs in place, so its folder and the other entries of its path come before these modules. Raises CannotLoad
    if another user could have added or changed a module.
    """
    if reason := permissions.tree_refusal(folder / "code"):
        raise CannotLoad(f"The job's modules cannot be imported: {reason}.")
    package_folders = [entry for entry in payload.path if installed.holds_packages(entry)]
    path = [entry for entry in payload.path if entry not in package_folders]
    script_path = [str(Path(payload.script).parent), *path] if payload.script else []
    search_path = [*script_path, str(folder / "code"), *path]
    sys.path[:0] = list(dict.fromkeys(search_path))
    for entry in package_folders:
        site.addsitedir(entry)  # at the end, with the entries of their .pth files


def load(folder: Path, payload: Payload, namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the captured values by name. Functions of the notebook use ``namespace`` as their globals.

    Raises CannotLoad for the first name that cannot be loaded.
    """
    values: dict[str, Any] = {}
    if not payload.names:
        return values
    try:
        file = owned.open_own(folder / "payload.pkl")
    except OSError as error:
        raise CannotLoad(f"The captured values cannot be read: {error}.") from error
    with file:
        unpickler = NotebookUnpickler(file, namespace)
        for name in payload.names:
            try:
                values[name] = unpickler.load()
            except Exception as error:
                raise CannotLoad(_why(name, error)) from error
    return values


class NotebookUnpickler(pickle.Unpickler):
    """Loads pickles of cloudpickle, and makes the notebook's functions share one namespace.

    cloudpickle gives functions captured from ``__main__`` a separate dict as globals, so they would not see variables
    that the cell sets. This class replaces that dict by the namespace in which the cell runs.
    """

    def __init__(self, file: Any, namespace: dict[str, Any]) -> None:
        super().__init__(file)
        self._namespace = namespace

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the named object. cloudpickle's function factory is replaced by one that uses the shared namespace."""
        resolved = super().find_class(module, name)
        if name == "_make_function" and module.startswith("cloudpickle"):
            return lambda code, namespace, *rest: resolved(code, self._shared(namespace), *rest)
        return resolved

    def _shared(self, namespace: dict[str, Any]) -> dict[str, Any]:
        return self._namespace if namespace.get("__name__") == "__main__" else namespace


def _why(name: str, error: Exception) -> str:
    reason = f"{type(error).__name__}: {error}".rstrip(".: ")
    if isinstance(error, ModuleNotFoundError):
        reason = f"the module {error.name} is not installed for {sys.executable} on {os.uname().nodename}"
    elif isinstance(error, EOFError):
        reason = "the payload ends early"
    return f"The captured variable {name!r} cannot be loaded in this rank: {reason}."


# child processes ---------------------------------------------------------------------------------
#
# A process that a rank starts with spawn or forkserver imports functions and classes by name, but a notebook is not a
# file that can be imported. So functions and classes of ``__main__`` are sent to children by value. Those that a child
# returns are resolved by name, so that objects have the rank's classes. This applies to all users of ``ForkingPickler``
# (``multiprocessing.reduction``): loader workers, ``multiprocessing``, ``torch.multiprocessing`` and process pools.

_generation: int | None = None
"""0 in a rank, 1 in its children, 2 in their children; None in a child that has not received an object yet."""


def watch(finder: PostImport) -> None:
    """Extend the pickler of ``multiprocessing`` when it is imported."""
    global _generation
    _generation = 0
    finder.after("multiprocessing.reduction", _prepare)


def _prepare(reduction: types.ModuleType) -> None:
    reduction.ForkingPickler.reducer_override = lambda _pickler, value: _reduce(value)


def _reduce(value: Any) -> Any:
    if not isinstance(value, (types.FunctionType, type)) or value.__module__ != "__main__" or _has_a_file():
        return NotImplemented
    return _receive, (_generation or 0, value.__qualname__, _by_value(value))


def _has_a_file() -> bool:
    """Return whether ``__main__`` is a script. A child process runs the script itself."""
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
    """Return a received function or class: resolved by name if a child sent it, unpickled if a parent sent it."""
    global _generation
    names = sys.modules["__main__"].__dict__
    if _generation is None:
        _generation = generation + 1
        _prepare(sys.modules["multiprocessing.reduction"])
    if generation >= _generation and name in names:
        return names[name]
    # Do not overwrite variables that the child has set since the first message: each message has the sender's values.
    existing = {key: value for key, value in names.items() if not isinstance(value, (types.FunctionType, type))}
    value = NotebookUnpickler(io.BytesIO(pickled), names).load()
    names.update(existing)
    if "." not in name:
        names[name] = value
    return value
