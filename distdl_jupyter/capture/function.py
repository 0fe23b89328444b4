"""Captures a function call: the function, its arguments, and the names that they use from the notebook."""

from __future__ import annotations

import functools
import inspect
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distdl_jupyter.capture import listing, modules
from distdl_jupyter.capture.captured_code import CapturedCode, build_payload, explain_packing, pickle_values
from distdl_jupyter.capture.free_names import CompiledSource, find_undefined
from distdl_jupyter.capture.notebook import CodeLocation, current_location, find_cell_number
from distdl_jupyter.capture.pickler import PickleReport, raise_errors
from distdl_jupyter.capture.references import find_used_names, order_values, read_closure
from distdl_jupyter.core.errors import InvalidSpec, UndefinedName
from distdl_jupyter.core.spec import CodeSource


@explain_packing()
def capture_function(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    command: str = "",
) -> CapturedCode:
    """Capture the call ``function(*args, **kwargs)``; lambdas, closures, bound methods and partials are supported.

    Raises InvalidSpec if the arguments do not match the function's signature, a value cannot be pickled (naming the
    part that fails), or the function is ``async``.
    """
    start = time.perf_counter()
    args, kwargs = tuple(args), dict(kwargs or {})
    callee: Any = function
    while isinstance(callee, functools.partial):
        callee = callee.func
    name = getattr(callee, "__name__", None) or type(callee).__name__
    arguments = _bind_arguments(function, name, args, kwargs)
    if inspect.iscoroutinefunction(function):
        raise InvalidSpec(
            f"{name} is an async function, but the ranks make a plain call.",
            code="async-function",
            field="function",
            hint=f"Pass a function that calls asyncio.run({name}()).",
        )
    location, inner = current_location(), _unwrap(callee)
    is_from_notebook = inner is not None and inner.__module__ == "__main__"
    namespace = inner.__globals__ if inner is not None and is_from_notebook else vars(sys.modules["__main__"])
    names = find_used_names((function, args, kwargs), namespace)
    values = {
        **{name: value for name, value in order_values(names, namespace).items() if value is not function},
        **(read_closure(inner) if inner is not None else {}),
        **arguments,
    }
    call = {"function": function, "args": args, "kwargs": kwargs}
    # The ranks need only the call. Its parts are pickled first, so that the size of each name is known.
    with pickle_values([*values.items(), *call.items()]) as (report, file):
        raise_errors(report, {**call, **values}, unit="function")
        sent_modules = modules.find_modules(report.modules, modules.find_roots(location))
    return CapturedCode(
        kind="function",
        name=name.strip("<>")[:120],
        source=_make_code_source(inner, location, command or f"submit({name}, ...)"),
        payload_json=build_payload(
            "function",
            filename=inner.__code__.co_filename if inner is not None else "",
            names=[*values, *call],
            sources=listing.collect_sources(report, location),
            path=modules.build_search_path(location),
        ),
        payload=file,
        seconds=time.perf_counter() - start,
        undefined=_find_undefined(inner, report, location),
        **listing.describe_fields(values, report, sent_modules, location),
    )


def _unwrap(function: object) -> types.FunctionType | None:
    """Return the plain function inside a bound method or an object with ``__call__``."""
    if isinstance(function, types.MethodType):
        function = function.__func__
    if isinstance(function, types.FunctionType):
        return function
    if isinstance(function, type | types.BuiltinFunctionType):
        return None
    call = vars(type(function)).get("__call__")
    return call if isinstance(call, types.FunctionType) else None


def _bind_arguments(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments by parameter name."""
    if not callable(function):
        raise InvalidSpec(
            f"{function!r} is not a function.",
            code="not-a-function",
            field="function",
            hint="Pass the function itself, not its result.",
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return kwargs
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidSpec(
            f"{name}{signature} cannot be called with these arguments: {error}.",
            code="arguments-do-not-fit",
            field="args",
            hint="Pass its arguments as args=(...) and kwargs={...}.",
        ) from None
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    arguments = {n: v for n, v in bound.arguments.items() if kinds[n] is not inspect.Parameter.VAR_KEYWORD}
    return {**arguments, **kwargs}


def _find_undefined(
    inner: types.FunctionType | None, report: PickleReport, location: CodeLocation
) -> tuple[UndefinedName, ...]:
    main = CompiledSource.from_function(inner, location) if inner is not None else None
    if inner is None or main is None:
        return ()
    functions = [function for function in report.functions.values() if function.__globals__ is inner.__globals__]
    where = "the notebook" if find_cell_number(inner.__code__.co_filename) is not None else main.label
    return find_undefined(main, inner.__globals__, where, functions, location)


def _make_code_source(inner: types.FunctionType | None, location: CodeLocation, command: str) -> CodeSource:
    text = listing.read_function_text(inner, location) if inner is not None else None
    if inner is None or text is None:
        return CodeSource(notebook=location.path, command=command)
    return CodeSource(
        code=text.text,
        filename=inner.__code__.co_filename,
        notebook=location.path,
        # The cell that calls submit() may not be the one that defines the function.
        cell_id=location.cell_id if text.cell is not None and text.cell == location.execution_count else "",
        execution_count=text.cell,
        first_line=text.first_line,
        command=command,
    )
