"""``horovod.ray.RayExecutor``: the same calls on the same Ray cluster, with live logs and the first failure.

``from distdl_jupyter.compat.horovod.ray import RayExecutor`` in place of ``from horovod.ray import RayExecutor``
(Horovod 0.28.1, https://horovod.readthedocs.io/en/stable/ray_include.html). The cluster is the one that ``ray.init()``
has connected this process to. Each call is a job of its own, whose ranks take their part of Ray while it runs: what
workers would keep between two calls is not there, so ``executable_cls`` is refused.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distdl_jupyter.compat import blocking
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, JobNotRunning

if TYPE_CHECKING:
    from distdl_jupyter.client import Job


@dataclass
class Settings:
    """What ``create_settings`` returns."""

    timeout_s: int
    ssh_identity_file: str | None
    placement_group_timeout_s: int
    nics: set[str] | None


class RayExecutor:
    """Runs functions on ranks of Horovod that are spread over the nodes of Ray."""

    @classmethod
    def create_settings(
        cls,
        timeout_s: int = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,  # noqa: ARG003  a private key, which is not wanted here
        placement_group_timeout_s: int = 100,
        nics: set[str] | None = None,
    ) -> Settings:
        """Return settings, which have no meaning here.

        A job waits for Ray with the reason shown until it is cancelled, finds the network itself, and needs no ssh.
        """
        return Settings(timeout_s, ssh_identity_file, placement_group_timeout_s, nics)

    def __init__(
        self,
        settings: Any,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: list[int] | None = None,
        elastic_timeout: int = 600,
        override_discovery: bool = True,
    ) -> None:
        """Take Horovod's options.

        ``num_workers`` share as few nodes as they fit on, ``num_hosts`` have ``num_workers_per_host`` each. A job has a
        placement group of its own, so ``use_current_placement_group`` has no meaning. Raises InvalidSpec.
        """
        self.settings = settings
        if min_workers is not None or max_workers is not None:
            raise InvalidSpec(
                "min_workers and max_workers of RayExecutor are not supported.",
                code="ray-executor-elastic",
                field="min_workers",
                hint="Set num_workers instead.",
            )
        if (num_workers is None) == (num_hosts is None):
            raise InvalidSpec(
                "RayExecutor needs either num_workers or num_hosts.",
                code="ray-executor-workers-and-hosts",
                field="num_workers",
                hint="Set exactly one of them.",
            )
        if (gpus_per_worker or 1) > 1:
            raise InvalidSpec(
                f"gpus_per_worker is {gpus_per_worker}, but a rank uses one GPU.",
                code="ray-executor-gpus",
                hint="Set gpus_per_worker to 1.",
                field="gpus_per_worker",
            )
        self._workers, self._hosts, self._per_host = num_workers, num_hosts, num_workers_per_host
        self._cpus, self._gpu = cpus_per_worker, use_gpu
        self._options: dict[str, Any] | None = None
        self._remote: list[tuple[Job, Any]] = []

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Look where the ranks of the following calls fit; nothing is started yet. Raises InvalidSpec."""
        if executable_cls is not None:
            raise InvalidSpec("executable_cls is not supported, because each call is a separate "
                              "job.", code="ray-executor-class", field="executable_cls",
                              hint="Create the object in the function that you pass to run().")  # fmt: skip
        ray = _connected()
        nodes = self._hosts or _fewest_nodes(ray.nodes(), self._workers or 1, self._cpus, gpu=self._gpu)
        processes = self._per_host if self._hosts else (self._workers or 1) // nodes
        self._options = {
            "compute_target": "ray", "address": _address(ray), "node_count": nodes,
            "process_count_per_node": processes, "cpus_per_process": float(self._cpus),
            "gpus_per_node": processes if self._gpu else 0, "use_gpu": None if self._gpu else False,
            "distributed_backend": "horovod-gloo", "environment_variables": dict(extra_env_vars or {}),
        }  # fmt: skip

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Run ``fn(*args, **kwargs)`` on all ranks and return their values. Raises JobFailed, InvalidSpec."""
        _refuse(callbacks)
        return blocking.run(fn, args or (), kwargs or {}, **self._started()).results()

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[..., Any]] | None = None) -> list[Any]:
        """Run ``fn(None)`` on all ranks, as without an ``executable_cls``; return their values. Raises as ``run``."""
        return self.run(fn, (None,), None, callbacks)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Start ``fn(*args, **kwargs)`` on all ranks; return an ObjectRef of Ray for the value of each.

        ``ray.get`` waits for them, and raises RuntimeError with the first rank's own error. Raises InvalidSpec.
        """
        from distdl_jupyter import client

        job = client.submit(fn, args or (), kwargs or {}, **self._started())
        blocking.show(job)
        ray = _connected()
        # The nodes need not have this package.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        values = ray.remote(_Values).options(num_cpus=0).remote()
        self._remote.append((job, values))
        threading.Thread(target=_bring, args=(job, values), name=f"values of {job.id}", daemon=True).start()
        return [values.of.remote(rank) for rank in range(job.spec.process_count)]

    def shutdown(self) -> None:
        """Cancel what still runs of ``run_remote``."""
        for job, _ in self._remote:
            try:
                job.cancel()
            except JobNotRunning:
                continue
            job.wait()
        self._remote, self._options = [], None

    def _started(self) -> dict[str, Any]:
        if self._options is None:
            raise InvalidSpec(
                "RayExecutor has not been started.",
                code="ray-executor-not-started",
                field="start",
                hint="Call start() first.",
            )
        return self._options


def _refuse(callbacks: Any) -> None:
    if callbacks:
        raise InvalidSpec(
            "callbacks of RayExecutor are not supported.",
            code="ray-executor-callbacks",
            field="callbacks",
            hint="Call distdl_jupyter.log(loss=...) in the function to draw a live curve.",
        )


# Ray --------------------------------------------------------------------------------------------


def _connected() -> Any:
    """Return Ray's module. Raises InvalidSpec where this process is not connected."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        raise InvalidSpec("This process is not connected to Ray.", code="ray-not-connected", field="address",
                          hint='Call ray.init() first, or ray.init("ray://HOST:10001").')  # fmt: skip
    return ray


def _address(ray: Any) -> str:
    """Return where another process reaches the same cluster: as this one does."""
    from ray.util.client import ray as client

    if client.is_connected():  # type: ignore[no-untyped-call]
        context = client.get_context()  # type: ignore[no-untyped-call]
        return f"ray://{context.client_worker._conn_str}"  # noqa: SLF001 - Ray says it nowhere else
    return str(ray.get_runtime_context().gcs_address)


def _fewest_nodes(nodes: Sequence[Mapping[str, Any]], workers: int, cpus: float, *, gpu: bool) -> int:
    """Return on how few nodes that many workers fit in equal parts; 1 where they fit on none, and the job says so."""
    for count in range(1, len(nodes) + 1):
        each = workers // count
        wanted = {"CPU": cpus * each} | ({"GPU": each} if gpu else {})
        large = [node for node in nodes if node["Alive"]
                 and all(node["Resources"].get(name, 0) >= amount for name, amount in wanted.items())]  # fmt: skip
        if workers % count == 0 and len(large) >= count:
            return count
    return 1


class _Values:
    """An actor that holds the values of a job's ranks; its node need not have this package."""

    def __init__(self) -> None:
        import asyncio

        self._there = asyncio.Event()

    async def put(self, values: list[Any], error: str) -> None:
        self._values, self._error = values, error
        self._there.set()

    async def of(self, rank: int) -> Any:
        await self._there.wait()
        if self._error:
            raise RuntimeError(self._error)
        return self._values[rank]


def _bring(job: Job, values: Any) -> None:
    try:
        values.put.remote(job.results(), "")
    except DistDLError as error:
        values.put.remote([], str(error))
