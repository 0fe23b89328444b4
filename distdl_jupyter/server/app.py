"""The Jupyter Server extension: its settings and the shared state of its handlers."""

from __future__ import annotations

import asyncio
import functools
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jupyter_server.extension.application import ExtensionApp
from jupyter_server.serverapp import ServerApp
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.routing import PathMatches, Rule, RuleRouter
from tornado.web import Application
from traitlets import Float, Int, Unicode

from distdl_jupyter.api import BASE_PATH, list_endpoints
from distdl_jupyter.core.errors import DistDLError

if TYPE_CHECKING:
    from distdl_jupyter.api.endpoint import Endpoint, ServerContext
    from distdl_jupyter.server.feeds import Feeds

R = TypeVar("R")
#: Seconds after the start of the server at which the handlers are imported, unless a request arrives before that.
_IMPORT_DELAY_SECONDS = 1.0
#: Seconds between two checks for old jobs to delete; checks are hourly because timers stop while a laptop sleeps.
_PRUNE_INTERVAL_SECONDS = 3600.0
#: Number of threads for slow requests: launch forms, job starts and requests to clouds.
_SLOW_THREADS = 6


class DistDLApp(ExtensionApp):
    """Distributed training jobs: clusters, jobs and live streams under ``distdl/api``."""

    name = "distdl"
    app_name = "distdl_jupyter"
    description = "Run distributed training jobs from JupyterLab and over HTTP."
    load_other_extensions = True

    max_body_bytes = Int(10_000_000, min=1, help="Maximum size of a request body, in bytes.").tag(config=True)
    thread_count = Int(8, min=1, help="Number of threads that read files.").tag(config=True)
    cluster_seconds = Float(10.0, min=0.1, help="Timeout in seconds for the response of a cluster.").tag(config=True)
    submit_seconds = Float(120.0, min=1.0, help="Timeout in seconds to start a job or sweep.").tag(config=True)
    form_seconds = Float(30.0, min=1.0, help="Timeout in seconds to compute a launch form.").tag(config=True)
    max_code_bytes = Int(300_000, min=1, help="Maximum size of a cell or script, in bytes.").tag(config=True)
    keep_alive_seconds = Float(8.0, min=0.1, help="Seconds between heartbeats to a page.").tag(config=True)
    linger_seconds = Float(30.0, min=0.1, help="Seconds to cache data after the last page has closed.").tag(config=True)
    list_seconds = Float(0.5, min=0.05, help="Seconds between scans of the job folders.").tag(config=True)
    clusters_seconds = Float(3.0, min=0.05, help="Seconds between polls of the clusters.").tag(config=True)
    prune_older = Unicode("", help="Delete ended jobs older than this once a day (30d, 12h).").tag(config=True)
    prune_keep = Int(
        None,
        allow_none=True,
        help="Once a day, delete ended jobs except this many of the newest; with prune_older, only older ones.",
    ).tag(config=True)
    _background_task: asyncio.Task[None] | None = None

    # Plain attributes, created on first use: Jupyter reads the value of every trait at the start.

    @functools.cached_property
    def pools(self) -> list[ThreadPoolExecutor]:
        """The pool for short requests, and the pool for slow requests, which thus do not delay other requests."""
        return [ThreadPoolExecutor(count, thread_name_prefix="distdl") for count in (self.thread_count, _SLOW_THREADS)]

    async def run(self, function: Callable[..., R], *args: Any, slow: bool = False) -> R:
        """Run a blocking function with its arguments in a thread; ``slow`` selects the pool for slow requests."""
        return await asyncio.get_running_loop().run_in_executor(self.pools[slow], function, *args)

    @functools.cached_property
    def context(self) -> ServerContext:
        """The services of this server for endpoints."""
        from distdl_jupyter.api.endpoint import ServerContext
        from distdl_jupyter.clusters.cluster_configs import StatusCache
        from distdl_jupyter.jobs.job_list import JobIndex

        assert self.serverapp is not None
        return ServerContext(
            run=self.run,
            root=Path(str(getattr(self.serverapp.contents_manager, "root_dir", "") or ".")),
            job_index=JobIndex(),
            cluster_status=StatusCache(self.cluster_seconds),
            kernel_specs=self.serverapp.kernel_spec_manager,
            max_code_bytes=self.max_code_bytes,
            submit_timeout=self.submit_seconds,
            form_timeout=self.form_seconds,
        )

    @functools.cached_property
    def feeds(self) -> Feeds:
        """The feeds to which pages are subscribed."""
        from distdl_jupyter.server.feeds import Feeds

        return Feeds(self)

    def initialize_handlers(self) -> None:
        """Register the routes."""
        assert self.serverapp is not None
        application = self.serverapp.web_app
        self._routes = LazyRoutes(application, application.settings["base_url"])
        address = os.environ.get("DISTDL_DOCS", "").strip()  # only a web address is used
        docs_url = address if re.fullmatch(r"https?://\S+", address, re.IGNORECASE) else ""
        application.settings.setdefault("page_config_data", {})["distdlDocs"] = docs_url

    async def _start_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        """Start the background task after the server has started."""
        self._background_task = asyncio.create_task(self._work_in_background())

    async def _work_in_background(self) -> None:
        """Import the handlers, then prune jobs according to the settings until the server stops."""
        await asyncio.sleep(_IMPORT_DELAY_SECONDS)
        await self.run(lambda: self._routes.rules)
        while self.prune_older or self.prune_keep is not None:
            from distdl_jupyter.jobs import retention

            try:
                report = await self.run(retention.prune_daily, self.prune_older or None, self.prune_keep, slow=True)
            except (DistDLError, OSError) as error:
                self.log.warning("Old jobs were not deleted: %s", error)
            else:
                if report is not None and report.jobs:
                    self.log.info("Old jobs: %s", report)
            await asyncio.sleep(_PRUNE_INTERVAL_SECONDS)

    async def stop_extension(self) -> None:
        """Close all connections and stop the threads; jobs keep running."""
        if self._background_task is not None:
            self._background_task.cancel()
        if "feeds" in vars(self):
            self.feeds.stop()
            await asyncio.sleep(0)
        for pool in self.pools:
            pool.shutdown(wait=False, cancel_futures=True)


class LazyRoutes(RuleRouter):
    """Routes requests to the handlers. They are imported on first use, so that they do not delay the server's start."""

    def __init__(self, application: Application, base_url: str) -> None:
        self._application = application
        self._base = f"{base_url.rstrip('/')}{BASE_PATH}"
        application.default_router.rules.insert(-1, Rule(PathMatches(f"{self._base}(?:/.*)?$"), self))

    @functools.cached_property
    def rules(self) -> list[Rule]:  # type: ignore[override]  # never added to
        """All routes; an unknown path gets a 404 response in JSON."""
        from distdl_jupyter.server.events import EventsHandler
        from distdl_jupyter.server.handler import EndpointHandler

        # ``id`` is a built-in function of Python, so the argument is ``id_``.
        patterns = {"id": "(?P<id_>[^/]+)", "path": "(?P<path>.+)", "number": "(?P<number>[0-9]{1,9})"}
        endpoints_by_path: dict[str, dict[str, Endpoint]] = {}
        for endpoint in list_endpoints():
            path = re.sub(r"\{(\w+)\}", lambda name: patterns.get(name[1], f"(?P<{name[1]}>[^/]+)"), endpoint.path)
            endpoints_by_path.setdefault(path, {})[endpoint.method] = endpoint
        handlers: list[tuple[str, Any, dict[str, Any]]] = [
            *((path, EndpointHandler, {"endpoints": endpoints}) for path, endpoints in endpoints_by_path.items()),
            ("/events", EventsHandler, {}),
            ("(?:/.*)?", EndpointHandler, {"endpoints": {}}),
        ]
        return [Rule(PathMatches(f"{self._base}{path}$"), *handler) for path, *handler in handlers]

    def get_target_delegate(
        self, target: Any, request: HTTPServerRequest, **target_params: Any
    ) -> HTTPMessageDelegate | None:
        """Return the delegate that handles a request."""
        return self._application.get_handler_delegate(request, target, **target_params)
