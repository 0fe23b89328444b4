"""The extension of the Jupyter server: its settings, and what its handlers share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from jupyter_server.extension.application import ExtensionApp
from traitlets import Float, Instance, Int, default

from distdl_jupyter.server import routes
from distdl_jupyter.server.listing import Listing
from distdl_jupyter.server.streams import Streams


class DistDLApp(ExtensionApp):
    """Training jobs on many processes: clusters, jobs and live streams under ``distdl/api``."""

    name = "distdl"
    app_name = "distdl_jupyter"
    description = "Training jobs on many processes, for JupyterLab and over HTTP."
    load_other_extensions = True

    max_body_bytes = Int(10_000_000, min=1, help="Largest body of a request, in bytes.").tag(config=True)
    thread_count = Int(8, min=1, help="Threads in which files are read and jobs are started.").tag(config=True)
    cluster_seconds = Float(
        10.0, min=0.1, help="A cluster that says nothing for so many seconds is shown as not answering."
    ).tag(config=True)
    submit_seconds = Float(
        120.0, min=1.0, help="Most seconds that the Python of a kernel may take to start a job."
    ).tag(config=True)
    keep_alive_seconds = Float(
        8.0, min=0.1, help="A stream of events that has nothing to say says so every so many seconds."
    ).tag(config=True)
    list_seconds = Float(0.5, min=0.05, help="Seconds between two looks at the folders of all jobs.").tag(config=True)
    clusters_seconds = Float(3.0, min=0.05, help="Seconds between two looks at the clusters.").tag(config=True)
    pool = Instance(ThreadPoolExecutor)
    streams = Instance(Streams)

    listing = Instance(Listing, ())

    @default("pool")
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.thread_count, thread_name_prefix="distdl")

    @default("streams")
    def _streams(self) -> Streams:
        return Streams(self)

    def initialize_handlers(self) -> None:
        """Put all addresses in."""
        self.handlers.extend(routes.handlers())

    async def stop_extension(self) -> None:
        """End the streams and let go of the threads; jobs go on."""
        await self.streams.stop()
        self.pool.shutdown(wait=False, cancel_futures=True)
