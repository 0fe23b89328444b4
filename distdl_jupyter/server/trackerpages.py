"""Pages of TensorBoard and of the user's own MLflow, through this server's port and login.

A process serves them on a Unix socket (``monitoring.viewer``), started when somebody opens them; jupyter-server-proxy
passes requests on. Neither cookie nor token of Jupyter goes there, and a page of another origin can change nothing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server_proxy.handlers import SuperviseAndProxyHandler
from tornado import web

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.store import JobStore, is_id
from distdl_jupyter.monitoring import settings, trackers
from distdl_jupyter.monitoring.viewer import log_folder
from distdl_jupyter.server.lazy_routes import VIEW

#: Seconds that pages have to come up: MLflow imports much.
_START = 90
#: What is not passed on.
_WITHHELD = frozenset(("cookie", "authorization", "origin", "referer", "x-xsrftoken", "host"))


class TrackerPages(SuperviseAndProxyHandler):  # type: ignore[misc]  # without types
    """Passes requests on to the pages of a tracker, whose process it starts."""

    auth_resource = "distdl"
    name = "tracker"
    #: By what is shown: the process and its socket, as the base class keeps them.
    _known: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - shared by all requests

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, update_last_activity=False, **kwargs)

    async def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Let in who may, and find the process."""
        await super().prepare(*args, **kwargs)
        if self._finished:
            return
        await self._authorize()
        below = self.request.path[len(self.base_url.rstrip("/")) + len(VIEW) + 1 :]
        key = "mlflow" if below.startswith("mlflow/") else below.partition("/")[0]
        self.proxy_base = f"{VIEW[1:]}/{'mlflow' if key == 'mlflow' else f'{key}/tensorboard'}"
        self._command = _command(key)
        self.requested_unix_socket = True
        self.initialize(self._known.setdefault(key, {}))
        if "proc" in self.state and not self.state["proc"].running:
            self.state.clear()  # it has ended by itself; another one gets another socket
            self.initialize(self.state)

    async def _authorize(self) -> None:
        """Raise HTTPError for who may not start a process here, and for what another page asks to be changed."""
        allowed = self.authorizer.is_authorized(self, self.current_user, "execute", self.auth_resource)
        if not await ensure_async(allowed):
            raise web.HTTPError(403)
        origin = self.request.headers.get("Origin")
        if self.request.method not in ("GET", "HEAD") and origin and not self.check_origin(origin):
            raise web.HTTPError(403, "A page of another origin may change nothing here")

    @property
    def unix_socket(self) -> str:
        """A socket in a folder that only the user can open."""
        if "unix_socket" not in self.state:
            self.state["unix_socket"] = str(Path(tempfile.mkdtemp(prefix="distdl-view-"), "socket"))
        return str(self.state["unix_socket"])

    def get_cmd(self) -> list[str]:
        """Return the command of the process."""
        tracker, *more = self._command
        return [sys.executable, "-P", "-m", "distdl_jupyter.monitoring.viewer", tracker, self.unix_socket, *more]

    async def _http_ready_func(self, process: Any) -> bool:
        """Say whether it answers; one that has ended never will."""
        if process.returncode is not None:
            raise web.HTTPError(500, "The pages could not be shown; the log of Jupyter says why")
        return bool(await super()._http_ready_func(process))

    def get_timeout(self) -> int:
        """Return the seconds that it may take to answer."""
        return _START

    def proxy_request_headers(self) -> Any:
        """Pass on no secret of Jupyter's, and the name under which the pages know themselves."""
        headers = super().proxy_request_headers()
        for name in [name for name in headers if name.lower() in _WITHHELD]:
            del headers[name]
        headers["Host"] = "localhost"
        return headers


def _command(key: str) -> tuple[str, ...]:
    """Return what shows it. Raises HTTPError for a job that is not here, an MLflow elsewhere, and broken settings."""
    if key == "mlflow":
        try:
            address = trackers.mlflow_address(settings.read())
        except DistDLError as error:
            raise web.HTTPError(409, str(error)) from error
        if address.startswith(("http", "databricks", "azureml")):
            raise web.HTTPError(404, "MLflow has pages of its own")
        return ("mlflow",)
    folder = JobStore().folder(key).path if is_id(key) else None
    if folder is None or not folder.is_dir():
        raise web.HTTPError(404, "No job has this id")
    return "tensorboard", str(log_folder(folder))
