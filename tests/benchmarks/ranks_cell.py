"""What a ``%%ranks`` cell takes on ranks that are up, beside ipyparallel's ``%%px`` on engines that are up.

``python -m tests.benchmarks.ranks_cell``. Two real kernels with two ranks each: ours in this environment, the peer's in
its own. The time is that of a front end: from sending the cell until the reply and the idle kernel. The
training cell takes one optimizer step of a small network whose gradients the ranks average over Gloo.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

from tests.benchmarks import report
from tests.benchmarks.launchers import RANKS, SUBJECTS, warm, workplace
from tests.benchmarks.peers import environment
from tests.benchmarks.report import Report, interleaved
from tests.processes import free_port

TIMEOUT = 180.0
CELLS = {"1 + 1": "1 + 1", "a line printed by each rank": "print('loss 0.25')", "an optimizer step": "step()"}
ENGINES = f"""
import ipyparallel
engines = ipyparallel.Cluster(n={RANKS}, log_level=40).start_and_connect_sync()
engines[:].activate()
for rank in engines.ids:
    place = dict(RANK=str(rank), WORLD_SIZE="{RANKS}", MASTER_ADDR="127.0.0.1", MASTER_PORT="PORT")
    engines[rank].push(dict(place=place))
"""


class Kernel:
    """A kernel in an environment."""

    def __init__(self, python: str, variables: Mapping[str, str], folder: Path, stack: ExitStack) -> None:
        # The annotations of jupyter_client are incomplete.
        manager: Any = KernelManager()
        manager.kernel_spec.argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        manager.start_kernel(env=dict(variables), cwd=str(folder), stderr=subprocess.DEVNULL)
        stack.callback(manager.shutdown_kernel, now=True)
        self._client: Any = manager.blocking_client()
        self._client.start_channels()
        stack.callback(self._client.stop_channels)
        self._client.wait_for_ready(timeout=TIMEOUT)

    def run(self, code: str) -> float:
        """Run a cell and return the seconds until its reply and the idle kernel; raise SystemExit when it fails."""
        start = time.perf_counter()
        reply = self._client.execute_interactive(code, timeout=TIMEOUT, output_hook=lambda message: None)
        elapsed = time.perf_counter() - start
        if reply["content"]["status"] != "ok":
            raise SystemExit(f"The cell {code!r} failed: {reply['content']}")
        return elapsed


def measure(turns: int) -> Iterator[Report]:
    """Yield one table."""
    peers = environment()
    versions = {**report.versions("distdl-jupyter", "ipykernel"), **peers.versions("ipyparallel", "torch")}
    table = Report("A cell on ranks that are up", "ms", versions)
    with workplace() as (scratch, stack), warm("off"):
        ours = _ranks(scratch, stack)
        kernels = {"%%ranks": ours, "an ordinary cell": ours}
        if "ipyparallel" in peers.missing:
            table.missing("%%ranks", "%%px", peers.missing["ipyparallel"])
        else:
            kernels["%%px"] = _engines(peers.python, peers.variables(), scratch, stack)
        for title, code in CELLS.items():
            if code == "step()":
                # Two ranks take the step together, so an ordinary cell is not comparable.
                del kernels["an ordinary cell"]
                for magic, kernel in kernels.items():
                    kernel.run(f"{magic}\n{(SUBJECTS / 'prompt.py').read_text()}")
            ways = {
                name: partial(kernel.run, f"{name}\n{code}" if name.startswith("%%") else code)
                for name, kernel in kernels.items()
            }
            times = interleaved(ways, turns)
            table.value(f"%%ranks: {title}", times["%%ranks"], at_most=30)
            for peer in list(times)[1:]:
                table.compare(f"%%ranks: {title}", times["%%ranks"], peer, times[peer])
    yield table


def _ranks(folder: Path, stack: ExitStack) -> Kernel:
    kernel = Kernel(sys.executable, os.environ, folder, stack)
    kernel.run("%load_ext distdl_jupyter")
    kernel.run(f"%dist_ranks start -p {RANKS} --backend torch")
    stack.callback(kernel.run, "%dist_ranks stop")
    return kernel


def _engines(python: str, variables: Mapping[str, str], folder: Path, stack: ExitStack) -> Kernel:
    kernel = Kernel(python, {**variables, "IPYTHONDIR": str(folder / "ipython")}, folder, stack)
    kernel.run(ENGINES.replace("PORT", str(free_port())))
    stack.callback(kernel.run, "engines.cluster and engines.cluster.stop_cluster_sync()")
    kernel.run("%%px\nimport os; os.environ.update(place)")
    return kernel


if __name__ == "__main__":
    report.main(measure, turns=40)
