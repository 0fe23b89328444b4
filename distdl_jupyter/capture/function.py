"""Captures a function call: the function, its arguments, and the names that it uses from the notebook."""

from __future__ import annotations

import functools
import inspect
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distdl_jupyter.capture import listing, modules
from distdl_jupyter.capture.captured_code import CapturedCode, explain_packing, payload_fields, pickled
from distdl_jupyter.capture.free_names import CompiledSource, find_undefined
from distdl_jupyter.capture.notebook import CodeLocation, cell_number, here
from distdl_jupyter.capture.pickler import CountingSink, PickleReport, dump, refuse
from distdl_jupyter.capture.references import closure_of, in_order, is_of_notebook, names_used
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.findings import UndefinedName
from distdl_jupyter.core.spec import CodeSource


@explain_packing
def capture_function(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    command: str = "",
    announce: bool = True,
) -> CapturedCode:
    """Capture the call ``function(*args, **kwargs)``; lambdas, closures, bound methods and partials are supported.

    ``announce`` prints which values are large before they are pickled.

    Raises InvalidSpec if the arguments do not match the function's signature, a value cannot be pickled (naming the
    part that fails), or the function is ``async``.
    """
    begin = time.perf_counter()
    args, kwargs = tuple(args), dict(kwargs or {})
    name = _name(function)
    arguments = _arguments(function, name, args, kwargs)
    _refuse_async(function, name)
    location, inner = here(), _innermost(function)
    namespace = inner.__globals__ if inner is not None and is_of_notebook(inner) else vars(sys.modules["__main__"])
    used = names_used((function, args, kwargs), namespace)
    values = {
        **{name: value for name, value in in_order(used, namespace).items() if value is not function},
        **(closure_of(inner) if inner is not None else {}),
        **arguments,
    }
    call = {"function": function, "args": args, "kwargs": kwargs}
    if announce:
        listing.announce_large(values, "function")
    # The first pass measures each name's size and detects failures; the second writes the three values of the payload.
    notes = dump([*values.items(), (f"{name}()", call)], CountingSink())
    refuse(notes, {**values, f"{name}()": call}, unit="function")
    shipped = modules.local_modules(notes.modules, modules.roots(location))
    _, file = pickled(call.items())
    return CapturedCode(
        kind="function",
        name=name.strip("<>")[:120],
        source=_source(inner, location, command or f"submit({name}, ...)"),
        captured=listing.captured_list(values.items(), notes.sizes, shipped),
        modules=tuple(shipped),
        payload_json=payload_fields(
            "function",
            filename=inner.__code__.co_filename if inner is not None else "",
            names=list(call),
            sources={f: t.to_json() for f, t in listing.sources_of(notes, location).items()},
            path=modules.search_path(location),
        ),
        payload=file,
        seconds=time.perf_counter() - begin,
        texts=(*listing.texts_of(notes, location), *listing.module_texts(shipped)),
        aliases=listing.aliases_of(values.items()),
        imports=listing.imports_of(notes),
        on_gpu=tuple(notes.on_gpu),
        undefined=_undefined(inner, notes, location),
        numbers=listing.numbers_of(values.items()),
    )


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


def _innermost(function: object) -> types.FunctionType | None:
    """Return the plain function inside a partial, a bound method or an object with ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, types.MethodType):
        function = function.__func__
    if isinstance(function, types.FunctionType):
        return function
    if isinstance(function, type | types.BuiltinFunctionType):
        return None
    call = vars(type(function)).get("__call__")
    return call if isinstance(call, types.FunctionType) else None


def _arguments(
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
    by_name: dict[str, Any] = {}
    for parameter, value in bound.arguments.items():
        if signature.parameters[parameter].kind is inspect.Parameter.VAR_KEYWORD:
            by_name.update(value)
        elif signature.parameters[parameter].kind is inspect.Parameter.VAR_POSITIONAL:
            by_name.update({f"{parameter}[{n}]": item for n, item in enumerate(value)})
        else:
            by_name[parameter] = value
    return by_name


def _refuse_async(function: Callable[..., Any], name: str) -> None:
    if inspect.iscoroutinefunction(function):
        raise InvalidSpec(
            f"{name} is an async function, but the ranks make a plain call.",
            code="async-function",
            field="function",
            hint=f"Pass a function that calls asyncio.run({name}()).",
        )


def _undefined(
    inner: types.FunctionType | None, notes: PickleReport, location: CodeLocation
) -> tuple[UndefinedName, ...]:
    main = CompiledSource.from_function(inner, location) if inner is not None else None
    if inner is None or main is None:
        return ()
    space = inner.__globals__
    functions = {
        id(function): CompiledSource.from_function(function, location)
        for function in notes.functions.values()
        if function is not inner and function.__globals__ is space
    }
    where = "the notebook" if cell_number(inner.__code__.co_filename) is not None else main.label
    return find_undefined(main, space, where, functions)


def _source(inner: types.FunctionType | None, location: CodeLocation, command: str) -> CodeSource:
    text = listing.function_text(inner, location) if inner is not None else None
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
