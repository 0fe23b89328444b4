"""The nodes of a Ray cluster that exists: an agent in each bundle of a placement group, with any backend on them.

* The placement group has a bundle for each node of the job, each on another node of Ray; Ray's own scheduler says when
  they are free, and until then the job is preparing with Ray's reason.
* In each bundle an actor runs the same agent that ``ssh`` starts, as a child with pipes. Its bytes come and go by calls
  of that actor, so nothing needs to reach this machine: also ``ray://`` from a notebook behind a firewall works.
* When the supervisor goes, Ray ends its actors; an agent whose pipe ends, ends everything that it started.

Ray is imported where it is used. A look at the cluster (``nodes``) runs in a process of its own, because a process can
be connected to one Ray cluster only, and a Jupyter server should be connected to none.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters import package
from distdl_jupyter.clusters.agents import bootstrap, placing
from distdl_jupyter.clusters.agents.agent import (
    DIRECTORY_HELP,
    NETWORK_HELP,
    OVERSUBSCRIBE_HELP,
    SHARED_HELP,
    Host,
    Unreachable,
)
from distdl_jupyter.clusters.agents.cluster import AgentCluster
from distdl_jupyter.clusters.agents.connection import DIRECTORY, TIMEOUT, Connection, end_all, start_all
from distdl_jupyter.clusters.agents.staging import AgentNodes
from distdl_jupyter.clusters.agents.wire import Link
from distdl_jupyter.clusters.base import Check, Context, NodeInfo
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.plan import Placement

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.staging import Job
    from distdl_jupyter.core.spec import JobSpec

#: Seconds for the start of an actor, whose process Ray may have to start first.
_ACTOR_SECONDS = 120.0
#: Seconds between two looks whether Ray has room.
_LOOK_SECONDS = 0.5
#: Seconds that a call of an actor waits for bytes.
_READ_SECONDS = 1.0
_PIECE = 1 << 20
_NAMESPACE = "distdl"
#: What Ray's server for clients says while it still holds the port of one that was killed, or when a process for the
#: new one did not begin within 30 s: a later try may succeed.
_BUSY = "Initialization failure from server"


@dataclass(frozen=True, slots=True)
class RayOptions:
    """Which Ray cluster, and what of each node a job takes."""

    address: str = field(
        default="auto",
        metadata={
            "help": "address of the Ray cluster: ray://10.0.0.4:10001 from anywhere; auto or 10.0.0.4:6379 on one "
            "of its nodes",
            "first": True,
        },
    )
    cpus_per_process: float = field(default=1.0, metadata={"help": "Ray CPUs for each process", "first": True})
    gpus_per_node: int = field(default=0, metadata={"help": "GPUs on each node", "first": True})
    resources: str = field(
        default="", metadata={"help": 'other Ray resources that each node must have, as JSON: {"spot": 1}'}
    )
    directory: str = field(default="", metadata={"help": DIRECTORY_HELP})
    network: str = field(default="", metadata={"help": NETWORK_HELP})
    shared: bool | None = field(default=None, metadata={"help": SHARED_HELP})
    oversubscribe: bool = field(default=False, metadata={"help": OVERSUBSCRIBE_HELP})

    def bundle(self, processes: int) -> dict[str, float]:
        """Return what a node with so many processes takes of Ray. Raises InvalidSpec."""
        try:
            others = json.loads(self.resources or "{}")
            found = {str(name): float(amount) for name, amount in others.items()}
        except (ValueError, TypeError, AttributeError):
            raise InvalidSpec(
                f'resources is {self.resources!r}, but must be JSON such as {{"spot": 1}}.',
                code="ray-resources-invalid",
                field="resources",
            ) from None
        found["CPU"] = self.cpus_per_process * processes
        if self.gpus_per_node:
            found["GPU"] = float(self.gpus_per_node)
        return {name: amount for name, amount in found.items() if amount}


class RayCluster(AgentCluster):
    """Runs ranks on the nodes of a Ray cluster."""

    name = "ray"
    title = "Ray cluster"
    Options = RayOptions

    def __init__(self) -> None:
        super().__init__()
        self._group: Any = None

    def unavailable(self, options: RayOptions) -> str:
        """Ray must be installed here, of the version that the cluster has."""
        if find_spec("ray") is None:
            return "Ray is not installed in this environment. Run: pip install 'distdl-jupyter[ray]'"
        return ""

    def validate(self, options: RayOptions) -> None:
        """Refuse resources that are none."""
        options.bundle(1)

    def process_count_per_node(self, options: RayOptions, *, use_gpu: bool | None) -> int:
        """Return the GPUs that a job takes of each node, 1 without any."""
        return max(1, options.gpus_per_node) if use_gpu is not False else 1

    def detail(self, options: RayOptions) -> str:
        """Return the address."""
        return options.address

    def nodes(self, options: RayOptions) -> list[NodeInfo]:
        """Return the nodes that Ray names. Raises LaunchFailed when it does not answer."""
        return [_described(node) for node in _ask("nodes", options)]

    def checks(self, options: RayOptions, *, modules: Sequence[str] = (), programs: Sequence[str] = ()) -> list[Check]:
        """Ask Ray, and an agent on each of its nodes."""
        try:
            rows = _ask("checks", options, modules=list(modules), programs=list(programs))
        except DistDLError as error:
            return [Check("", "Ray", "error", error.message, error.hint, code=error.code)]
        return [Check(**row) for row in rows]

    def preview(self, spec: JobSpec, options: RayOptions) -> Placement:
        """Place rank r on node r // process_count_per_node; Ray names the nodes when the job gets them."""
        options.bundle(spec.process_count_per_node)
        return placing.before_contact(spec, options.gpus_per_node)

    # start ------------------------------------------------------------------------------------

    def _connect(self, spec: JobSpec, options: RayOptions, context: Context) -> tuple[JobSpec, list[Unreachable]]:
        """Wait for a bundle on each of so many nodes, and start an agent in each."""
        context.report("stage", f"connecting to Ray at {options.address}")
        ray = _connected(options.address)
        if context.restart and context.least_node_count is not None:
            fitting = len(_fitting(ray.nodes(), options.bundle(spec.process_count_per_node)))
            count = min(spec.node_count, max(fitting, context.least_node_count))
            spec = dataclasses.replace(spec, node_count=count)
        self._await_group(ray, spec, options, context)
        actors = [_actor(ray, self._group, at, options, spec) for at in range(spec.node_count)]
        self._connections = _agents(ray, actors, options)
        return spec, []

    def _await_group(self, ray: Any, spec: JobSpec, options: RayOptions, context: Context) -> None:
        bundle = options.bundle(spec.process_count_per_node)
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())
        self._group = ray.util.placement_group(
            [bundle] * spec.node_count, strategy="STRICT_SPREAD", name=f"{_NAMESPACE}-{spec.id}"
        )
        while not self._group.wait(_LOOK_SECONDS):
            fitting = len(_fitting(ray.nodes(), bundle))
            context.report("stage", f"waiting for {plural(spec.node_count, 'node')} of Ray with {wanted} free; "
                         f"{fitting or 'none'} of its nodes {'is' if fitting == 1 else 'are'} that large")  # fmt: skip

    def _nodes_of(self, job: Job, placement: Placement, context: Context) -> AgentNodes:
        group, self._group = self._group, None
        return _RayNodes(job, placement, context, self._nodes, group)

    def _let_go(self) -> None:
        super()._let_go()
        _leave(self._group)
        self._group = None

    def sweep(self, job_id: str, handle: dict[str, Any]) -> Sequence[object]:
        """Take the job's placement group away, with its actors; agents end what they started."""
        address = handle.get("address")
        return _ask("sweep", RayOptions(address=str(address)), job=job_id) if address else []


class _RayNodes(AgentNodes):
    """The nodes of a started job, which hold a placement group."""

    def __init__(self, job: Job, placement: Placement, context: Context, nodes: Any, group: Any) -> None:
        super().__init__(job, placement, context, nodes)
        self._group = group

    def handle(self) -> dict[str, Any]:
        """Return the cluster's address; the job's placement group has its name."""
        return {"address": self._job.options.address}

    def close(self) -> None:
        """End the agents and give the nodes back to Ray."""
        super().close()
        _leave(self._group)


# agents in actors ---------------------------------------------------------------------------------

#: Variables that Ray sets for its own workers; a rank may be a driver of another cluster.
_HIDDEN = ("RAY_ADDRESS", "RAY_JOB_ID", "RAY_RAYLET_PID")
#: Calls of an actor at the same time: it is written to and read from twice, and ended.
_CALLS = 5


class _AgentActor:
    """Runs on a node of Ray, which need not have this package: nothing here is looked up outside of the class."""

    _agent: Any

    def begin(self, first: bytes, hidden: list[str]) -> tuple[str, str]:
        import os as system
        import socket
        import subprocess as processes
        import sys as interpreter

        import ray

        environment = {name: value for name, value in system.environ.items() if name not in hidden}
        path, program = first.replace(b"{python}", interpreter.executable.encode(), 1).split(b"\n", 1)
        self._agent = processes.Popen(
            [path.decode(), "-c", "import sys;exec(bytes.fromhex(sys.stdin.buffer.raw.readline().decode()))"],
            stdin=processes.PIPE, stdout=processes.PIPE, stderr=processes.PIPE, env=environment, bufsize=0,
            start_new_session=True,
        )  # fmt: skip
        self._agent.stdin.write(program)
        return socket.gethostname(), str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def write(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[self._agent.stdin.write(view) :]

    def read(self, name: str, seconds: float, most: int) -> bytes | None:
        """Return what came, b"" when nothing did, None at the end."""
        import select

        stream = getattr(self._agent, name)
        if not select.select([stream], [], [], seconds)[0]:
            return b""
        return stream.read(most) or None

    def end_input(self) -> None:
        self._agent.stdin.close()

    def wait(self, seconds: float) -> int | None:
        import subprocess as processes

        try:
            return int(self._agent.wait(seconds))
        except processes.TimeoutExpired:
            return None


def _actor(ray: Any, group: Any, at: int, options: RayOptions, spec: JobSpec) -> Any:
    """Return an actor that has a bundle of the placement group for itself."""
    bundle = options.bundle(spec.process_count_per_node)
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=at)
    others = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")}
    return ray.remote(_AgentActor).options(
        num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0), resources=others, max_concurrency=_CALLS,
        scheduling_strategy=strategy,
    ).remote()  # fmt: skip


def _probe_actor(ray: Any, node: dict[str, Any]) -> Any:
    """Return an actor on a node that takes nothing of it."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return ray.remote(_AgentActor).options(num_cpus=0, max_concurrency=_CALLS, scheduling_strategy=strategy).remote()


def _agents(ray: Any, actors: Sequence[Any], options: RayOptions) -> list[Connection]:
    """Start an agent in each actor and return the connections. Raises LaunchFailed, Unreachable."""
    # The agent's input ends with the actor, and Ray ends that with the supervisor.
    first = bootstrap.first_input("{python}", options.directory or DIRECTORY, package.built(), [TIMEOUT])
    try:
        answers = ray.get([actor.begin.remote(first, list(_HIDDEN)) for actor in actors], timeout=_ACTOR_SECONDS)
    except ray.exceptions.RayError as error:
        raise LaunchFailed(
            f"Ray could not start the agents: {_first_line(error)}.", code="ray-agents-not-started"
        ) from error
    links: dict[str, tuple[Host, Link]] = {}
    # Ray gives bundles to nodes in no order.
    ordered = sorted(zip(actors, answers, strict=True), key=lambda one: one[1])
    for at, (actor, (hostname, address)) in enumerate(ordered):
        name = f"{hostname}-{at}" if hostname in links else hostname
        links[name] = Host(name, address), _ActorLink(ray, actor, name)
    return start_all(links.values())


class _ActorLink(Link):
    """The bytes of an agent in an actor."""

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        super().__init__()
        self._ray = ray
        self._actor = actor
        self._name = name
        self._why = ""
        self._code: int | None = None

    async def open(self) -> None:
        """Listen to its errors."""
        self._errors = asyncio.create_task(self.keep_errors(functools.partial(self._next, "stderr")))

    async def read(self) -> bytes:
        """Return what the agent has sent next."""
        return await self._next("stdout")

    async def _next(self, name: str) -> bytes:
        with self._reaching():
            while (content := await self._actor.read.remote(name, _READ_SECONDS, _PIECE)) is not None:
                if content:
                    return bytes(content)
        return b""

    async def write(self, content: bytes) -> None:
        """Write to the agent's standard input."""
        with self._reaching():
            await self._actor.write.remote(content)

    @contextlib.contextmanager
    def _reaching(self) -> Any:
        """Keep why the actor does not answer any more; the end of its output tells the rest."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - Ray raises what its client does, too
            self._why = self._why or f"Ray lost the connection to {self._name}: {_first_line(error)}."

    @property
    def code(self) -> int | None:
        """The exit code of the agent, 255 where nothing is known of it."""
        return self._code

    def close_input(self) -> None:
        """End its standard input; idempotent."""
        with self._reaching():
            self._actor.end_input.remote()

    async def end(self, grace: float = 0.0) -> None:
        """Wait for its end, after ``grace`` seconds by force."""
        if self._code is None and not self._why:
            with contextlib.suppress(Exception):
                self._code = await asyncio.wait_for(self._actor.wait.remote(grace), grace + 5.0)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)
        self._code = 255 if self._code is None else self._code

    async def close(self) -> None:
        """Listen no more."""
        self._errors.cancel()

    async def why_ended(self, silent: float) -> str:
        """Return what the end of its output means."""
        if self._why:
            return self._why
        await self.end(2.0)
        await asyncio.wait([self._errors], timeout=1.0)
        return f"The agent on {self._name} ended with code {self._code}{self.last_line}."


# Ray itself ---------------------------------------------------------------------------------------


def _connected(address: str) -> Any:
    """Return Ray's module, connected to a cluster. Raises LaunchFailed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # else a late call would start a cluster of its own here
    _require_listener(address)
    import ray
    import ray.cloudpickle
    import ray.util.scheduling_strategies

    # The nodes need not have this package.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    try:
        for tries_left in (2, 1, 0):
            if ray.is_initialized():
                break
            try:
                ray.init(address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
            except Exception as error:
                if _BUSY not in str(error) or not tries_left:
                    raise
    except Exception as error:
        raise _unreachable(address, _first_line(error)) from error
    return ray


def _require_listener(address: str) -> None:
    """Raise LaunchFailed at once if nothing listens at the address; Ray itself tries for more than half a minute."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
    except OSError as error:
        raise _unreachable(address, error.strerror or _first_line(error)) from error


def _unreachable(address: str, why: str) -> LaunchFailed:
    return LaunchFailed(
        f"Ray at {address} does not respond: {why}.",
        code="ray-unreachable",
        hint="Start Ray with 'ray start --head', or correct the option address: ray://HOST:10001 works from any "
        "machine, HOST:6379 and auto only on nodes of the cluster.",
    )


def _leave(group: Any) -> None:
    """Give a placement group back and part from Ray."""
    import ray

    with contextlib.suppress(Exception):
        if group is not None:
            ray.util.remove_placement_group(group)
    with contextlib.suppress(Exception):
        ray.shutdown()


def _fitting(nodes: Sequence[dict[str, Any]], bundle: dict[str, float]) -> list[dict[str, Any]]:
    """Return the nodes that are up and as large as a bundle, whatever runs there."""
    return [node for node in nodes if node["Alive"]
            and all(node["Resources"].get(name, 0) >= amount for name, amount in bundle.items())]  # fmt: skip


def _described(node: dict[str, Any]) -> NodeInfo:
    resources = node.get("Resources") or {}
    return NodeInfo(
        str(node["NodeManagerHostname"] or node["NodeManagerAddress"]),
        "up" if node["Alive"] else "down",
        "" if node["Alive"] else str(node.get("DeathReasonMessage") or "has left the cluster"),
        gpus=int(resources.get("GPU", 0)),
        gpu_name=next((name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")), ""),
        cores=int(resources.get("CPU", 0)),
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    first = f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return first[:300].rstrip(".:")


def _ask(what: str, options: RayOptions, **fields: Any) -> list[Any]:
    """Do one of ``_ANSWERS`` in a process of its own and return what it found. Raises LaunchFailed."""
    words = [what, json.dumps(dataclasses.asdict(options)), json.dumps(fields)]
    try:
        done = subprocess.run([sys.executable, "-P", "-m", __name__, *words], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=_ASK_SECONDS[what], check=False)  # fmt: skip
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        raise LaunchFailed(
            f"Ray at {options.address} did not respond within {_ASK_SECONDS[what]:.0f} s.",
            code="ray-silent",
            hint="Check that Ray is running: ray status",
        ) from None
    if isinstance(found, dict):
        raise LaunchFailed(str(found["error"]), code=str(found["code"]), hint=str(found["hint"]))
    return list(found)


def _swept(ray: Any, _options: RayOptions, job: str) -> list[Any]:
    """Take the job's placement group away, and with it the actors in it."""
    with contextlib.suppress(ValueError):  # there is none of that name
        ray.util.remove_placement_group(ray.util.get_placement_group(f"{_NAMESPACE}-{job}"))
        return [f"placement group of {job}"]
    return []


def _checked(ray: Any, options: RayOptions, modules: Sequence[str], programs: Sequence[str]) -> list[Any]:
    """Look at all nodes that are up, each by an agent of its own."""
    from distdl_jupyter.clusters.agents import checkup

    nodes = ray.nodes()
    down = [_described(node) for node in nodes if not node["Alive"]]
    connections = _agents(ray, [_probe_actor(ray, node) for node in nodes if node["Alive"]], options)
    try:
        found = checkup.look(connections, [], options, modules, programs)
    finally:
        end_all(connections)
    gone = [Check(node.name, "Reachable", "warning", f"is down: {node.detail}", code="ray-reachable") for node in down]
    return [dataclasses.asdict(check) for check in (*found.checks, *gone)]


_ANSWERS: dict[str, Callable[..., list[Any]]] = {
    "nodes": lambda ray, _options: ray.nodes(),
    "sweep": _swept,
    "checks": _checked,
}
#: Seconds for each, Ray's own start included.
_ASK_SECONDS = {"nodes": 30.0, "sweep": 60.0, "checks": 30.0}


def main(what: str, options: str, fields: str) -> None:
    """Print, as JSON, what is asked for, or why there is no answer."""
    chosen = RayOptions(**json.loads(options))
    try:
        found: Any = _ANSWERS[what](_connected(chosen.address), chosen, **json.loads(fields))
    except DistDLError as error:
        found = {"error": error.message, "code": error.code, "hint": error.hint}
    print(json.dumps(found, default=str), flush=True)  # noqa: T201 - the answer
    _leave(None)


if __name__ == "__main__":
    main(*sys.argv[1:])
