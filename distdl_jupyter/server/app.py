"""The extension of the Jupyter server: its settings and the shared state of its handlers."""

from __future__ import annotations

import asyncio
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jupyter_server.extension.application import ExtensionApp
from traitlets import Float, Int, Unicode

from distdl_jupyter.server import routes

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_server.serverapp import ServerApp

    from distdl_jupyter.api.call import Context
    from distdl_jupyter.server.sources import Sources

R = TypeVar("R")
#: Seconds after the start when the handlers are imported, unless a request came earlier.
_WARM_UP = 1.0
#: Seconds between two checks whether old jobs must be deleted: the clock of a sleeping laptop does not advance.
_PRUNED = 3600.0
#: Maximum number of slow calls at once: launch forms and job starts.
_SLOW = 4


class DistDLApp(ExtensionApp):
    """Training jobs on many processes: clusters, jobs and live streams under ``distdl/api``."""

    name = "distdl"
    app_name = "distdl_jupyter"
    description = "Run distributed training jobs from JupyterLab and over HTTP."
    load_other_extensions = True

    max_body_bytes = Int(10_000_000, min=1, help="Maximum size of a request body, in bytes.").tag(config=True)
    thread_count = Int(8, min=1, help="Number of threads that read files.").tag(config=True)
    cluster_seconds = Float(
        10.0, min=0.1, help="A cluster without a response for this many seconds is shown as not responding."
    ).tag(config=True)
    submit_seconds = Float(120.0, min=1.0, help="Maximum time in seconds for a kernel's Python to start a job.").tag(
        config=True
    )
    form_seconds = Float(30.0, min=1.0, help="Maximum time in seconds to compute a launch form.").tag(config=True)
    max_code_bytes = Int(300_000, min=1, help="Maximum size of a cell or script in a request, in bytes.").tag(
        config=True
    )
    keep_alive_seconds = Float(8.0, min=0.1, help="Seconds between keep-alive messages on an event stream.").tag(
        config=True
    )
    linger_seconds = Float(
        30.0, min=0.1, help="Seconds for which data is cached after the last page that used it has closed."
    ).tag(config=True)
    list_seconds = Float(0.5, min=0.05, help="Seconds between scans of the job folders.").tag(config=True)
    clusters_seconds = Float(3.0, min=0.05, help="Seconds between polls of the clusters.").tag(config=True)
    prune_older = Unicode(
        "", help="Delete ended jobs older than this at startup and then once a day (30d, 12h). Empty: never."
    ).tag(config=True)
    prune_keep = Int(
        None,
        allow_none=True,
        help="Keep this many of the newest jobs, and delete other ended jobs at startup and then once a day. With "
        "prune_older, only older jobs are deleted.",
    ).tag(config=True)
    _warm_up: asyncio.TimerHandle | None = None
    _pruning: asyncio.Task[None] | None = None

    # Plain attributes, created on first use: Jupyter reads the value of every trait at the start.

    @functools.cached_property
    def pool(self) -> ThreadPoolExecutor:
        """The threads that read files and run short calls."""
        return ThreadPoolExecutor(self.thread_count, thread_name_prefix="distdl")

    @functools.cached_property
    def slow_pool(self) -> ThreadPoolExecutor:
        """The threads that compute forms and start jobs."""
        return ThreadPoolExecutor(_SLOW, thread_name_prefix="distdl-slow")

    async def run(self, function: Callable[..., R], *args: Any, slow: bool = False) -> R:
        """Run a function that may block in a thread, with its arguments; ``slow``: in the pool for slow calls."""
        pool = self.slow_pool if slow else self.pool
        return await asyncio.get_running_loop().run_in_executor(pool, function, *args)

    @functools.cached_property
    def context(self) -> Context:
        """The services of this server for API calls."""
        from distdl_jupyter.api.call import Context
        from distdl_jupyter.clusters.status import StatusCache
        from distdl_jupyter.jobs.job_list import JobIndex

        assert self.serverapp is not None
        return Context(
            run=self.run,
            read_job=self.sources.read_job,
            root=Path(str(getattr(self.serverapp.contents_manager, "root_dir", "") or ".")),
            listing=JobIndex(),
            clusters=StatusCache(self.cluster_seconds),
            kernel_specs=self.serverapp.kernel_spec_manager,
            max_code_bytes=self.max_code_bytes,
            submit_seconds=self.submit_seconds,
            form_seconds=self.form_seconds,
        )

    @functools.cached_property
    def sources(self) -> Sources:
        """The sources that pages are subscribed to."""
        from distdl_jupyter.server.sources import Sources

        return Sources(self)

    def initialize_handlers(self) -> None:
        """Register all addresses."""
        assert self.serverapp is not None
        application = self.serverapp.web_app
        self._routes = routes.add(application, application.settings["base_url"])
        application.settings.setdefault("page_config_data", {})["distdlDocs"] = self._docs_address()

    def _docs_address(self) -> str:
        if "DISTDL_DOCS" not in os.environ:
            return ""
        from distdl_jupyter.core.errors import InvalidSpec, docs_address

        try:
            return docs_address()
        except InvalidSpec as error:
            self.log.warning("%s", error)
            return ""

    async def _start_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        """Import the handlers and start pruning after the server has started."""
        loop = asyncio.get_running_loop()
        self._warm_up = loop.call_later(_WARM_UP, lambda: loop.run_in_executor(self.pool, lambda: self._routes.rules))
        if self.prune_older or self.prune_keep is not None:
            self._pruning = loop.create_task(self._prune_daily())

    async def _prune_daily(self) -> None:
        """Delete old jobs according to the settings until the server stops."""
        await asyncio.sleep(_WARM_UP)
        while True:
            await self.run(self._prune, slow=True)
            await asyncio.sleep(_PRUNED)

    def _prune(self) -> None:
        from distdl_jupyter.core.errors import DistDLError
        from distdl_jupyter.jobs import retention

        try:
            done = retention.prune_daily(self.prune_older or None, self.prune_keep)
        except (DistDLError, OSError) as error:
            self.log.warning("Old jobs were not deleted: %s", error)
            return
        if done is not None and done.jobs:
            self.log.info("Old jobs: %s", done.summary())
            for job in done.failed:
                self.log.warning("Job %s could not be deleted: %s", job.id, job.problem)

    async def stop_extension(self) -> None:
        """Close all connections and end the threads; jobs keep running."""
        for waiting in (self._warm_up, self._pruning):
            if waiting is not None:
                waiting.cancel()
        if "sources" in vars(self):
            self.sources.stop()
            await asyncio.sleep(0)
        for pool in (self.pool, self.slow_pool):
            pool.shutdown(wait=False, cancel_futures=True)
