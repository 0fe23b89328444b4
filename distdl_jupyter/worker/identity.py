"""Determines the identity of this rank from environment variables.

The variables ``DISTDL_*`` define the identity. A launcher that starts all ranks with the same environment (``mpirun``,
``torchrun``) sets other variables for the rank, from which the ``DISTDL_*`` variables are derived.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple


class Identity(NamedTuple):
    """One rank of a job. ``nonce`` is "" if nothing reads the reports; ``pipes`` is None without named pipes."""

    rank: int
    world_size: int
    local_rank: int
    host: str
    folder: Path
    nonce: str
    pipes: Path | None


#: Variables of launchers: rank, world size, local rank, local size, node rank, node count ("": not set). The first
#: match is used. OMPI_COMM_WORLD_NODE_RANK is not used, because it counts processes of a node, not nodes.
LAUNCHER_VARIABLES: tuple[tuple[str, ...], ...] = (
    (*(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")), "", ""),
    tuple(f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
)


def identify(environment: MutableMapping[str, str]) -> Identity:
    """Return the rank's identity and set missing ``DISTDL_*`` variables. Raises ValueError if one is not valid."""
    folder = Path(environment.get("DISTDL_JOB_DIR", ""))
    if not folder.is_absolute():
        raise ValueError("DISTDL_JOB_DIR must be the absolute path of the job's folder. Start ranks through a job.")
    pipes = Path(environment["DISTDL_PIPES"]) if environment.get("DISTDL_PIPES") else None
    if "DISTDL_RANK" not in environment:
        _derive_variables(environment, pipes)
    rank, size = _read_int(environment, "DISTDL_RANK", 0), _read_int(environment, "DISTDL_WORLD_SIZE", 1)
    local_rank = _read_int(environment, "DISTDL_LOCAL_RANK", rank)
    host, nonce = environment.setdefault("DISTDL_HOST", os.uname().nodename), environment.get("DISTDL_NONCE", "")
    return Identity(rank, size, local_rank, host, folder, nonce, pipes)


def _derive_variables(environment: MutableMapping[str, str], pipes: Path | None) -> None:
    """Set the variables of this rank, for launchers that start all ranks with the same environment."""
    match = next((variables for variables in LAUNCHER_VARIABLES if variables[0] in environment), ("",) * 6)
    rank, size, local_rank, local_size, node_rank, node_count = match
    number = _read_int(environment, rank, 0)
    environment["DISTDL_RANK"] = str(number)
    if rank:
        total, per_node = _read_int(environment, size, 1), _read_int(environment, local_size, 0)
        nodes = _read_int(environment, node_count, 0) or (total // per_node if per_node else 1)
        per_node = per_node or max(1, total // nodes)
        environment["DISTDL_WORLD_SIZE"] = str(total)
        environment["DISTDL_LOCAL_RANK"] = str(_read_int(environment, local_rank, number % per_node))
        environment["DISTDL_LOCAL_SIZE"] = str(per_node)
        environment["DISTDL_NODE_RANK"] = str(_read_int(environment, node_rank, number // per_node))
        environment["DISTDL_NODE_COUNT"] = str(nodes)
    if pipes is None:
        return
    # The file has one object with the job's variables for each rank.
    with contextlib.suppress(OSError, ValueError, IndexError):
        variables = json.loads((pipes / "ranks.json").read_text(encoding="utf-8"))[number]
        environment.update({str(name): str(value) for name, value in variables.items()})
    # Put Open MPI's shared memory files into a folder that is removed after the run. The setting is named ``vader`` in
    # 4.1 and ``sm`` in 5.0.
    folder = Path("/dev/shm") / pipes.name  # noqa: S108 - created by the run, checked here
    with contextlib.suppress(OSError):
        if folder.stat().st_uid == os.getuid():
            for name in ("sm", "vader"):
                environment.setdefault(f"OMPI_MCA_btl_{name}_backing_directory", str(folder))


def derive_rendezvous_secret(nonce: str) -> str:
    """Return the secret of Horovod's rendezvous server for the job with this nonce, or "" without a nonce."""
    from hashlib import sha256  # imported here because only Horovod needs it

    return sha256(f"rendezvous {nonce}".encode()).hexdigest()[:32] if nonce else ""


def add_rendezvous_secret(environment: MutableMapping[str, str]) -> None:
    """Add the job's secret to the address of Horovod's rendezvous server, unless the address contains it already.

    Horovod requests ``http://ADDRESS:PORT/scope/key`` without a password, but it uses the address from the environment
    unchanged. So the address contains a secret, ``10.0.0.4:29500/SECRET``, which each process derives from the job's
    nonce, so that it is never on a command line. The server refuses requests without the secret.
    """
    variable = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
    address, port = environment.get(variable, ""), environment.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
    if address and port and "/" not in address and (nonce := environment.get("DISTDL_NONCE")):
        environment[variable] = f"{address}:{port}/{derive_rendezvous_secret(nonce)}"


def _read_int(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ValueError(f"{name} must be an integer, not {text!r}.") from None
