"""A call of the HTTP API: one typed function, and what the server and the OpenAPI document read from it.

The decorators ``get``, ``post``, ``patch`` and ``delete`` put a function into the table. Its parameters declare the
arguments of the call:

- a part of the path (``{id}`` is ``id_``, ``{name}`` is ``name``)
- keyword-only parameters: the query of a ``get``, else the fields of the JSON body
- ``body``: a JSON body whose shape is a ``PageRequest``
- ``context``: the services of the server for the call
- ``reading``: the up-to-date reader of the job in the path, shared by all pages
- ``gone``: an event that is set when the page no longer waits for the response

Its return value is the response; its docstring is the description.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import msgspec

from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.store import is_id
from distdl_jupyter.jobs import client
from distdl_jupyter.live.messages import Subscription
from distdl_jupyter.views.wire import PageRequest

if TYPE_CHECKING:
    from distdl_jupyter.clusters.status import StatusCache
    from distdl_jupyter.jobs.job_list import JobIndex
    from distdl_jupyter.jobs.reader import PageReader

F = TypeVar("F", bound=Callable[..., Any])

JSON = "application/json"
BYTES = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class ApiError:
    """The body of every error. ``field`` is the invalid part of the request, "" for none.

    ``code`` is the stable name of the error (``cluster-unknown``), by which the documentation lists its fix.
    """

    message: str
    type: str
    hint: str
    field: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A subscription that is not valid; the connection ends."""

    error: ApiError
    type: Literal["refused"]


@dataclass(frozen=True, slots=True)
class Context:
    """The services of the server that a call may use."""

    #: Runs a function that may block in a thread, with its arguments.
    run: Callable[..., Awaitable[Any]]
    #: Runs a function in a thread with the reader of a job, which all pages share. Raises JobNotFound.
    read_job: Callable[[str, Callable[[PageReader], Any]], Awaitable[Any]]
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

    pieces: Generator[bytes, None, None]
    media: str
    name: str = ""
    #: In bytes, None if unknown before the end.
    size: int | None = None
    #: The ``Cache-Control`` header.
    cache: str = "no-store"


@dataclass(frozen=True, slots=True)
class Call:
    """One verb of one address. The fields from ``status`` on are arguments of the decorators."""

    verb: str
    #: The address below ``distdl/api``, with ``{id}`` for one part and ``{path}`` for the rest.
    path: str
    description: str
    #: None for the WebSocket, which has a handler of its own.
    function: Callable[..., Any] | None = None
    #: The names of the function's parameters.
    parameters: frozenset[str] = frozenset()
    #: The types of the query, of the JSON body, and of the JSON response; None for none.
    query: type[PageRequest] | None = None
    body: type[PageRequest] | None = None
    answer: Any = None
    #: The type of what the page sends over a WebSocket.
    receives: type[PageRequest] | None = None
    status: int = 200
    #: The type of a response that is not JSON.
    media: str = JSON
    #: Statuses of errors that a valid request may get.
    refuses: tuple[int, ...] = ()
    #: The permission that the user needs; by default "read" for ``get``, else "write". A call that starts a process,
    #: connects to another machine or reads a path of the request needs "execute", as a kernel does.
    action: Literal["read", "write", "execute"] = "read"
    #: Whether it may take seconds; it then runs in a small separate pool.
    slow: bool = False


#: All calls, in the order of the modules of this package.
CALLS = [Call("get", "/events", "Open a WebSocket.", status=101, refuses=(426,), receives=Subscription)]


def _call(verb: str, path: str, **more: Any) -> Callable[[F], F]:
    """Put a function into the table; ``more`` are the last fields of its ``Call``."""

    def register(function: F) -> F:
        hints = typing.get_type_hints(function, include_extras=True)
        request = hints.get("body") or _request(function, hints)
        # What is not JSON in a return type has no schema.
        kinds = typing.get_args(hints["return"]) or (hints["return"],)
        more.setdefault("action", "read" if verb == "get" else "write")
        CALLS.append(
            Call(
                verb,
                path,
                description=inspect.getdoc(function) or "",
                function=function,
                parameters=frozenset(inspect.signature(function).parameters),
                query=request if verb == "get" else None,
                body=None if verb == "get" else request,
                answer=next((kind for kind in kinds if kind not in (Download, type(None))), None),
                **more,
            )
        )
        return function

    return register


def _request(function: Callable[..., Any], hints: dict[str, Any]) -> type[PageRequest] | None:
    """Return the keyword-only parameters of a function as a struct, None if it has none."""
    fields = [
        (name, hints[name]) if parameter.default is parameter.empty else (name, hints[name], parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    if not fields:
        return None
    name = "".join(part.title() for part in function.__name__.split("_")) + "Request"
    return cast("type[PageRequest]", msgspec.defstruct(name, fields, bases=(PageRequest,), frozen=True, kw_only=True))


get = functools.partial(_call, "get")
post = functools.partial(_call, "post")
patch = functools.partial(_call, "patch")
delete = functools.partial(_call, "delete")


def path_argument(part: str) -> str:
    """Return the name of the parameter for a part of the path; ``id`` is a built-in function of Python."""
    return "id_" if part == "id" else part


def checked_id(id_: str) -> str:
    """Return a job's full id. Raises JobNotFound for anything else, so that a path is never used as a file name."""
    if not is_id(id_):
        raise JobNotFound(
            "No job has this id.", code="job-id-invalid", hint="A job id looks like 20261121-024912-k3f9x."
        )
    return id_


def job(id_: str) -> client.Job:
    """Return the handle of a job by its full id. Raises JobNotFound."""
    return client.attach(checked_id(id_))
