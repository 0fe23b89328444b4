"""Ray clusters: run an agent in each bundle of a placement group, and any backend on these agents.

In each bundle an actor runs the same agent as ``ssh`` as a child process. Method calls on the actor transfer its input
and output, so nothing connects to this machine, and ``ray://`` works from behind a firewall. When the supervisor exits,
Ray ends its actors, and each agent ends all processes it has started.

Ray is imported inside functions. Lists, checks and sweeps run in a separate process, because a process can only be
connected to one Ray cluster, and a Jupyter server should not be connected to any.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.agents import checkup
from distdl_jupyter.clusters.agents.agent import (
    DIRECTORY_HELP,
    NETWORK_HELP,
    OVERSUBSCRIBE_HELP,
    SHARED_HELP,
    Host,
    ReachError,
)
from distdl_jupyter.clusters.agents.cluster import AgentCluster
from distdl_jupyter.clusters.agents.connection import (
    AGENT_TIMEOUT,
    DEFAULT_DIRECTORY,
    Connection,
    Link,
    end_all,
    start_all,
)
from distdl_jupyter.clusters.agents.links import make_names_distinct
from distdl_jupyter.clusters.agents.staging import AgentNodes, StagedJob
from distdl_jupyter.clusters.base import Context, NodeCheck, NodeInfo
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.plan import Placement, option
from distdl_jupyter.core.spec import JobSpec

#: Timeout in seconds for the start of an actor and its process.
_ACTOR_SECONDS = 120.0
#: Seconds between two reports while a job waits.
_POLL_SECONDS = 0.5
#: Seconds that an actor's ``read`` waits for output, and the maximum number of bytes that it returns.
_READ_SECONDS, _MAX_READ_BYTES = 1.0, 1 << 20
#: The maximum number of concurrent calls of an actor: one writes, one reads, one ends the agent.
_MAX_CALLS = 4
#: Variables of Ray's workers that agents do not inherit, because a rank may be a driver of another Ray cluster.
_EXCLUDED_VARIABLES = ("RAY_ADDRESS", "RAY_JOB_ID", "RAY_RAYLET_PID")
#: Ray's namespace of the actors, and the prefix of the names of placement groups.
_NAMESPACE = "distdl"
#: Ray's client server reports this while it still holds the port of a killed client, or if its process for the new
#: client did not start within 30 s. A later attempt may succeed.
_BUSY_MESSAGE = "Initialization failure from server"
#: Timeout in seconds of a separate process, long enough for a second attempt of Ray to start a client.
_QUERY_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class RayOptions:
    """The Ray cluster, and the resources of a job on each node."""

    address: str = option(
        "auto", "the Ray cluster: ray://10.0.0.4:10001 from anywhere, auto or 10.0.0.4:6379 on its nodes", first=True
    )
    cpus_per_process: float = option(1.0, "Ray CPUs for each process", first=True)
    gpus_per_node: int = option(0, "GPUs on each node", first=True)
    resources: str = option("", 'other Ray resources that each node must have, as JSON: {"spot": 1}')
    directory: str = option("", DIRECTORY_HELP)
    network: str = option("", NETWORK_HELP)
    shared: bool | None = option(None, SHARED_HELP)
    oversubscribe: bool = option(default=False, help_=OVERSUBSCRIBE_HELP)

    def build_bundle(self, processes: int) -> dict[str, float]:
        """Return the resources of a bundle with this number of processes. Raises InvalidSpec."""
        try:
            bundle = {str(name): float(amount) for name, amount in json.loads(self.resources or "{}").items()}
        except (ValueError, TypeError, AttributeError):
            message = f'resources is {self.resources!r}, but must be JSON such as {{"spot": 1}}.'
            raise InvalidSpec(message, code="ray-resources-invalid", field="resources") from None
        bundle |= {"CPU": self.cpus_per_process * processes, "GPU": float(self.gpus_per_node)}
        return {name: amount for name, amount in bundle.items() if amount}


class RayCluster(AgentCluster):
    """Runs ranks on the nodes of a Ray cluster."""

    name = "ray"
    title = "Ray cluster"
    Options = RayOptions

    def unavailable(self, options: RayOptions) -> str:
        """Return the remedy if Ray is not installed here."""
        if find_spec("ray") is None:
            return "Ray is not installed in this environment. Run: pip install 'distdl-jupyter[ray]'"
        return ""

    def validate(self, options: RayOptions) -> None:
        """Raise InvalidSpec for invalid resources."""
        options.build_bundle(1)

    def detail(self, options: RayOptions) -> str:
        """Return the address of the Ray cluster."""
        return options.address

    def list_nodes(self, options: RayOptions) -> list[NodeInfo]:
        """Return the nodes that Ray lists. Raises LaunchFailed if Ray does not respond."""
        nodes = []
        for node in _query("nodes", options):
            is_up, resources = bool(node["Alive"]), node.get("Resources") or {}
            gpu_names = [name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")]
            name = str(node["NodeManagerHostname"] or node["NodeManagerAddress"])
            detail = "" if is_up else str(node.get("DeathReasonMessage") or "has left the cluster")
            gpus, cores = (int(resources.get(resource, 0)) for resource in ("GPU", "CPU"))
            nodes.append(NodeInfo(name, "up" if is_up else "down", detail, gpus, next(iter(gpu_names), ""), cores))
        return nodes

    def run_checks(
        self, options: RayOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()
    ) -> list[NodeCheck]:
        """Check Ray, and each of its nodes with an agent."""
        try:
            rows = _query("checks", options, modules=list(modules), programs=list(programs))
            return [NodeCheck(**row) for row in rows]
        except DistDLError as error:
            return [NodeCheck("", "Ray", "error", error.message, error.hint, code=error.code)]

    def _connect(self, spec: JobSpec, options: RayOptions, context: Context) -> tuple[JobSpec, list[ReachError]]:
        """Wait for a bundle on each node, and start an agent in each."""
        context.report("stage", f"connecting to Ray at {options.address}")
        ray = _connect_ray(options.address)
        self._allocation.enter_context(contextlib.suppress(Exception))  # the cluster may no longer exist at the release
        self._allocation.callback(ray.shutdown)
        bundle = options.build_bundle(spec.process_count_per_node)
        if context.restart and context.min_node_count is not None:
            count = min(spec.node_count, max(_count_fitting(ray, bundle), context.min_node_count))
            spec = dataclasses.replace(spec, node_count=count)
        resources = ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())
        message = f"waiting for {plural(spec.node_count, 'Ray node')} with {resources} free"
        name = f"{_NAMESPACE}-{spec.id}"
        group = ray.util.placement_group([bundle] * spec.node_count, strategy="STRICT_SPREAD", name=name)
        self._allocation.callback(ray.util.remove_placement_group, group)
        while not group.wait(_POLL_SECONDS):
            context.report("stage", f"{message}; large enough: {plural(_count_fitting(ray, bundle), 'node')}")
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        actors = [_create_actor(ray, strategy(group, index), bundle) for index in range(spec.node_count)]
        self._connections = _start_agents(ray, actors, options)
        return spec, []

    def _make_nodes(self, job: StagedJob, placement: Placement, context: Context) -> AgentNodes:
        handle = {"address": job.options.address}
        return AgentNodes(job, placement, context, self._nodes, handle, self._allocation.pop_all().close)

    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """Remove the job's placement group with its actors; agents end the processes they have started."""
        address = str(handle.get("address") or "")
        return _query("sweep", RayOptions(address=address), job=job_id) if address else []


class _AgentActor:
    """Runs an agent on a Ray node. The class uses no module-level names, because the node may lack this package."""

    _process: Any

    def begin(self, first_input: bytes, excluded: Sequence[str]) -> tuple[str, str]:
        """Start the agent and return the name and the address of the node."""
        import os
        import socket
        import subprocess
        import sys
        import tempfile

        import ray

        environment = {name: value for name, value in os.environ.items() if name not in excluded}
        path, program = first_input.replace(b"{python}", sys.executable.encode(), 1).split(b"\n", 1)
        command = [path.decode(), "-c", "import sys;exec(bytes.fromhex(sys.stdin.buffer.raw.readline().decode()))"]
        self._error_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process exits
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._error_file}
        self._process = subprocess.Popen(command, **pipes, env=environment, bufsize=0, start_new_session=True)
        self._process.stdin.write(program)
        return socket.gethostname(), str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def write(self, content: bytes) -> None:
        """Write all bytes to the agent's standard input; b"" closes it."""
        view = memoryview(content)
        while view:
            view = view[self._process.stdin.write(view) :]
        if not content:
            self._process.stdin.close()

    def read(self, seconds: float, size: int) -> bytes | None:
        """Return new output, b"" if there is none within ``seconds``, or None at the end."""
        import select

        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return b""
        return self._process.stdout.read(size) or None

    def wait(self, seconds: float) -> tuple[int, bytes]:
        """Return the exit code and the end of stderr. Raises subprocess.TimeoutExpired."""
        code = int(self._process.wait(seconds))
        self._error_file.seek(0)
        return code, self._error_file.read()[-4096:]


def _create_actor(ray: Any, strategy: Any, bundle: dict[str, float]) -> Any:
    custom_resources = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")}
    amounts = {"num_cpus": bundle.get("CPU", 0), "num_gpus": bundle.get("GPU", 0), "resources": custom_resources}
    return ray.remote(_AgentActor).options(**amounts, max_concurrency=_MAX_CALLS, scheduling_strategy=strategy).remote()


def _start_agents(ray: Any, actors: Sequence[Any], options: RayOptions) -> list[Connection]:
    """Start an agent in each actor and return the connections. Raises LaunchFailed, ReachError."""
    stdin = environment.build_first_input("{python}", options.directory or DEFAULT_DIRECTORY, [AGENT_TIMEOUT])
    try:
        addresses = ray.get(
            [actor.begin.remote(stdin, _EXCLUDED_VARIABLES) for actor in actors], timeout=_ACTOR_SECONDS
        )
    except ray.exceptions.RayError as error:
        message = f"Ray could not start the agents: {_get_first_line(error)}."
        raise LaunchFailed(message, code="ray-agents-not-started") from error
    # Ray assigns bundles to nodes in any order.
    rows = sorted(zip(addresses, actors, strict=True), key=lambda row: row[0])
    names = make_names_distinct([hostname for (hostname, _address), _actor in rows])
    return start_all(
        (Host(name, address), _ActorLink(ray, actor, name))
        for name, ((_hostname, address), actor) in zip(names, rows, strict=True)
    )


class _ActorLink(Link):
    """The link to an agent in an actor."""

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        super().__init__()
        self._ray = ray
        self._actor = actor
        self._name = name
        self._reason = ""

    async def read(self) -> bytes:
        """Return new output of the agent, or b"" at the end."""
        with self._record_loss():
            while (content := await self._actor.read.remote(_READ_SECONDS, _MAX_READ_BYTES)) is not None:
                if content:
                    return bytes(content)
        return b""

    async def write(self, content: bytes) -> None:
        """Write to the agent's standard input."""
        with self._record_loss():
            await self._actor.write.remote(content)

    @contextlib.contextmanager
    def _record_loss(self) -> Iterator[None]:
        """Record why the actor does not respond; its output then ends, and ``explain_end`` returns the reason."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - Ray also raises errors of its client library
            self._reason = self._reason or f"Ray lost the connection to {self._name}: {_get_first_line(error)}."

    def close_input(self) -> None:
        """Close the agent's standard input; idempotent."""
        with self._record_loss():
            self._actor.write.remote(b"")

    async def end(self, grace: float = 0.0) -> None:
        """Wait for the agent to exit; kill it after ``grace`` seconds."""
        with contextlib.suppress(Exception):
            if self._code is None and not self._reason:
                self._code, errors = await asyncio.wait_for(self._actor.wait.remote(grace), grace + 5.0)
                self.add_errors(errors)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)
        self._code = 255 if self._code is None else self._code

    async def explain_end(self, idle_seconds: float) -> str:
        """Return why the output ended."""
        if not self._reason:
            await self.end(2.0)
        return self._reason or f"The agent on {self._name} exited with code {self._code}{self.last_line}."


def _connect_ray(address: str) -> Any:
    """Connect to a cluster and return the module ``ray``. Raises LaunchFailed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # otherwise a late call would start a local cluster
    import ray
    import ray.cloudpickle
    import ray.util.scheduling_strategies

    # The nodes may lack this package.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdecimal():  # Ray itself retries for more than half a minute
            socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
        for tries_left in (2, 1, 0):
            if ray.is_initialized():
                break
            try:
                ray.init(address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
            except Exception as error:
                if _BUSY_MESSAGE not in str(error) or not tries_left:
                    raise
    except Exception as error:
        message = f"Ray at {address} does not respond: {getattr(error, 'strerror', None) or _get_first_line(error)}."
        hint = "Start Ray with 'ray start --head', or set the option 'address' to ray://HOST:10001."
        raise LaunchFailed(message, code="ray-unreachable", hint=hint) from error
    return ray


def _count_fitting(ray: Any, bundle: dict[str, float]) -> int:
    """Return how many nodes are up and large enough for a bundle, including busy ones."""
    sizes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(all(size.get(name, 0) >= amount for name, amount in bundle.items()) for size in sizes)


def _get_first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return text[:300].rstrip(".:")


def _query(query: str, options: RayOptions, **fields: Any) -> list[Any]:
    """Run ``main`` in a separate process and return the rows. Raises LaunchFailed."""
    arguments = [query, json.dumps(dataclasses.asdict(options)), json.dumps(fields)]
    command = [sys.executable, "-P", "-m", __name__, *arguments]
    try:
        process = subprocess.run(command, input="", capture_output=True, text=True, timeout=_QUERY_SECONDS, check=False)
        rows = json.loads(process.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        message = f"Ray at {options.address} did not respond within {_QUERY_SECONDS:.0f} s."
        hint = "Check that Ray is running: ray status"
        raise LaunchFailed(message, code="ray-silent", hint=hint) from None
    if isinstance(rows, dict):
        raise LaunchFailed(**rows)
    return list(rows)


def main(query: str, options_json: str, fields_json: str) -> None:
    """Print the nodes, the checks or the removed placement groups as JSON, or the error."""
    options, fields = RayOptions(**json.loads(options_json)), json.loads(fields_json)
    rows: Any
    try:
        ray = _connect_ray(options.address)
        if query == "nodes":
            rows = ray.nodes()
        elif query == "checks":
            strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            ids = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
            actors = [_create_actor(ray, strategy(id_, soft=False), {}) for id_ in ids]
            connections = _start_agents(ray, actors, options)
            try:
                rows = checkup.check_hosts(connections, [], options, fields["modules"], fields["programs"]).checks
            finally:
                end_all(connections)
            rows = [dataclasses.asdict(row) for row in rows]
        else:
            rows = []
            with contextlib.suppress(ValueError):  # the group does not exist
                ray.util.remove_placement_group(ray.util.get_placement_group(f"{_NAMESPACE}-{fields['job']}"))
                rows = [f"placement group of {fields['job']}"]
    except DistDLError as error:
        rows = {"message": error.message, "code": error.code, "hint": error.hint}
    print(json.dumps(rows, default=str), flush=True)  # noqa: T201 - the reply; Ray disconnects at exit


if __name__ == "__main__":
    main(*sys.argv[1:])
