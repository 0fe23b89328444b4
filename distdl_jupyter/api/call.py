"""A call of the HTTP API: one typed function, from which the server and the OpenAPI document are derived.

The decorators ``get``, ``post``, ``patch`` and ``delete`` put a function into the table. Its parameters declare the
arguments of the call:

- a part of the path: ``{id}`` is the parameter ``id_``, ``{name}`` is ``name``
- keyword-only parameters: the query of a ``get``, else the fields of the JSON body
- ``body``: a JSON body whose shape is a ``PageRequest``
- ``context``: the services of the server for the call
- ``reader``: the up-to-date reader of the job in the path, shared by all pages
- ``disconnected``: a future that is done when the page no longer waits for the response

Its return value is the response; its docstring is the description.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec

from distdl_jupyter.clusters.status import StatusCache
from distdl_jupyter.jobs.job_list import JobIndex
from distdl_jupyter.views.wire import PageRequest

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The services of the server that a call may use."""

    #: Runs a function, which may block, with its arguments in a thread.
    run: Callable[..., Awaitable[Any]]
    #: The root folder of the server's notebooks.
    root: Path
    listing: JobIndex
    clusters: StatusCache
    #: Jupyter's manager of kernel specs.
    kernel_specs: Any
    max_code_bytes: int
    submit_seconds: float
    form_seconds: float


@dataclass(frozen=True, slots=True)
class Download:
    """A response that is a file. ``name`` is the name to save it under, "" to show it in the page."""

    chunks: Generator[bytes, None, None]
    media_type: str = "application/octet-stream"
    name: str = ""
    #: Size in bytes, None if it is unknown until the end.
    size: int | None = None
    #: The ``Cache-Control`` header.
    cache_control: str = "no-store"


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One verb of one address. The fields from ``action`` on are arguments of the decorators."""

    verb: str
    #: The address below ``BASE``, with ``{id}`` for one part and ``{path}`` for the rest.
    path: str
    function: Callable[..., Any]
    #: The type of the query of a ``get``, else of the JSON body; None for none.
    request: type[PageRequest] | None
    #: The type of the JSON response; None for none.
    response: Any
    #: Whether the response may be a ``Download``.
    can_download: bool
    #: The permission that the user needs; by default "read" for ``get``, else "write". A call that starts a process,
    #: connects to another machine or reads a path of the request needs "execute", as a kernel does.
    action: Literal["read", "write", "execute"]
    #: The HTTP status of a response that is not an error.
    status: int = 200
    #: Whether the call may take seconds; it then runs in a separate pool.
    slow: bool = False


#: All calls, in the order in which their modules are imported.
CALLS: list[ApiCall] = []


def _register(verb: str, path: str, **options: Any) -> Callable[[F], F]:
    """Return a decorator that puts a function into the table; ``options`` are the last fields of its ``ApiCall``."""
    options.setdefault("action", "read" if verb == "get" else "write")

    def register(function: F) -> F:
        hints = typing.get_type_hints(function, include_extras=True)
        request = hints.get("body") or _create_request_type(function, hints)
        return_type = hints["return"]
        return_types = typing.get_args(return_type) if isinstance(return_type, types.UnionType) else (return_type,)
        response = next((kind for kind in return_types if kind not in (Download, types.NoneType)), None)
        CALLS.append(ApiCall(verb, path, function, request, response, Download in return_types, **options))
        return function

    return register


def _create_request_type(function: Callable[..., Any], hints: dict[str, Any]) -> type[PageRequest] | None:
    """Return the keyword-only parameters of a function as a struct, None if it has none."""
    fields = [
        (name, hints[name]) if parameter.default is parameter.empty else (name, hints[name], parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    if not fields:
        return None
    name = f"{function.__name__.title().replace('_', '')}Request"
    return cast("type[PageRequest]", msgspec.defstruct(name, fields, bases=(PageRequest,), frozen=True, kw_only=True))


get = functools.partial(_register, "get")
post = functools.partial(_register, "post")
patch = functools.partial(_register, "patch")
delete = functools.partial(_register, "delete")
