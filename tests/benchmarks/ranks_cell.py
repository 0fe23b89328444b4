"""What a ``%%ranks`` cell takes on ranks that are up, beside ipyparallel's ``%%px`` on engines that are up.

``python -m tests.benchmarks.ranks_cell``. Two real kernels with two ranks each: ours in this environment, the peer's in
its own. The time is a front end's: from sending the cell until the reply and the kernel's being idle have come. The
training cell takes one optimizer step of a small network whose gradients the ranks average over Gloo.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

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
AWAY = "engines.cluster.stop_cluster_sync() if engines.cluster else None"


class Kernel:
    """A kernel in an environment, and what a front end asks of it."""

    def __init__(self, python: str, variables: Mapping[str, str], folder: Path) -> None:
        # Its classes are typed as far as their authors went.
        self._manager: Any = cast("Any", KernelManager())
        self._manager.kernel_spec.argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self._manager.start_kernel(env=dict(variables), cwd=str(folder), stderr=subprocess.DEVNULL)
        self._client: Any = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=TIMEOUT)

    def run(self, code: str) -> float:
        """Run a cell; return the seconds until its reply and the kernel's rest; raise SystemExit when it fails."""
        begun = time.perf_counter()
        asked = self._client.execute(code)
        reply = self._client._recv_reply(asked, timeout=TIMEOUT)
        printed = self._until_idle(asked)
        taken = time.perf_counter() - begun
        if reply["content"]["status"] != "ok":
            raise SystemExit(f"The cell {code!r} failed: {reply['content']} {printed}")
        return taken

    def close(self) -> None:
        """End it."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def _until_idle(self, asked: str) -> list[Any]:
        came = []
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=TIMEOUT)
            except queue.Empty:
                raise SystemExit("The kernel does not come to rest.") from None
            if message["parent_header"].get("msg_id") != asked:
                continue
            came.append(message["content"])
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return came


def measure(turns: int) -> Iterator[Report]:
    """Yield one table."""
    peers = environment()
    versions = {**report.versions("distdl-jupyter", "ipykernel"), **peers.versions("ipyparallel", "torch")}
    table = Report("A cell on ranks that are up", "ms", versions)
    with workplace() as (scratch, stack), warm("off"):
        ours = stack.enter_context(_ranks(scratch))
        kernels = {"%%ranks": ours, "an ordinary cell": ours}
        if "ipyparallel" in peers.missing:
            table.missing("%%ranks", "%%px", peers.missing["ipyparallel"])
        else:
            kernels["%%px"] = stack.enter_context(_engines(peers.python, peers.variables(), scratch))
        for title, code in CELLS.items():
            if code == "step()":
                _prepare(kernels)
            times = interleaved(_ways(kernels, code), turns)
            table.value(f"%%ranks: {title}", times["%%ranks"], at_most=30)
            for peer in list(times)[1:]:
                table.compare(f"%%ranks: {title}", times["%%ranks"], peer, times[peer])
    yield table


def _ways(kernels: Mapping[str, Kernel], code: str) -> dict[str, Callable[[], float]]:
    cells = {name: code if name == "an ordinary cell" else f"{name}\n{code}" for name in kernels}
    # What a step on two ranks would be in one kernel is no comparison.
    left_out = {"an ordinary cell"} if code == "step()" else set()
    return {name: partial(kernel.run, cells[name]) for name, kernel in kernels.items() if name not in left_out}


def _prepare(kernels: Mapping[str, Kernel]) -> None:
    code = (SUBJECTS / "prompt.py").read_text()
    for name, kernel in kernels.items():
        if name.startswith("%%"):
            kernel.run(f"{name}\n{code}")


@contextmanager
def _ranks(folder: Path) -> Iterator[Kernel]:
    kernel = Kernel(sys.executable, os.environ, folder)
    try:
        kernel.run("%load_ext distdl_jupyter")
        kernel.run(f"%dist_ranks start -p {RANKS} --backend torch")
        yield kernel
        kernel.run("%dist_ranks stop")
    finally:
        kernel.close()


@contextmanager
def _engines(python: str, variables: Mapping[str, str], folder: Path) -> Iterator[Kernel]:
    with ExitStack() as stack:
        kernel = Kernel(python, {**variables, "IPYTHONDIR": str(folder / "ipython")}, folder)
        stack.callback(kernel.close)
        kernel.run(ENGINES.replace("PORT", str(free_port())))
        stack.callback(kernel.run, AWAY)
        kernel.run("%%px\nimport os; os.environ.update(place)")
        yield kernel


if __name__ == "__main__":
    report.main(measure, turns=40)
