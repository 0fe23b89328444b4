"""Runs the job's code in this process: a cell, a function or a script."""

from __future__ import annotations

import ast
import builtins
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.worker import payload as payloads
from distdl_jupyter.worker import pictures
from distdl_jupyter.worker.payload import Payload
from distdl_jupyter.worker.sources import CellSources, deep_recursion

if TYPE_CHECKING:
    import asyncio

    #: Runs a payload with its folder and sources, and returns the rank's value.
    Runner = Callable[[Path, Payload, CellSources], Any]

#: inspect.CO_COROUTINE, without importing inspect into every rank.
_COROUTINE = 0x80
_loop: asyncio.AbstractEventLoop | None = None


def run(folder: Path, payload: Payload, sources: CellSources, runner: Runner | None = None) -> Any:
    """Run the payload with ``runner`` (default: run its code once) and return the rank's value.

    Exceptions of the code are propagated.
    """
    runner = runner or _run
    if "DISTDL_RAY" not in os.environ:
        return runner(folder, payload, sources)
    from distdl_jupyter.worker.hooks import ray_cluster

    with ray_cluster.in_cluster(os.environ["DISTDL_RAY"]) as is_helper:
        return None if is_helper else runner(folder, payload, sources)


def _run(folder: Path, payload: Payload, sources: CellSources) -> Any:
    sources.add_all(payload.sources)
    payloads.extend_path(folder, payload)
    if payload.working_directory:
        _enter(payload.working_directory)
    if payload.kind == "script":
        return run_script(payload.script, lay(payload.layout, payload.arguments))
    main = payloads.fresh_main()
    # As in a notebook, display is a built-in name, so functions and imported modules can use it too.
    builtins.display = pictures.display  # type: ignore[attr-defined]
    values = payloads.load(folder, payload, main.__dict__)
    if payload.kind == "function":
        return values["function"](*values["args"], **{**values["kwargs"], **payload.parameters})
    main.__dict__.update(values)
    main.__dict__.update(payload.parameters)
    sys.argv = [payload.filename, *payload.arguments]
    return run_cell(payload.code, payload.filename, sources, main.__dict__)


def _enter(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise payloads.CannotLoad(
            f"Cannot change to the job's working directory {directory} on {os.uname().nodename}: {error.strerror}."
        ) from error


def run_cell(code: str, filename: str, sources: CellSources, namespace: dict[str, Any]) -> Any:
    """Run a cell in ``namespace`` and return the value of its last expression.

    As in a notebook, return None if the cell ends with another statement or with a semicolon.
    """
    code = code.replace("\r\n", "\n")
    # Prepend blank lines instead of shifting nodes, so that a SyntaxError also has the notebook's line number.
    code = "\n" * sources.add_shifted(filename, code) + code
    with deep_recursion():
        tree = ast.parse(code, filename)
    last = tree.body[-1] if tree.body else None
    has_value = isinstance(last, ast.Expr) and not _ends_in_semicolon(code, last)
    if has_value:
        tree.body.pop()
    _evaluated(tree, filename, "exec", namespace)
    if not has_value or not isinstance(last, ast.Expr):
        return None
    return _evaluated(ast.Expression(last.value), filename, "eval", namespace)


def _evaluated(tree: ast.Module | ast.Expression, filename: str, mode: str, namespace: dict[str, Any]) -> Any:
    with deep_recursion():
        code = compile(tree, filename, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    value = eval(code, namespace)  # noqa: S307  the purpose is to run the cell
    return _awaited(value) if code.co_flags & _COROUTINE else value


def _awaited(coroutine: Any) -> Any:
    """Run top-level ``await`` in the event loop that all cells of this process share, as in a notebook."""
    global _loop
    import asyncio

    if _loop is None:
        _loop = asyncio.new_event_loop()
    return _loop.run_until_complete(coroutine)


def _ends_in_semicolon(code: str, last: ast.Expr) -> bool:
    line = code.split("\n")[(last.end_lineno or 1) - 1]
    # The column counts bytes of UTF-8.
    rest = line.encode()[last.end_col_offset or 0 :].decode()
    return rest.lstrip().startswith(";")


def run_script(script: str, arguments: tuple[str, ...]) -> None:
    """Run a file as ``__main__`` with its arguments in ``sys.argv``, as the ``python`` command does."""
    import runpy

    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def lay(layout: Mapping[str, Any], arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Prepare the environment that a script written for another system expects, and return its arguments.

    Set the environment ``variables`` of the layout (pairs, in order), create its ``folders``, and expand ``$NAME`` in
    values, folders and arguments. A value may use the variables before it. This happens in the rank, because only the
    rank knows the job's folder, its number and its data folders. Without a layout, the arguments are unchanged.
    """
    if not layout:
        return arguments
    for name, text in layout.get("variables", ()):
        os.environ[name] = os.path.expandvars(text)
    for path in layout.get("folders", ()):
        Path(os.path.expandvars(path)).mkdir(parents=True, exist_ok=True)
    return tuple(os.path.expandvars(text) for text in arguments)
