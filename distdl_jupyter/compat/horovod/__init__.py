"""Horovod's API: use ``from distdl_jupyter.compat import horovod`` instead of ``import horovod``.

It has ``run`` of Horovod 0.28.1 and Databricks' ``HorovodRunner``, with live logs and the first failure. ``keras``
averages gradients with Keras 3, and ``spark.run`` runs in the notebook's Spark session.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distdl_jupyter import compat
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.options import check_count

#: Names of this machine in a list of hosts, which do not need ssh.
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1", socket.gethostname())
#: Arguments that are ignored, because a job detects networks itself and its log is complete.
_IGNORED_ARGUMENTS = {
    "start_timeout", "disable_cache", "verbose", "cooldown_range", "reset_limit", "max_num_proc", "max_np",
    "use_gloo", "network_interface", "network_interfaces", "stdout", "stderr", "nics", "prefix_output_with_timestamp",
}  # fmt: skip


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = 1,
    *,
    np: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    use_mpi: bool | None = None,
    **more: Any,
) -> list[Any]:
    """Run ``func(*args, **kwargs)`` on ``np`` ranks on this machine or on ``hosts``; return the values of all ranks.

    Raises InvalidSpec for unsupported arguments that would change the run, JobFailed, and the errors of ``submit``.
    """
    refuse(more, "horovod.run")
    count = np or num_proc or 1
    options: dict[str, Any] = {"process_count_per_node": count}
    if hosts or hostfile:
        options = _build_host_options(count, {"hosts": hosts} if hosts else {"hostfile": hostfile})
    backend = "horovod-mpi" if use_mpi else "horovod-gloo"
    return compat.run(func, args, kwargs or {}, distributed_backend=backend, **options).results()


def refuse(arguments: Mapping[str, Any], call: str) -> None:
    """Raise InvalidSpec for an unsupported argument that would change the run of ``call``."""
    for name in arguments.keys() - _IGNORED_ARGUMENTS:
        if arguments[name] is not None:
            raise InvalidSpec(
                f"The argument {name} of {call} is not supported.",
                code="horovod-argument-unsupported",
                field=name,
                hint="Set ports and keys of hosts in ~/.ssh/config, and everything else with the options of submit().",
            )


def _build_host_options(count: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a job on the hosts that Horovod would use: the first hosts with enough slots."""
    from distdl_jupyter.clusters.ssh import SshOptions, parse_hosts

    hosts = parse_hosts(SshOptions(**options))
    if all(host.name in _LOCAL_NAMES for host in hosts):
        return {"process_count_per_node": count}
    rank_counts: list[int] = []
    for host in hosts:
        rank_counts.append(min(count - sum(rank_counts), host.slots or 1))
    return {"compute_target": "ssh", "node_count": len(rank_counts) - rank_counts.count(0), "np": count, **options}


class HorovodRunner:
    """Runs a function on Horovod ranks: ``np=-4`` in four local processes, ``np=4`` in four Spark tasks."""

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        """``driver_log_verbosity`` has no effect, because the job has the log of all ranks. Raises InvalidSpec."""
        check_count(abs(np), "np")
        self.num_processor = np

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Run ``main(**kwargs)`` and return the value of rank 0. Raises JobFailed and the errors of ``submit``."""
        options = compat.build_rank_options(abs(self.num_processor), is_local=self.num_processor < 0)
        return compat.run(main, (), kwargs, **options, distributed_backend="horovod-gloo").result()
