"""Spark as a cluster: a job waits for the slots of one barrier stage, and its nodes are the stage's tasks."""

from __future__ import annotations

import dataclasses
import re
import signal
import socket
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.agents import placing
from distdl_jupyter.clusters.agents.cluster import AgentCluster
from distdl_jupyter.clusters.agents.connection import DIRECTORY, Connection, end_all
from distdl_jupyter.clusters.agents.staging import AgentNodes
from distdl_jupyter.clusters.base import Check, Context, NodeInfo, Notice
from distdl_jupyter.clusters.spark import session
from distdl_jupyter.clusters.spark.options import Order, SparkOptions
from distdl_jupyter.clusters.spark.stage import END_SECONDS, MARK, Stage
from distdl_jupyter.clusters.spark.stage import nodes as ask_nodes
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.machine import has_java
from distdl_jupyter.core.plan import Placement
from distdl_jupyter.node import processes

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Unreachable
    from distdl_jupyter.clusters.agents.staging import Job
    from distdl_jupyter.core.spec import JobSpec

#: Executors that a check looks at, and seconds for them to be there.
_MOST_CHECKED = 1000
_CHECK_SECONDS = 20.0
_ENDS_WITH_KERNEL = Notice(
    "info", "This job runs in the Spark session of its notebook, so it ends when the kernel does.", "kernel-session"
)


class SparkCluster(AgentCluster):
    """Runs ranks on the executors of a Spark cluster."""

    name = "spark"
    title = "Spark"
    Options = SparkOptions
    queues = True
    several_per_host = True

    def __init__(self) -> None:
        super().__init__()
        self._stage_run: Stage | None = None

    def unavailable(self, options: SparkOptions) -> str:
        """Spark must be installed here, and Java where this machine is the driver."""
        if find_spec("pyspark") is None:
            return "Spark is not installed in this environment. Run: pip install 'distdl-jupyter[spark]'"
        if options.master and not options.remote and not has_java():
            return "Spark needs Java, but Java was not found. Install Java 17 or newer, or set JAVA_HOME."
        return ""

    def validate(self, options: SparkOptions) -> None:
        """Refuse what is no Spark cluster, and settings that are none."""
        given = sum(map(bool, (options.master, options.remote, options.session)))
        if not given:
            raise InvalidSpec(session.NONE, code="spark-no-master", field="master", hint=session.NONE_HINT)
        if given > 1:
            raise InvalidSpec(
                "A Spark cluster cannot have both a master and a remote.",
                code="spark-master-and-remote",
                field="master",
                hint='Set master="spark://HOST:7077", or remote="sc://HOST:15002" for Spark Connect.',
            )
        if options.remote and not re.match(r"sc://[^/:]+", options.remote):
            raise InvalidSpec(
                f"remote is {options.remote!r}, but must have the form sc://HOST:15002.",
                code="spark-remote-invalid",
                field="remote",
            )
        if "token=" in options.remote:
            raise InvalidSpec(
                "remote contains a token, which is a secret.",
                code="spark-remote-secret",
                field="remote",
                hint="Remove it, and set the environment variable SPARK_CONNECT_AUTHENTICATE_TOKEN.",
            )
        if options.cpus_per_process < 1 or options.gpus_per_node < 0:
            name, least = ("cpus_per_process", 1) if options.cpus_per_process < 1 else ("gpus_per_node", 0)
            raise InvalidSpec(
                f"{name} is {getattr(options, name)}, but must be at least {least}.",
                code="spark-number-too-small",
                field=name,
            )
        options.settings()

    def by_itself(self) -> dict[str, Any] | None:
        """Return where the session of this process is, as a notebook that uses Spark has one."""
        return session.active()

    def process_count_per_node(self, options: SparkOptions, *, use_gpu: bool | None) -> int:
        """Return the GPUs that a job takes of each node, 1 without any."""
        return max(1, options.gpus_per_node) if use_gpu is not False else 1

    def detail(self, options: SparkOptions) -> str:
        """Return the address."""
        return options.address

    def nodes(self, options: SparkOptions) -> list[NodeInfo]:
        """Return the executors that a job could have. Raises LaunchFailed when Spark does not answer."""
        self.validate(options)
        return [NodeInfo(**row) for row in ask_nodes(options)]

    def checks(
        self, options: SparkOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()
    ) -> list[Check]:
        """Ask an agent on each executor that is free."""
        from distdl_jupyter.clusters.agents import checkup

        connections: list[Connection] = []
        stage: Stage | None = None
        try:
            self.validate(options)
            stage = Stage(options, Order(name="check", tasks=_MOST_CHECKED, least=1, whole=True))
            stage.await_tasks(lambda _why: None, _CHECK_SECONDS)
            connections = stage.port.connect(options.directory or DIRECTORY)
            return list(checkup.look(connections, [], options, modules, programs, several_per_host=True).checks)
        except DistDLError as error:
            return [
                Check(
                    "",
                    "Spark",
                    "error",
                    error.message,
                    error.hint or "See the log of the Spark master.",
                    code=error.code,
                )
            ]
        finally:
            end_all(connections)
            if stage is not None:
                stage.close()

    def preview(self, spec: JobSpec, options: SparkOptions) -> Placement:
        """Place rank r on node r // process_count_per_node; Spark names the nodes when the job gets them."""
        self.validate(options)
        return placing.before_contact(spec, options.gpus_per_node)

    # start ------------------------------------------------------------------------------------

    def _connect(self, spec: JobSpec, options: SparkOptions, context: Context) -> tuple[JobSpec, list[Unreachable]]:
        """Wait for a task on each of so many nodes, and start an agent in each."""
        self.validate(options)
        context.record_handle(_handle())
        if options.session:
            context.note(_ENDS_WITH_KERNEL)
        context.report("queue", f"waiting for Spark at {options.address}")
        fewer = context.least_node_count if context.restart else None
        order = Order(
            name=spec.id, tasks=spec.node_count, least=spec.node_count if fewer is None else fewer,
            cpus=options.cpus_per_process * spec.process_count_per_node, python=spec.python,
        )  # fmt: skip
        self._stage_run = Stage(options, order)
        count = self._stage_run.await_tasks(lambda why: context.report("queue", why))
        if "mpirun" in context.programs and self._stage_run.port.crowded:
            raise LaunchFailed(
                "Open MPI identifies nodes by host name, but Spark gave the job several executors on one host.",
                code="spark-mpi-same-host",
                hint="Use another backend, or use one node per host with more processes per node.",
            )
        context.report("stage", f"starting agents on {plural(count, 'executor')}")
        self._connections = self._stage_run.port.connect(options.directory or DIRECTORY)
        return dataclasses.replace(spec, node_count=count), []

    def _nodes_of(self, job: Job, placement: Placement, context: Context) -> AgentNodes:
        stage, self._stage_run = self._stage_run, None
        assert stage is not None, "the nodes were reached"
        return _SparkNodes(job, placement, context, self._nodes, stage)

    def _let_go(self) -> None:
        super()._let_go()
        if self._stage_run is not None:
            self._stage_run.close()
            self._stage_run = None

    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """End the process that holds the job's session, and what it has started on this machine.

        On executors nothing is left: a task ends with its connection, and an agent with its task.
        """
        found = _drivers(job_id)
        living = processes.table()
        processes.send((pid for pid in found if pid in living and living[pid].parent not in found), signal.SIGTERM)
        until = time.monotonic() + END_SECONDS
        while (left := _drivers(job_id)) and time.monotonic() < until:
            found |= left
            time.sleep(0.1)
        return sorted(found | processes.kill_all(lambda: _drivers(job_id)))


def _drivers(job_id: str) -> set[int]:
    """Return the process that holds a job's session and its children."""
    return set(processes.marked(processes.table(), {MARK: job_id}))


def _handle() -> dict[str, Any]:
    """Return where the process with the session is; it is found there by its mark."""
    return {"driver": socket.gethostname()}


class _SparkNodes(AgentNodes):
    """The nodes of a started job, each a task of one stage."""

    def __init__(self, job: Job, placement: Placement, context: Context, nodes: Any, stage: Stage) -> None:
        super().__init__(job, placement, context, nodes)
        self._stage_run = stage

    def handle(self) -> dict[str, Any]:
        """Return where the process with the session is."""
        return _handle()

    def close(self) -> None:
        """End the agents and give the slots back to Spark."""
        super().close()
        self._stage_run.close()
