"""From the call to the first optimizer step on two machines: a job there beside a job's cell on ranks that stay there.

``python -m tests.benchmarks.first_step_hosts``. The machines are network namespaces of this one: hosts with a real
sshd, and nodes of a real Slurm with nothing else to do. Both sides run the same function with ``torch`` over Gloo, one
rank on each machine; the ranks that stay have run it once before, so that its imports are there. It takes root.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import distdl_jupyter
from distdl_jupyter import capture, cluster_configs, ranks
from tests import hosts, slurm
from tests.benchmarks import report
from tests.benchmarks.launchers import Told, as_in_a_cell, workplace
from tests.benchmarks.report import Report, interleaved

NODES = 2
#: Seconds until the first step on machines where ranks stay.
PROMISED = 1.0


def measure(turns: int) -> Iterator[Report]:
    """Yield one table."""
    table = Report("Machines: from the call to the first optimizer step, 1 rank on each of 2", "s",
                   report.versions("distdl-jupyter", "torch"))  # fmt: skip
    with workplace() as (scratch, _):
        os.environ["JUPYTER_CONFIG_DIR"] = str(scratch / "configuration")
        told = Told(scratch)
        for target, missing, machines in (("ssh", hosts.missing(), _ssh), ("slurm", slurm.missing(), _slurm)):
            name, peer = f"a cell on ranks that stay, {target}", f"a job, {target}"
            if missing:
                table.missing(name, peer, missing)
                continue
            with ExitStack() as own:
                own.enter_context(machines())
                options = {"compute_target": f"bench-{target}", "node_count": NODES, "distributed_backend": "torch"}
                session = ranks.start(**options)
                own.callback(session.stop)
                ways: dict[str, Callable[[], float]] = {
                    name: partial(_on_ranks, session, told), peer: partial(_as_job, options, told),
                }  # fmt: skip
                times = interleaved(ways, turns)
            table.compare(name, times[name], peer, times[peer])
            table.value(name, times[name], at_most=PROMISED)
    yield table


def _on_ranks(session: ranks.Ranks, told: Told) -> float:
    function, file = as_in_a_cell("first.py", "train"), told.ask()
    began = time.time()
    session.run_distributed(capture.capture_function(function, ("torch", file))).check()
    return told.heard() - began


def _as_job(options: dict[str, object], told: Told) -> float:
    function, file = as_in_a_cell("first.py", "train"), told.ask()
    began = time.time()
    distdl_jupyter.submit(function, ("torch", file), **options).result()
    return told.heard() - began


@contextmanager
def _ssh() -> Iterator[None]:
    lab = hosts.Hosts(NODES)
    try:
        cluster_configs.add("bench-ssh", "ssh", lab.options())
        yield
    finally:
        lab.down()


@contextmanager
def _slurm() -> Iterator[None]:
    farm = slurm.Slurm(NODES)
    try:
        os.environ["SLURM_CONF"] = str(farm.conf)
        cluster_configs.add("bench-slurm", "slurm", farm.options())
        yield
    finally:
        farm.down()


if __name__ == "__main__":
    report.main(measure, turns=3)
