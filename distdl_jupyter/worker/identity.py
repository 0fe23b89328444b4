"""Determines the identity of this rank from environment variables.

The variables ``DISTDL_*`` define the identity. A launcher that starts all ranks with the same environment (``mpirun``,
``torchrun``) sets other variables for the rank, from which the ``DISTDL_*`` variables are derived.
"""

from __future__ import annotations

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
    local_size: int
    node_rank: int
    node_count: int
    host: str
    folder: Path
    nonce: str
    pipes: Path | None


class Launcher(NamedTuple):
    """Names of the variables that a launcher sets, "" for those that it does not set."""

    rank: str
    world_size: str
    local_rank: str
    local_size: str
    node_rank: str
    node_count: str


#: Launchers in order of precedence. OMPI_COMM_WORLD_NODE_RANK is not used: it counts processes of a node, not nodes.
LAUNCHERS = (
    Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
             "", ""),
    Launcher("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK",
             "HOROVOD_CROSS_SIZE"),
    Launcher("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
)  # fmt: skip


def identify(environment: MutableMapping[str, str]) -> Identity:
    """Return the rank's identity and set missing ``DISTDL_*`` variables.

    Raises ValueError if DISTDL_JOB_DIR is missing or a count is not an integer.
    """
    folder = Path(environment.get("DISTDL_JOB_DIR", ""))
    if not folder.is_absolute():
        raise ValueError("DISTDL_JOB_DIR must be the absolute path of the job's folder. Start ranks through a job.")
    pipes = Path(environment["DISTDL_PIPES"]) if environment.get("DISTDL_PIPES") else None
    if "DISTDL_RANK" not in environment:
        environment.update(_derived(environment))
        environment.update(_own_variables(pipes, int(environment["DISTDL_RANK"])))
        environment.update({**_shared_memory(pipes), **environment})
    rank, size = _number(environment, "DISTDL_RANK", 0), _number(environment, "DISTDL_WORLD_SIZE", 1)
    return Identity(
        rank=rank,
        world_size=size,
        local_rank=_number(environment, "DISTDL_LOCAL_RANK", rank),
        local_size=_number(environment, "DISTDL_LOCAL_SIZE", size),
        node_rank=_number(environment, "DISTDL_NODE_RANK", 0),
        node_count=_number(environment, "DISTDL_NODE_COUNT", 1),
        host=environment.setdefault("DISTDL_HOST", os.uname().nodename),
        folder=folder,
        nonce=environment.get("DISTDL_NONCE", ""),
        pipes=pipes,
    )


def _derived(environment: Mapping[str, str]) -> dict[str, str]:
    match = next((launcher for launcher in LAUNCHERS if launcher.rank in environment), None)
    if match is None:
        return {"DISTDL_RANK": "0"}
    rank, size = _number(environment, match.rank, 0), _number(environment, match.world_size, 1)
    local_size = _number(environment, match.local_size, 0)
    node_count = _number(environment, match.node_count, 0) or (size // local_size if local_size else 1)
    local_size = local_size or max(1, size // node_count)
    numbers = {
        "DISTDL_RANK": rank,
        "DISTDL_WORLD_SIZE": size,
        "DISTDL_LOCAL_RANK": _number(environment, match.local_rank, rank % local_size),
        "DISTDL_LOCAL_SIZE": local_size,
        "DISTDL_NODE_RANK": _number(environment, match.node_rank, rank // local_size),
        "DISTDL_NODE_COUNT": node_count,
    }
    return {name: str(number) for name, number in numbers.items()}


def _own_variables(pipes: Path | None, rank: int) -> dict[str, str]:
    """Return the job's variables for this rank, for launchers that start all ranks with the same environment.

    The file ``ranks.json`` next to the named pipes is a list with one object of variables for each rank.
    """
    if pipes is None:
        return {}
    try:
        variables = json.loads((pipes / "ranks.json").read_text(encoding="utf-8"))[rank]
    except (OSError, ValueError, IndexError):
        return {}
    return {str(name): str(value) for name, value in variables.items()}


def _shared_memory(pipes: Path | None) -> dict[str, str]:
    """Return the variables that put Open MPI's shared memory files into a folder that is removed after the run.

    The setting is named ``vader`` in 4.1 and ``sm`` in 5.0.
    """
    folder = Path("/dev/shm") / pipes.name if pipes is not None else None  # noqa: S108 - created by the run, checked here
    try:
        if folder is None or folder.stat().st_uid != os.getuid():
            return {}
    except OSError:
        return {}
    return {f"OMPI_MCA_btl_{name}_backing_directory": str(folder) for name in ("sm", "vader")}


#: Address and port of Horovod's rendezvous server.
_ADDRESS, _PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"


def rendezvous_secret(nonce: str) -> str:
    """Return the secret of Horovod's rendezvous server for the job with this nonce, "" without a nonce."""
    from hashlib import sha256  # imported here because only Horovod needs it

    return sha256(f"rendezvous {nonce}".encode()).hexdigest()[:32] if nonce else ""


def put_rendezvous_secret(environment: MutableMapping[str, str]) -> None:
    """Add the job's secret to the address of Horovod's rendezvous server, unless the address contains it already.

    Horovod requests ``http://ADDRESS:PORT/scope/key`` from its rendezvous server without a password, but it uses the
    address from the environment unchanged. So the address contains a secret, ``10.0.0.4:29500/SECRET``. Each process
    derives it from the job's nonce, so it is never on a command line. The server refuses requests without the secret.
    """
    address, port = environment.get(_ADDRESS, ""), environment.get(_PORT, "")
    if address and port and "/" not in address and (nonce := environment.get("DISTDL_NONCE")):
        environment[_ADDRESS] = f"{address}:{port}/{rendezvous_secret(nonce)}"


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "") if name else ""
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be an integer, not {text!r}.") from None
