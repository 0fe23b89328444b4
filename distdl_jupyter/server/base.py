"""What all handlers share: who may ask, how a request is read, how an answer and an error are written.

A handler's method says with ``answers`` what it takes and gives as dataclasses (``server.schema``); the OpenAPI file is
made of that. Authentication, authorization and the limit of a body are checked before a byte of the body is kept.
Whatever may take time runs in a thread: the event loop belongs to the whole server.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http.client import responses
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from jupyter_core.utils import ensure_async
from jupyter_server.auth.utils import HTTP_METHOD_TO_AUTH_ACTION
from jupyter_server.base.handlers import APIHandler
from tornado import web

from distdl_jupyter.core import errors
from distdl_jupyter.core.store import is_id
from distdl_jupyter.server.schema import ApiError
from distdl_jupyter.views import requests
from distdl_jupyter.views.wire import encode

if TYPE_CHECKING:
    from distdl_jupyter.server.app import DistDLApp

P = ParamSpec("P")
R = TypeVar("R")
Method = Callable[..., Awaitable[Any]]

#: The HTTP status of each error of this package; a class that is not here has that of its nearest base.
STATUS: dict[type[Exception], int] = {
    errors.InvalidSpec: 400,
    errors.JobNotFound: 404,
    errors.ClusterNotFound: 404,
    errors.JobNotRunning: 409,
    errors.JobStillRunning: 409,
    errors.ClusterRefused: 409,
    errors.ResultUnavailable: 410,
    errors.PluginUnavailable: 424,
    errors.NotSignedIn: 424,
    errors.AzureRefused: 502,
    errors.DataUnavailable: 502,
    errors.LaunchFailed: 502,
    errors.MessageNotSent: 502,
    errors.DiskRefused: 507,
    errors.DistDLError: 500,
}
#: The remedies of the server's own errors.
HINTS = {
    403: "Reload the page to log in again, or ask the administrator of this server for permission.",
    404: "Reload the page. The server may run another version of distdl_jupyter.",
    426: "Configure the proxy to forward WebSockets. Kernels need them too.",
}


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, web.HTTPError):
        return error.status_code
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def error_body(error: BaseException | None, status: int) -> ApiError:
    """Return an error as pages are told of it; what went wrong inside stays in the server's own log."""
    if isinstance(error, errors.DistDLError):
        output = getattr(error, "output", "")
        message = "\n".join(part for part in (error.message, output) if part)
        return ApiError(message, type(error).__name__, error.hint, getattr(error, "field", ""), error.code)
    reason = responses.get(status, "Unknown error")
    if isinstance(error, web.HTTPError):
        message = f"{error.log_message or error.reason or reason}".strip().rstrip(".")
        return ApiError(f"{message}.", reason.title().replace(" ", ""), HINTS.get(status, ""), code=f"http-{status}")
    message = "The server failed to handle this request."
    return ApiError(message, "InternalServerError", "See the server log for the cause.", code="internal-error")


@dataclass(frozen=True, slots=True)
class Operation:
    """One verb of one resource, as the OpenAPI file tells it. ``media`` is the type of an answer that is no JSON.

    Over a WebSocket the page sends ``receives``, and is told what is a ``Message`` (``server.messages``).
    """

    answer: type | None
    status: int
    query: type | None
    body: type | None
    media: str
    refuses: tuple[int, ...]
    receives: type | None = None


def answers(
    answer: type | None = None, *, status: int = 200, query: type | None = None, body: type | None = None,
    media: str = "application/json", refuses: tuple[int, ...] = (), receives: type | None = None,
) -> Callable[[Method], Method]:  # fmt: skip
    """Decorate a handler's method: it is given ``query`` and ``body`` filled in, and what it returns is the answer.

    ``refuses`` are the statuses of errors that a right request may meet. A method that returns None has written its
    answer itself, or has none.
    """
    operation = Operation(answer, status, query, body, media, refuses, receives)

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        async def run(self: Handler, **path: str) -> None:
            given: dict[str, Any] = dict(path)
            if query is not None:
                given["query"] = requests.from_query(query, self.request.query_arguments)
            if body is not None:
                given["body"] = requests.from_json(body, self.body())
            self.set_status(status)
            found = await method(self, **given)
            if found is not None:
                self.finish(await self.run_in_thread(encode, found))

        # What it asks was answered before (``Handler.prepare``); Jupyter warns of a method without it.
        wrapped: Any = web.authenticated(run)
        wrapped.operation = operation
        return cast("Method", wrapped)

    return decorate


def reads(method: Method) -> Method:
    """Mark a method (below ``answers``) that changes nothing although its verb says so: who may read may call it."""
    method.action = "read"  # type: ignore[attr-defined]
    return method


def executes(method: Method) -> Method:
    """Mark a method (below ``answers``) that starts a process, asks another machine or reads a path of the request.

    Who calls it needs the right to execute, as for starting a kernel.
    """
    method.action = "execute"  # type: ignore[attr-defined]
    return method


def _action(method: Any, verb: str) -> str:
    return str(getattr(inspect.unwrap(method), "action", HTTP_METHOD_TO_AUTH_ACTION[verb]))


@web.stream_request_body
class Handler(APIHandler):
    """Base of all handlers under ``distdl/api``."""

    auth_resource = "distdl"
    #: Whether asking counts as somebody being here, for servers that are culled when idle.
    _track_activity = True

    @property
    def root(self) -> Path:
        """The folder whose notebooks the server shows."""
        return Path(str(getattr(self.contents_manager, "root_dir", "") or "."))

    async def prepare(self, **_redirect: bool) -> None:
        """Decide who may do this before the body comes; of a request that is refused nothing is kept."""
        self._body = bytearray()
        #: Set when nobody waits for the answer any more.
        self.gone = threading.Event()
        self._refused: web.HTTPError | None = None
        try:
            await super().prepare()
            if self.request.method != "OPTIONS":
                await self._authorize()
        except web.HTTPError as refused:
            # Told when the body has come, because a connection that is closed before would look broken.
            self._refused = refused
            setattr(self, str(self.request.method).lower(), self._refuse)

    async def _authorize(self) -> None:
        verb = str(self.request.method)
        action = _action(getattr(self, verb.lower()), verb)
        if self.current_user is None:
            raise web.HTTPError(403, "Not logged in")
        if not await self.may(self.current_user, action):
            raise web.HTTPError(403, f"This user does not have permission to {action} {self.auth_resource}")

    async def may(self, user: Any, action: str) -> bool:
        """Say whether the server's Authorizer lets a user do this."""
        return bool(await ensure_async(self.authorizer.is_authorized(self, user, action, self.auth_resource)))

    def _refuse(self, **_path: str) -> None:
        assert self._refused is not None
        raise self._refused

    def data_received(self, chunk: bytes) -> None:
        """Keep a piece of the body, up to the limit."""
        if self._refused is None and len(self._body) + len(chunk) > self.app.max_body_bytes:
            self._refused = web.HTTPError(413, f"The request body must not exceed {self.app.max_body_bytes:,} bytes")
            self._body.clear()
        if self._refused is None:
            self._body += chunk

    def body(self) -> bytearray:
        """Return the whole body. Raises HTTPError 413."""
        if self._refused is not None:
            raise self._refused
        return self._body

    @property
    def app(self) -> DistDLApp:
        """The extension with its settings."""
        return cast("DistDLApp", self.settings["distdl"])

    async def run_in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run something that may take time in a thread of this extension."""
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.app.pool, call)

    async def slowly(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run what may take long in a thread of those few, so that it keeps no other request waiting."""
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.app.slow_pool, call)

    def on_connection_close(self) -> None:
        """Tell whoever works for this page."""
        self.gone.set()
        super().on_connection_close()

    def log_exception(self, kind: Any, error: Any, trace: Any) -> None:
        """Log what nobody expected with its traceback; errors that are part of the conversation need none."""
        if status_of(error) >= 500 and not isinstance(error, errors.DistDLError):
            super().log_exception(kind, error, trace)

    def _allowed(self) -> str:
        """Return the verbs that this address has."""
        missing = web.RequestHandler._unimplemented_method  # noqa: SLF001 - tornado names it nowhere else
        return ", ".join(verb for verb in self.SUPPORTED_METHODS if getattr(type(self), verb.lower()) is not missing)

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Answer with the status of the error's class."""
        error = (kwargs.get("exc_info") or (None, None))[1]
        super().send_error(status_of(error) if error is not None else status_code, **kwargs)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer ``{message, type, hint, field, code}``."""
        if status_code == 405:
            self.set_header("Allow", self._allowed())
        error = (kwargs.get("exc_info") or (None, None))[1]
        self.finish(encode(error_body(error, status_code)))


def checked_id(id_: str) -> str:
    """Return a job's whole id. Raises JobNotFound for anything else, so that no path ever becomes a file's name."""
    if not is_id(id_):
        raise errors.JobNotFound(
            "No job has this id.", code="job-id-invalid", hint="A job id looks like 20261121-024912-k3f9x."
        )
    return id_


class Nothing(Handler):
    """Every address under ``distdl/api`` that is none."""

    async def prepare(self) -> None:  # type: ignore[override]  # as above
        """Refuse, after the same questions as everywhere."""
        await super().prepare()
        if self._refused is None and self.request.method != "OPTIONS":
            self._refused = web.HTTPError(404, "There is nothing at this address")
            setattr(self, str(self.request.method).lower(), self._refuse)
