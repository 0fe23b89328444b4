"""HTTP API endpoints: each is one typed function. The routes and the OpenAPI document are generated from it.

The decorators ``get``, ``post``, ``patch`` and ``delete`` register a function as an endpoint. Its parameters declare
the request:

- a path parameter: ``{id}`` is ``id_``, ``{name}`` is ``name``
- keyword-only parameters: the query parameters of a ``get``, else the fields of the JSON body
- ``body``: the JSON body, a subclass of ``PageRequest``
- ``context``: the services of the server
- ``reader``: the up-to-date reader of the job in the path, shared by all pages
- ``disconnected``: a future that is done when the client disconnects

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

from distdl_jupyter.clusters.cluster_configs import StatusCache
from distdl_jupyter.jobs.job_list import JobIndex
from distdl_jupyter.views.wire import PageRequest

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The services of the server that an endpoint may use. Timeouts are in seconds."""

    #: Runs a blocking function with its arguments in a thread.
    run: Callable[..., Awaitable[Any]]
    #: The root folder of the server's notebooks.
    root: Path
    job_index: JobIndex
    cluster_status: StatusCache
    #: Jupyter's manager of kernel specs.
    kernel_specs: Any
    max_code_bytes: int
    submit_timeout: float
    form_timeout: float


@dataclass(frozen=True, slots=True)
class Download:
    """A file response. ``name`` is the file name for saving; "" displays the file in the browser."""

    chunks: Generator[bytes, None, None]
    media_type: str = "application/octet-stream"
    name: str = ""
    #: The size in bytes, or None if it is unknown before the end.
    size: int | None = None
    #: The ``Cache-Control`` header.
    cache_control: str = "no-store"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One HTTP method of one path. The fields from ``action`` on are arguments of the decorators."""

    #: The HTTP method in lower case.
    method: str
    #: The path below ``BASE_PATH``; ``{id}`` matches one segment, ``{path}`` the rest.
    path: str
    function: Callable[..., Any]
    #: The type of the query parameters of a ``get``, else of the JSON body, or None if there is neither.
    request: type[PageRequest] | None
    #: The type of the JSON response, or None if there is none.
    response: Any
    #: Whether the response may be a ``Download``.
    can_download: bool
    #: The permission that the user needs; by default "read" for ``get``, else "write". An endpoint that starts a
    #: process, connects to another machine or reads a path of the request needs "execute", as a kernel does.
    action: Literal["read", "write", "execute"]
    #: The HTTP status of a response that is not an error.
    status: int = 200
    #: Whether the function may take seconds; it then runs in a separate pool.
    slow: bool = False


#: All endpoints, in the order in which their modules are imported.
ENDPOINTS: list[Endpoint] = []


def _register(method: str, path: str, **options: Any) -> Callable[[F], F]:
    """Return a decorator that registers a function; ``options`` are the remaining fields of its ``Endpoint``."""
    options.setdefault("action", "read" if method == "get" else "write")

    def register(function: F) -> F:
        hints = typing.get_type_hints(function, include_extras=True)
        request = hints.get("body") or _create_request_type(function, hints)
        return_type = hints["return"]
        return_types = typing.get_args(return_type) if isinstance(return_type, types.UnionType) else (return_type,)
        response = next((type_ for type_ in return_types if type_ not in (Download, types.NoneType)), None)
        ENDPOINTS.append(Endpoint(method, path, function, request, response, Download in return_types, **options))
        return function

    return register


def _create_request_type(function: Callable[..., Any], hints: dict[str, Any]) -> type[PageRequest] | None:
    """Return a struct type with the keyword-only parameters of a function, or None if it has none."""
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
