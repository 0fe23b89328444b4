"""Reads the job's code, a cell, a function or a script, from the job's folder and runs it. Only ranks open the pickle.

``payload.pkl`` contains the captured values as consecutive pickles with a shared memo, in the order of ``names``.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import os
import pickle
import site
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from distdl_jupyter import permissions
from distdl_jupyter.worker import installed, owned, report
from distdl_jupyter.worker.frames import CellSources, deep_recursion
from distdl_jupyter.worker.hooks.imports import HookFinder

FORMAT = 1


class LoadError(RuntimeError):
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
    #: The environment that a script expects, see ``_apply_layout``.
    layout: Mapping[str, Any] = types.MappingProxyType({})


def read(folder: Path) -> Payload:
    """Read ``payload.json`` in a job's folder. Raises LoadError if it cannot be read or has another format."""
    try:
        with owned.open_own(folder / "payload.json") as file:
            data = json.load(file)
        if not isinstance(data, dict):
            raise TypeError("it is not a JSON object")  # noqa: TRY301
    except (OSError, ValueError, TypeError) as error:
        raise LoadError(f"The job's payload {folder / 'payload.json'} cannot be read: {error}.") from error
    if (number := data.get("format")) != FORMAT:
        text = f"The job's payload has format {number}, but this version of distdl-jupyter reads format {FORMAT}."
        raise LoadError(f"{text} Install the version that submitted the job.")
    fields = {name: data[name] for name in Payload._fields if data.get(name) is not None}
    sequences = {name: tuple(fields.get(name, ())) for name in ("names", "path", "arguments")}
    return Payload(**{**fields, **sequences})


def create_main() -> types.ModuleType:
    """Replace ``__main__`` with an empty module, as in a new notebook, and return it."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    return module


def extend_path(folder: Path, payload: Payload) -> None:
    """Put the modules sent with the job first on ``sys.path``, and folders of installed packages last.

    A script runs in place, so its folder and the other entries of its path come before these modules. Raises LoadError
    if another user could have added or changed a module.
    """
    if reason := permissions.find_tree_refusal(folder / "code"):
        raise LoadError(f"The job's modules cannot be imported: {reason}.")
    package_folders = [entry for entry in payload.path if installed.has_packages(entry)]
    path = [entry for entry in payload.path if entry not in package_folders]
    script_path = [str(Path(payload.script).parent), *path] if payload.script else []
    sys.path[:0] = list(dict.fromkeys([*script_path, str(folder / "code"), *path]))
    for entry in package_folders:
        site.addsitedir(entry)  # at the end, with the entries of their .pth files


def load(folder: Path, payload: Payload, namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the captured values. Functions of the notebook use ``namespace`` as their globals. Raises LoadError."""
    values: dict[str, Any] = {}
    try:
        file = owned.open_own(folder / "payload.pkl") if payload.names else io.BytesIO()
    except OSError as error:
        raise LoadError(f"The captured values cannot be read: {error}.") from error
    with file:
        unpickler = NotebookUnpickler(file, namespace)
        for name in payload.names:
            try:
                values[name] = unpickler.load()
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".rstrip(".: ")
                if isinstance(error, ModuleNotFoundError):
                    reason = f"the module {error.name} is not installed for {sys.executable} on {os.uname().nodename}"
                text = f"The captured variable {name!r} cannot be loaded in this rank: {reason}."
                raise LoadError(text) from error
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
        if name != "_make_function" or not module.startswith("cloudpickle"):
            return resolved

        def make_function(code: Any, namespace: dict[str, Any], *rest: Any) -> Any:
            is_main = namespace.get("__name__") == "__main__"
            return resolved(code, self._namespace if is_main else namespace, *rest)

        return make_function


#: inspect.CO_COROUTINE, without importing inspect into every rank.
_COROUTINE_FLAG = 0x80
#: The event loop of all cells, or None if no cell has used ``await``.
_loop: Any = None


def run(folder: Path, payload: Payload, sources: CellSources, runner: Callable[..., Any] | None = None) -> Any:
    """Run the payload with ``runner`` (default: run its code once) and return the rank's value."""
    runner = runner or _run
    if "DISTDL_RAY" not in os.environ:
        return runner(folder, payload, sources)
    from distdl_jupyter.worker.hooks import ray_cluster

    with ray_cluster.join_cluster(os.environ["DISTDL_RAY"]) as is_helper:
        return None if is_helper else runner(folder, payload, sources)


def _run(folder: Path, payload: Payload, sources: CellSources) -> Any:
    sources.add_all(payload.sources)
    extend_path(folder, payload)
    try:
        if payload.working_directory:
            os.chdir(payload.working_directory)
    except OSError as error:
        text = f"Cannot change to the job's working directory {payload.working_directory} on {os.uname().nodename}"
        raise LoadError(f"{text}: {error.strerror}.") from error
    if payload.kind == "script":
        import runpy

        # As the ``python`` command does.
        sys.argv = [payload.script, *_apply_layout(payload.layout, payload.arguments)]
        runpy.run_path(payload.script, run_name="__main__")
        return None
    main = create_main()
    # As in a notebook, display is a built-in name, so functions and imported modules can also use it.
    builtins.display = report.display  # type: ignore[attr-defined]
    values = load(folder, payload, main.__dict__)
    if payload.kind == "function":
        return values["function"](*values["args"], **{**values["kwargs"], **payload.parameters})
    main.__dict__.update({**values, **payload.parameters})
    sys.argv = [payload.filename, *payload.arguments]
    return run_cell(payload.code, payload.filename, sources, main.__dict__)


def run_cell(code: str, filename: str, sources: CellSources, namespace: dict[str, Any]) -> Any:
    """Run a cell in ``namespace`` and return the value of its last expression.

    As in a notebook, return None if the cell ends with another statement or with a semicolon, and run top-level
    ``await`` in one event loop of all cells.
    """
    global _loop
    code = code.replace("\r\n", "\n")
    # Prepend blank lines instead of shifting nodes, so that a SyntaxError also has the notebook's line number.
    code = "\n" * sources.add_shifted(filename, code) + code
    with deep_recursion():
        tree = ast.parse(code, filename)
        parts: list[ast.Module | ast.Expression] = [tree]
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            # The column counts bytes of UTF-8.
            rest = code.split("\n")[(last.end_lineno or 1) - 1].encode()[last.end_col_offset or 0 :].decode()
            if not rest.lstrip().startswith(";"):
                tree.body.pop()
                parts.append(ast.Expression(last.value))
        # Both parts are compiled first, so that an interrupt is raised in the cell.
        flags, modes = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, zip(parts, ("exec", "eval"), strict=False)
        compiled = [compile(part, filename, mode, flags, dont_inherit=True) for part, mode in modes]
    value = None
    for part in compiled:
        value = eval(part, namespace)  # noqa: S307  the purpose is to run the cell
        if part.co_flags & _COROUTINE_FLAG:
            import asyncio

            _loop = _loop or asyncio.new_event_loop()
            value = _loop.run_until_complete(value)
    return value


def _apply_layout(layout: Mapping[str, Any], arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Prepare the environment that a script written for another system expects, and return its arguments.

    Set the environment ``variables`` of the layout (pairs, in order), create its ``folders``, and expand ``$NAME`` in
    values, folders and arguments, for example with the rank or a data folder. A value may use the variables before it.
    """
    if not layout:
        return arguments
    for name, text in layout.get("variables", ()):
        os.environ[name] = os.path.expandvars(text)
    for path in layout.get("folders", ()):
        Path(os.path.expandvars(path)).mkdir(parents=True, exist_ok=True)
    return tuple(os.path.expandvars(text) for text in arguments)


# child processes ---------------------------------------------------------------------------------
#
# A process that a rank starts with spawn or forkserver imports functions and classes by name, but a notebook is not a
# file that can be imported. So functions and classes of ``__main__`` are sent to children by value. Those that a child
# returns are resolved by name, so that objects have the rank's classes. This applies to all users of ``ForkingPickler``
# (``multiprocessing.reduction``): loader workers, ``multiprocessing``, ``torch.multiprocessing`` and process pools.

#: 0 in a rank, 1 in its children, 2 in their children; None in a child that has not received an object yet.
_generation: int | None = None


def install_hooks(finder: HookFinder) -> None:
    """Extend the pickler of ``multiprocessing`` when it is imported."""
    global _generation
    _generation = 0
    finder.hook("multiprocessing.reduction", _override_reducer)


def _override_reducer(reduction: types.ModuleType) -> None:
    reduction.ForkingPickler.reducer_override = lambda _pickler, value: _reduce(value)


def _reduce(value: Any) -> Any:
    # If ``__main__`` is a script, a child process runs the script itself.
    is_script = getattr(sys.modules["__main__"], "__file__", None) is not None
    if not isinstance(value, (types.FunctionType, type)) or value.__module__ != "__main__" or is_script:
        return NotImplemented
    import cloudpickle

    try:
        pickled = cloudpickle.dumps(value)
    except Exception as error:
        name = value.__qualname__
        remedy = f"Pass multiprocessing_context='fork', or let {name} create that object itself."
        text = f"{name} of the notebook cannot be sent to a child process: {error}. {remedy}"
        raise pickle.PicklingError(text) from error
    return _receive, (_generation or 0, value.__qualname__, pickled)


def _receive(generation: int, name: str, pickled: bytes) -> Any:
    """Return a received function or class: resolved by name if a child sent it, unpickled if a parent sent it."""
    global _generation
    main_names = sys.modules["__main__"].__dict__
    if _generation is None:
        _generation = generation + 1
        _override_reducer(sys.modules["multiprocessing.reduction"])
    if generation >= _generation and name in main_names:
        return main_names[name]
    # Do not overwrite variables that the child has set since the first message: each message has the sender's values.
    existing = {key: value for key, value in main_names.items() if not isinstance(value, (types.FunctionType, type))}
    value = NotebookUnpickler(io.BytesIO(pickled), main_names).load()
    main_names.update(existing)
    if "." not in name:
        main_names[name] = value
    return value
