"""Horovod's own calls: ``from distdl_jupyter.compat import horovod`` in place of ``import horovod``.

``horovod.run`` (Horovod 0.28.1, https://horovod.readthedocs.io/en/stable/run_include.html) with live logs and the first
failure; ``keras`` averages under Keras 3, ``spark.run`` runs in the notebook's session of Spark.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distdl_jupyter.compat import blocking
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.humanize import plural

#: Names of this machine in a list of hosts, to which no ssh is needed.
_HERE = ("localhost", "127.0.0.1", "::1", socket.gethostname())


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Run ``func(*args, **kwargs)`` on ``np`` ranks of this machine, or of ``hosts``; return the values of all of them.

    These arguments have no effect: ``start_timeout``, ``disable_cache``, ``verbose``, ``cooldown_range``,
    ``network_interface(s)``, ``reset_limit``, ``max_np``, ``max_num_proc``. Raises InvalidSpec for arguments that are
    not supported, JobFailed, and what ``submit`` raises.
    """
    _refuse(ssh_port=ssh_port, ssh_identity_file=ssh_identity_file, output_filename=output_filename,
            mpi_args=mpi_args, executable=executable, slots=slots, min_np=min_np, min_num_proc=min_num_proc,
            host_discovery_script=host_discovery_script)  # fmt: skip
    most = np or num_proc or 1
    options: dict[str, Any] = {"distributed_backend": "horovod-mpi" if use_mpi else "horovod-gloo"}
    if hosts or hostfile:
        options |= _on_hosts(most, hosts, hostfile)
    else:
        options["process_count_per_node"] = most
    return blocking.run(func, args, kwargs or {}, **options).results()


_RESTART = ("Use submit(..., max_restarts=3, min_node_count=1): all processes restart from checkpoint_dir() on the "
            "remaining nodes.")  # fmt: skip
_INSTEAD = {
    "min_np": _RESTART,
    "min_num_proc": _RESTART,
    "host_discovery_script": _RESTART,
    "ssh_port": "Set the port of the host in ~/.ssh/config.",
    "ssh_identity_file": "Set the key in ~/.ssh/config, or add it to your ssh agent.",
    "output_filename": "Read the output of each rank with job.logs(rank). It is stored in the folder of the job.",
    "mpi_args": "Use submit(..., distributed_backend=\"horovod-mpi\"), which sets the arguments of Open MPI.",
    "executable": "Ranks use the Python of this process. Set the cluster option python to use another one.",
    "slots": "Write the slots after each host: hosts=\"a:2,b:2\".",
}  # fmt: skip


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidSpec(
                f"The argument {name} of horovod.run is not supported.",
                code="horovodrun-option-unsupported",
                field=name,
                hint=_INSTEAD[name],
            )


def _on_hosts(ranks: int, hosts: str | None, hostfile: str | None) -> dict[str, Any]:
    """Return the options of a job on hosts: those of a cluster of the kind ssh, or none where all are this machine.

    As Horovod does, the slots of one host are filled before those of the next. Raises InvalidSpec.
    """
    from distdl_jupyter.clusters.ssh.hosts import listed
    from distdl_jupyter.clusters.ssh.options import SshOptions

    given = {"hosts": hosts} if hosts else {"hostfile": hostfile}
    field, found = next(iter(given)), listed(SshOptions(**given))
    filled, left = [], ranks
    for host in found:
        filled.append(min(left, host.slots or 1))
        left -= filled[-1]
    filled = [count for count in filled if count]
    if left:
        raise InvalidSpec(
            f"np is {ranks}, but the hosts have {plural(ranks - left, 'slot')}.",
            code="horovodrun-too-few-slots",
            field="np",
            hint=f"Write the number of processes after each host: {field} with a:4,b:4.",
        )
    if len(set(filled)) > 1:
        shared = ", ".join(f"{count} on {host.name}" for host, count in zip(found, filled, strict=False))
        raise InvalidSpec(
            f"np is {ranks}, which makes {shared}, but all hosts of a job must run the same number of processes.",
            code="horovodrun-uneven",
            field="np",
            hint=f"Set np to {len(filled) * filled[0]}, or change the slots.",
        )
    if all(host.name in _HERE for host in found):
        return {"process_count_per_node": ranks}
    return {"compute_target": "ssh", "node_count": len(filled), "process_count_per_node": filled[0], **given}
