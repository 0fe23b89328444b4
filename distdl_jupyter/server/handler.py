"""The handler of all API endpoints: permissions, parsing of requests, responses and errors.

Authentication, authorization and the size limit are checked before any of the body is stored. Endpoints run in threads,
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

from distdl_jupyter.api.endpoint import Download, Endpoint
from distdl_jupyter.core import errors
from distdl_jupyter.core.store import is_id
from distdl_jupyter.live.messages import ApiError
from distdl_jupyter.views import wire
from distdl_jupyter.views.wire import encode

if TYPE_CHECKING:
    from distdl_jupyter.server.app import DistDLApp

#: The HTTP status of each error class of this package; other classes use the status of their nearest base class.
STATUS_CODES: dict[type[Exception], int] = {
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
#: The remedies for the server's own errors, by HTTP status.
HINTS = {
    403: "Reload the page to log in again, or ask the administrator of this server for permission.",
    404: "Reload the page. The server may run another version of distdl_jupyter.",
    426: "Configure the proxy to forward WebSockets. Kernels also need them.",
}


def get_status_code(error: BaseException) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, web.HTTPError):
        return error.status_code
    return next((STATUS_CODES[class_] for class_ in type(error).__mro__ if class_ in STATUS_CODES), 500)


def to_api_error(error: BaseException | None, status: int) -> ApiError:
    """Return the response body for an error; only the server's log has the details of an unexpected error."""
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
    #: The endpoints of this path by HTTP method in lower case.
    endpoints: Mapping[str, Endpoint] = {}

    @property
    def app(self) -> DistDLApp:
        """The server extension."""
        return cast("DistDLApp", self.settings["distdl"])

    async def prepare(self, **_redirect: bool) -> None:
        """Check permissions before the body arrives; the body of a rejected request is discarded."""
        self._body = bytearray()
        #: Done when the client disconnects.
        self.disconnected: Future[None] = Future()
        self._rejection: web.HTTPError | None = None
        try:
            await super().prepare()
        except web.HTTPError as error:
            self._rejection = error
        method = str(self.request.method)
        endpoint = self.endpoints.get(method.lower())
        action = endpoint.action if endpoint else HTTP_METHOD_TO_AUTH_ACTION[method]
        if self._rejection is None and method != "OPTIONS":
            if self.current_user is None:
                self._rejection = web.HTTPError(403, "Not logged in")
            elif not await self.is_allowed(self.current_user, action):
                message = f"This user does not have permission to {action} {self.auth_resource}"
                self._rejection = web.HTTPError(403, message)
        if self._rejection is not None:
            # Raise the error after the body has arrived, because closing the connection earlier looks like a failure.
            setattr(self, method.lower(), lambda **_path: self.read_body())

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
        """Signal to the running endpoint that the client has disconnected."""
        self.disconnected.cancel()
        super().on_connection_close()

    def log_exception(self, error_type: Any, error: Any, traceback: Any) -> None:
        """Log unexpected errors with their traceback; expected errors of the request are not logged."""
        if get_status_code(error) >= 500 and not isinstance(error, errors.DistDLError):
            super().log_exception(error_type, error, traceback)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write an ``ApiError`` with the status of the error's class."""
        error = (kwargs.get("exc_info") or (None, None))[1]
        if error is not None:
            status_code = get_status_code(error)
            self.set_status(status_code)
        if status_code == 405:
            self.set_header("Allow", ", ".join([*(method.upper() for method in self.endpoints), "OPTIONS"]))
        if status_code == 426:
            self.set_header("Upgrade", "websocket")
        self.finish(encode(to_api_error(error, status_code)))


class EndpointHandler(Handler):
    """Handles the endpoints of one path; an unknown path has no endpoints."""

    def initialize(self, endpoints: dict[str, Endpoint]) -> None:
        """Set the endpoints by HTTP method in lower case."""
        self.endpoints = endpoints

    async def _run(self, **path_parameters: str) -> None:
        endpoint = self.endpoints.get(str(self.request.method).lower())
        if endpoint is None:
            raise web.HTTPError(405) if self.endpoints else web.HTTPError(404, "Unknown API path")
        response = await self._run_endpoint(endpoint, path_parameters)
        self.set_status(endpoint.status)
        if isinstance(response, Download):
            await self._send_file(response)
        elif response is not None:
            self.finish(await self.app.run(encode, response))

    get = post = put = patch = delete = web.authenticated(_run)

    async def _run_endpoint(self, endpoint: Endpoint, path_parameters: dict[str, str]) -> Any:
        """Call the endpoint's function with the arguments that it declares. Raises InvalidSpec, JobNotFound."""
        job_id = path_parameters.get("id_", "")
        if "id_" in path_parameters and not is_id(job_id):
            hint = "A job id looks like 20261121-024912-k3f9x."
            raise errors.JobNotFound("No job has this id.", code="job-id-invalid", hint=hint)
        arguments = {**path_parameters, "disconnected": self.disconnected, "context": self.app.context}
        if endpoint.request is not None:
            model, query = endpoint.request, self.request.query_arguments
            is_get = endpoint.method == "get"
            body = wire.from_query(model, query) if is_get else wire.from_json(model, self.read_body())
            arguments |= {**msgspec.structs.asdict(body), "body": body}
        function, parameters = endpoint.function, inspect.signature(endpoint.function).parameters
        arguments = {name: value for name, value in arguments.items() if name in parameters}
        if inspect.iscoroutinefunction(function):
            return await function(**arguments)
        if "reader" in parameters:
            return await self.app.feeds.read_job(job_id, lambda reader: function(reader=reader, **arguments))
        return await self.app.run(functools.partial(function, **arguments), slow=endpoint.slow)

    async def _send_file(self, download: Download) -> None:
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
