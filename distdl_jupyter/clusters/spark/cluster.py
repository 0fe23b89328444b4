"""Spark as a cluster: a job waits for the slots of one barrier stage, and its nodes are the stage's tasks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.agents import placing
from distdl_jupyter.clusters.agents.cluster import AgentCluster
from distdl_jupyter.clusters.agents.connection import DIRECTORY, Connection, end_all
from distdl_jupyter.clusters.agents.nodes import AgentNodes
from distdl_jupyter.clusters.agents.tcp_link import Port
from distdl_jupyter.clusters.base import Check, Context, NodeInfo
from distdl_jupyter.clusters.spark.options import LOOK_AT_MASTER, Order, SparkOptions, addresses
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.plan import Placement
from distdl_jupyter.node import processes

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.agent import Unreachable
    from distdl_jupyter.clusters.agents.staging import Job
    from distdl_jupyter.core.spec import JobSpec

_DRIVER = "distdl_jupyter.clusters.spark.driver"
#: The variable that the process with the session and all of its children have: the job's id.
_MARK = "DISTDL_SPARK_DRIVER"
#: Seconds between two looks whether all tasks run.
_LOOK_SECONDS = 0.1
#: Seconds in which the process with the session ends in order: the slots are given back.
_END_SECONDS = 10.0
#: Variables that would lead the session elsewhere.
_LEADING = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE", "SPARK_CONNECT_MODE_ENABLED",
            "SPARK_API_MODE", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS",
            "PYSPARK_DRIVER_PYTHON")  # fmt: skip


class SparkCluster(AgentCluster):
    """Runs ranks on the executors of a Spark cluster."""

    name = "spark"
    title = "Spark"
    Options = SparkOptions
    queues = True
    several_per_host = True

    def __init__(self) -> None:
        super().__init__()
        self._stage_run: _Stage | None = None

    def unavailable(self, options: SparkOptions) -> str:
        """Spark must be installed here, and Java where this machine is the driver."""
        if find_spec("pyspark") is None:
            return "Spark is not installed in this environment: run 'pip install distdl-jupyter[spark]'."
        if options.master and not options.remote and not _has_java():
            return "Spark needs Java here, and there is none: install Java 17 or newer, or set JAVA_HOME."
        return ""

    def validate(self, options: SparkOptions) -> None:
        """Refuse what is no Spark cluster, and settings that are none."""
        if bool(options.master) == bool(options.remote):
            raise InvalidSpec(
                "A Spark cluster has either a master or a remote.", field="master",
                hint="Set master=\"spark://HOST:7077\", or remote=\"sc://HOST:15002\" for Spark Connect.",
            )  # fmt: skip
        if options.remote and not re.match(r"sc://[^/:]+", options.remote):
            raise InvalidSpec(f"remote takes sc://HOST:15002, not {options.remote!r}.", field="remote")
        if "token=" in options.remote:
            raise InvalidSpec("remote holds a token, which is a secret.", field="remote",
                              hint="Take it out and set the variable SPARK_CONNECT_AUTHENTICATE_TOKEN.")  # fmt: skip
        if options.cpus_per_process < 1 or options.gpus_per_node < 0:
            name = "cpus_per_process" if options.cpus_per_process < 1 else "gpus_per_node"
            raise InvalidSpec(f"{name} is {getattr(options, name)}, which is too few.", field=name)
        options.settings()

    def process_count_per_node(self, options: SparkOptions, *, use_gpu: bool | None) -> int:
        """Return the GPUs that a job takes of each node, 1 without any."""
        return max(1, options.gpus_per_node) if use_gpu is not False else 1

    def detail(self, options: SparkOptions) -> str:
        """Return the address."""
        return options.address

    def nodes(self, options: SparkOptions) -> list[NodeInfo]:
        """Return the executors that a job could have. Raises LaunchFailed when Spark does not answer."""
        self.validate(options)
        return [NodeInfo(**row) for row in _ask_nodes(options)]

    def checks(
        self, options: SparkOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()
    ) -> list[Check]:
        """Ask an agent on each executor that is free."""
        from distdl_jupyter.clusters.agents import checkup

        connections: list[Connection] = []
        stage: _Stage | None = None
        try:
            self.validate(options)
            stage = _Stage(options, Order(name="check", tasks=_MOST_CHECKED, least=1, whole=True))
            stage.await_tasks(lambda _why: None, _CHECK_SECONDS)
            connections = stage.port.connect(options.directory or DIRECTORY)
            return list(checkup.look(connections, [], options, modules, programs, several_per_host=True).checks)
        except DistDLError as error:
            return [Check("", "Spark", "error", error.message, error.hint or "See the log of Spark's master.")]
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
        context.report("queue", f"waiting for Spark at {options.address}")
        fewer = context.least_node_count if context.restart else None
        order = Order(
            name=spec.id, tasks=spec.node_count, least=spec.node_count if fewer is None else fewer,
            cpus=options.cpus_per_process * spec.process_count_per_node, python=spec.python,
        )  # fmt: skip
        self._stage_run = _Stage(options, order)
        count = self._stage_run.await_tasks(lambda why: context.report("queue", why))
        if "mpirun" in context.programs and self._stage_run.port.crowded:
            raise LaunchFailed("Open MPI tells nodes apart by their hosts' names, but Spark has given the job several "
                               "executors of one host.",
                               hint="Use another backend, or one node for each host with more processes.")  # fmt: skip
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
        until = time.monotonic() + _END_SECONDS
        while (left := _drivers(job_id)) and time.monotonic() < until:
            found |= left
            time.sleep(_LOOK_SECONDS)
        return sorted(found | processes.kill_all(lambda: _drivers(job_id)))


def _drivers(job_id: str) -> set[int]:
    """Return the process that holds a job's session and its children."""
    return set(processes.marked(processes.table(), {_MARK: job_id}))


def _handle() -> dict[str, Any]:
    """Return where the process with the session is; it is found there by its mark."""
    return {"driver": socket.gethostname()}


class _SparkNodes(AgentNodes):
    """The nodes of a started job, each a task of one stage."""

    def __init__(self, job: Job, placement: Placement, context: Context, nodes: Any, stage: _Stage) -> None:
        super().__init__(job, placement, context, nodes)
        self._stage_run = stage

    def handle(self) -> dict[str, Any]:
        """Return where the process with the session is."""
        return _handle()

    def close(self) -> None:
        """End the agents and give the slots back to Spark."""
        super().close()
        self._stage_run.close()


# the stage, as the supervisor sees it -------------------------------------------------------------

#: Executors that a check looks at, and seconds for them to be there.
_MOST_CHECKED = 1000
_CHECK_SECONDS = 20.0


class _Stage:
    """One barrier stage: the process that runs it, and the port to which its tasks connect."""

    def __init__(self, options: SparkOptions, order: Order) -> None:
        """Begin. Raises LaunchFailed."""
        self._options = options
        self._why = f"reaching Spark at {options.address}"
        self._error: LaunchFailed | None = None
        self._closing = False
        #: How many tasks the stage has, 0 while that is not known.
        self._count = order.tasks if order.least == order.tasks else 0
        self.port = Port(_host(options), self._lost)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``close``
        try:
            self._process = _started("stage", options, order, self.port.back, self._errors)
        except OSError as error:
            self.port.close()
            self._errors.close()
            raise LaunchFailed(f"Spark's driver cannot be started: {error.strerror or error}.") from error
        self._thread = threading.Thread(target=self._follow, name="spark", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for message in _messages(self._process):
            if "waits" in message:
                self._why = str(message["waits"])
            elif "tasks" in message:
                self._count = int(message["tasks"])
            elif "error" in message:
                self._error = self._failed(str(message["error"]), str(message["hint"]))
        code = self._process.wait()
        if not self._closing and self._error is None:
            self._error = self._failed(f"Spark's driver ended with code {code}.")
        self.port.cut()  # where the session is elsewhere tasks could go on

    def _lost(self, name: str) -> str:
        why = f" {self._error.message}" if self._error is not None else ""
        return f"Spark's executor on {name} is gone: its task ended before the job did.{why}"

    def _failed(self, message: str, hint: str = "") -> LaunchFailed:
        """Return the error with what the driver has printed, where it has not begun or has ended by itself."""
        said = ""
        if "driver" in message:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()
        return LaunchFailed(message, hint=hint, output=said[-2000:])

    def await_tasks(self, report: Callable[[str], object], seconds: float = math.inf) -> int:
        """Wait until all tasks have connected and return how many there are; ``report`` gets why they have not.

        Raises LaunchFailed, and what ``report`` raises.
        """
        until = time.monotonic() + seconds
        while not self._count or len(self.port.callers) < self._count:
            if self._error is not None:
                raise self._error
            if time.monotonic() > until:
                raise LaunchFailed(f"Spark at {self._options.address} has no free executor: {self._why}.",
                                   hint="Look again when its jobs have ended.")  # fmt: skip
            report(self._why)
            time.sleep(_LOOK_SECONDS)
        self.port.close()
        return self._count

    def close(self) -> None:
        """End the stage and its process, which gives the slots back; idempotent."""
        if self._closing:
            return
        self._closing = True
        self.port.close()
        _end_input(self._process)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(self._process)
        self._thread.join()
        self._errors.close()


def _host(options: SparkOptions) -> str:
    """Return the address of this machine that executors reach: that which leads to the master. Raises LaunchFailed."""
    if options.host:
        return options.host
    if options.master.startswith("local"):
        return "127.0.0.1"
    # TEST-NET-1 stands for a master that has no address, such as yarn. Nothing is sent.
    host, port = next(addresses(options), ("192.0.2.1", 9))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect((host, port))
            return str(asking.getsockname()[0])
    except OSError as error:
        raise LaunchFailed(f"No address of this machine leads to {host}: {error.strerror or error}.",
                           hint="Correct the option master or remote, or set the option host.") from error  # fmt: skip


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return bool(Path(home, "bin", "java").exists() if home else shutil.which("java"))


def _started(what: str, options: SparkOptions, order: Order, back: dict[str, Any], errors: Any) -> Any:
    """Start this module as a program, which gets all that it needs on its standard input."""
    environment = {name: value for name, value in os.environ.items() if name not in _LEADING}
    # In the session of the supervisor, whose watchdog leaves it the time to give the slots back.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", _DRIVER, what], process_group=0, env=environment | {_MARK: order.name},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
    )  # fmt: skip
    given = {"options": dataclasses.asdict(options), "order": dataclasses.asdict(order), "back": back}
    assert process.stdin is not None, "it is a pipe"
    with contextlib.suppress(BrokenPipeError):  # its end tells
        process.stdin.write(json.dumps(given).encode() + b"\n")
        process.stdin.flush()
    return process


def _messages(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Yield what the program tells, until it ends."""
    assert process.stdout is not None, "it is a pipe"
    with process.stdout as lines:
        yield from map(json.loads, lines)


def _end_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None, "it is a pipe"
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


#: Seconds for the list of executors, Java's start included.
_ASK_SECONDS = 45.0


def _ask_nodes(options: SparkOptions) -> list[dict[str, Any]]:
    """Return the executors, found by a short session in a process of its own. Raises LaunchFailed."""
    with tempfile.TemporaryFile() as errors:
        process = _started("nodes", options, Order("nodes"), {"host": _host(options)}, errors)
        timer = threading.Timer(_ASK_SECONDS, _kill, [process])
        timer.start()
        try:
            found = list(_messages(process))
        finally:
            timer.cancel()
            _end_input(process)
            process.wait()
    for message in found:
        if "error" in message:
            raise LaunchFailed(str(message["error"]), hint=str(message["hint"]))
        if "nodes" in message:
            return list(message["nodes"])
    raise LaunchFailed(f"Spark at {options.address} does not answer within {_ASK_SECONDS:.0f} s.", hint=LOOK_AT_MASTER)
