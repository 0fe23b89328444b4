"""One handler for all calls of ``distdl_jupyter.api``: permissions, parsing of requests, responses and errors.

Authentication, authorization and the size limit are checked before any of the body is stored. Calls run in threads,
because the event loop is shared with the whole server.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from concurrent.futures import Future
from http.client import responses
from typing import TYPE_CHECKING, Any, cast

import msgspec
from jupyter_core.utils import ensure_async
from jupyter_server.auth.utils import HTTP_METHOD_TO_AUTH_ACTION
from jupyter_server.base.handlers import APIHandler
from tornado import web

from distdl_jupyter.api.call import ApiCall, Download
from distdl_jupyter.core import errors
from distdl_jupyter.core.store import is_id
from distdl_jupyter.live.messages import ApiError
from distdl_jupyter.views import wire
from distdl_jupyter.views.wire import encode

if TYPE_CHECKING:
    from distdl_jupyter.server.app import DistDLApp

#: The HTTP status of each error class of this package; other classes use the status of their nearest base.
STATUSES: dict[type[Exception], int] = {
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
    426: "Configure the proxy to forward WebSockets. Kernels also need them.",
}


def get_status_code(error: BaseException) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, web.HTTPError):
        return error.status_code
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)


def to_api_error(error: BaseException | None, status: int) -> ApiError:
    """Return an error for a page; only the server's log has the details of an unexpected error."""
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


@web.stream_request_body
class Handler(APIHandler):
    """Base of all handlers under ``distdl/api``."""

    auth_resource = "distdl"
    #: Whether a request counts as activity, for servers that are culled when idle.
    _track_activity = True
    #: The calls of this address, by verb.
    calls: Mapping[str, ApiCall] = {}

    @property
    def app(self) -> DistDLApp:
        """The extension with its settings."""
        return cast("DistDLApp", self.settings["distdl"])

    async def prepare(self, **_redirect: bool) -> None:
        """Check permissions before the body arrives; the body of a rejected request is discarded."""
        self._body = bytearray()
        #: Done when the page no longer waits for the response.
        self.disconnected: Future[None] = Future()
        self._rejection: web.HTTPError | None = None
        try:
            await super().prepare()
        except web.HTTPError as error:
            self._rejection = error
        verb = str(self.request.method)
        call = self.calls.get(verb.lower())
        action = call.action if call else HTTP_METHOD_TO_AUTH_ACTION[verb]
        if self._rejection is None and verb != "OPTIONS":
            if self.current_user is None:
                self._rejection = web.HTTPError(403, "Not logged in")
            elif not await self.is_allowed(self.current_user, action):
                message = f"This user does not have permission to {action} {self.auth_resource}"
                self._rejection = web.HTTPError(403, message)
        if self._rejection is not None:
            # Raise the error after the body has arrived, because closing the connection earlier looks like a failure.
            setattr(self, verb.lower(), lambda **_path: self.read_body())

    async def is_allowed(self, user: Any, action: str) -> bool:
        """Return whether the server's Authorizer allows an action."""
        return bool(await ensure_async(self.authorizer.is_authorized(self, user, action, self.auth_resource)))

    def data_received(self, chunk: bytes) -> None:
        """Store a chunk of the body, up to the limit."""
        if self._rejection is None and len(self._body) + len(chunk) > self.app.max_body_bytes:
            self._rejection = web.HTTPError(413, f"The request body must not exceed {self.app.max_body_bytes:,} bytes")
            self._body.clear()
        if self._rejection is None:
            self._body += chunk

    def read_body(self) -> bytearray:
        """Return the whole body. Raises the HTTPError of a rejected request."""
        if self._rejection is not None:
            raise self._rejection
        return self._body

    def on_connection_close(self) -> None:
        """Signal cancellation to the running call."""
        self.disconnected.cancel()
        super().on_connection_close()

    def log_exception(self, error_type: Any, error: Any, traceback: Any) -> None:
        """Log unexpected errors with their traceback; expected errors of the request are not logged."""
        if get_status_code(error) >= 500 and not isinstance(error, errors.DistDLError):
            super().log_exception(error_type, error, traceback)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write ``{message, type, hint, field, code}`` with the status of the error's class."""
        error = (kwargs.get("exc_info") or (None, None))[1]
        if error is not None:
            status_code = get_status_code(error)
            self.set_status(status_code)
        if status_code == 405:
            self.set_header("Allow", ", ".join([*(verb.upper() for verb in self.calls), "OPTIONS"]))
        if status_code == 426:
            self.set_header("Upgrade", "websocket")
        self.finish(encode(to_api_error(error, status_code)))


class CallHandler(Handler):
    """Handles the API calls of one address; an unknown address has no calls."""

    def initialize(self, calls: dict[str, ApiCall]) -> None:
        """Set the calls by HTTP method."""
        self.calls = calls

    async def _run(self, **path: str) -> None:
        call = self.calls.get(str(self.request.method).lower())
        if call is None:
            raise web.HTTPError(405) if self.calls else web.HTTPError(404, "Unknown API address")
        response = await self._run_call(call, path)
        self.set_status(call.status)
        if isinstance(response, Download):
            await self._send(response)
        elif response is not None:
            self.finish(await self.app.run(encode, response))

    get = post = put = patch = delete = web.authenticated(_run)

    async def _run_call(self, call: ApiCall, path: dict[str, str]) -> Any:
        """Run the function with the arguments that it declares. Raises InvalidSpec, JobNotFound."""
        if "id_" in path and not is_id(path["id_"]):
            raise errors.JobNotFound(
                "No job has this id.", code="job-id-invalid", hint="A job id looks like 20261121-024912-k3f9x."
            )
        arguments: dict[str, Any] = {**path, "disconnected": self.disconnected, "context": self.app.context}
        if call.request is not None:
            query, kind = self.request.query_arguments, call.request
            body = wire.from_query(kind, query) if call.verb == "get" else wire.from_json(kind, self.read_body())
            arguments |= {**msgspec.structs.asdict(body), "body": body}
        parameters = inspect.signature(call.function).parameters
        arguments = {name: value for name, value in arguments.items() if name in parameters}
        if inspect.iscoroutinefunction(call.function):
            return await call.function(**arguments)
        if "reader" in parameters:
            return await self.app.feeds.read_job(path["id_"], lambda reader: call.function(reader=reader, **arguments))
        return await self.app.run(functools.partial(call.function, **arguments), slow=call.slow)

    async def _send(self, download: Download) -> None:
        """Send a file in pieces."""
        self.set_header("Content-Type", download.media_type)
        self.set_header("Cache-Control", download.cache_control)
        if download.size is not None:
            self.set_header("Content-Length", download.size)
        if download.name:
            self.set_attachment_header(download.name)
        try:
            while (chunk := await self.app.run(next, download.chunks, None)) is not None:
                self.write(chunk)
                await self.flush()
        finally:
            await self.app.run(download.chunks.close)
        self.finish(set_content_type=download.media_type)
