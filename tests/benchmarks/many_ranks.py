"""What a job of 8, 64, 256 and 1,000 ranks takes: its supervisor, the server, and the way of a line to a page.

``python -m tests.benchmarks.many_ranks``. At most four processes play all ranks (``tests.supervisor.simulated``), 8 on
a node; records, transport, supervisor, files, server and the page's WebSocket are real. A rank makes two steps a second
with a metric of two values and its progress, tells once a second where the time of its steps went, and prints a line
every ten seconds (rank 0 in each step); a node says once a second what it uses. The page wants card, log, curve and
resources, as the job's page does. Shares of a processor are those while the ranks train.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import distdl_jupyter
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.node import processes
from tests import plugin
from tests.benchmarks import report
from tests.benchmarks.report import Report
from tests.benchmarks.server_start import serving
from tests.server.listening import Page
from tests.supervisor import simulated

#: A server: its process and its address.
Server = tuple[psutil.Process, str]

PER_NODE, NODES = 8, (1, 8, 32, 125)
SECONDS, STEP = 20.0, 0.5
#: Seconds that may pass from the end of the ranks to that of the job, and a line may take to the page.
END, LINE = 10.0, 1.0
_PRINTED = re.compile(r"rank (\d+) step (\d+) loss \S+ printed (\d+\.\d+)")


def measure(turns: int) -> Iterator[Report]:
    """Yield a table for each number of ranks."""
    with place() as server:
        first: dict[str, list[float]] = {}
        for nodes in NODES:
            found = [Trained(server, nodes).found for _ in range(turns)]
            told = {name: [one[name] for one in found] for name in found[0]}
            first = first or told
            yield table(nodes, told, first)


def table(nodes: int, told: dict[str, list[float]], first: dict[str, list[float]]) -> Report:
    """Return the table of so many nodes; its peers are the ``first`` ones."""
    players = plural(min(nodes, simulated.PLAYERS), "process")
    title = f"{nodes * PER_NODE:,} ranks on {plural(nodes, 'node')}, played by {players}"
    made = Report(title, "s", report.versions("distdl-jupyter"))
    goals = {"a line to the page, p50": LINE, "from the ranks' end to the job's": END}
    for name, values in told.items():
        unit = "MB" if "memory" in name else "%" if "processor" in name else "kB/s" if "is told" in name else "s"
        made.value(name, values, unit=unit, at_most=goals.get(name))
        if nodes > NODES[0] and unit in ("MB", "%"):
            made.unit = unit
            made.compare(name, values, f"{NODES[0] * PER_NODE} ranks", first[name])
            made.unit = "s"
    return made


@contextmanager
def place() -> Iterator[Server]:
    """Yield a server, with the plug-in and a data directory of its own."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("DISTDL_HOME", str(scratch / "home"))
        plugin.install(scratch, patch, Path(simulated.__file__).read_text(), simulated.POINTS)
        stack.callback(plugin.forget)
        yield stack.enter_context(serving(scratch))


def submit(nodes: int) -> distdl_jupyter.Job:
    """Begin a job on so many played nodes."""
    if "rack" not in {one.name for one in distdl_jupyter.clusters()}:
        distdl_jupyter.add_cluster("rack", "simulated", step_seconds=STEP, seconds=SECONDS)
    counts = {"node_count": nodes, "process_count_per_node": PER_NODE}
    return distdl_jupyter.submit(nothing, compute_target="rack", distributed_backend="torch", **counts)


def nothing() -> None:
    """Stand for the code, which played ranks do not run."""


def until(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    """Wait until something is true and return it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise SystemExit("The job did not go on.")
        time.sleep(0.2)
    return found


def supervisor(job: distdl_jupyter.Job) -> psutil.Process:
    """Return the process that writes the job's folder: of the two of that name, the child of the other."""
    marked = [psutil.Process(pid) for pid in processes.read_table()]
    named = [one for one in marked if {"distdl_jupyter.supervisor", str(job.folder.path)} <= set(one.cmdline())]
    return max(named, key=lambda one: one.create_time())


class Listener(Page):
    """A page that keeps when it was told of each line and each step."""

    def __init__(self, url: str, id_: str) -> None:
        self.lines: dict[tuple[str, str], tuple[float, float]] = {}
        self.steps: dict[int, float] = {}
        self.bytes = 0
        super().__init__(url, {"job": {id_: {"log": {}, "curves": [{}], "resources": True}}})

    def take(self, message: dict[str, Any]) -> None:
        """Take a message."""
        now = time.time()
        if message["type"] == "log":
            for row in message["rows"]:
                for rank, step, printed in _PRINTED.findall(str(row)):
                    self.lines.setdefault((rank, step), (float(printed), now))
        elif message["type"] == "job":
            for metric in message["metrics"]:
                self.steps.setdefault(int(metric["step"]), now)


class Trained:
    """One job that trains to its end while a page looks on; ``found`` is what was measured."""

    def __init__(self, server: Server, nodes: int) -> None:
        begun = time.time()
        job = submit(nodes)
        process, url = server
        page = Listener(url, job.id)
        try:
            until(lambda: page.steps)
            started = min(page.steps.values()) - begun
            shares, memory = self._watched(job, process, page)
            until(lambda: job.view().state.ended)
            view = job.view()
            if view.state is not State.COMPLETED:
                raise SystemExit(f"The job did not complete: {view.reason}")
        finally:
            page.close()
        lines = sorted(came - printed for printed, came in page.lines.values())
        # The page is told of a step when the first rank has reported it.
        reported = job.metrics().groupby("step")["time"].min()
        metrics = [came - reported[step].timestamp() for step, came in page.steps.items()]
        self.found = {
            "from the call to the first step on the page": started,
            "a line to the page, p50": statistics.median(lines),
            "a line to the page, p99": lines[int(0.99 * (len(lines) - 1))],
            "a metric to the page, p50": statistics.median(metrics),
            "the supervisor's processor": shares[0],
            "the server's processor": shares[1],
            "the supervisor's memory at most": memory[0],
            "the server's memory at most": memory[1],
            "from the ranks' end to the job's": (view.ended or 0.0) - max(at for at, _ in page.lines.values()) - STEP,
        }
        job.remove()

    def _watched(
        self, job: distdl_jupyter.Job, server: psutil.Process, page: Listener
    ) -> tuple[list[float], list[float]]:
        """Return percent of a core and megabytes of supervisor and server until the last steps."""
        both = [supervisor(job), server]
        before, begun = [sum(one.cpu_times()[:2]) for one in both], time.monotonic()
        memory = [0.0, 0.0]
        while max(page.steps) < SECONDS / STEP - 6:
            memory = [max(most, one.memory_info().rss / 1e6) for most, one in zip(memory, both, strict=True)]
            time.sleep(0.5)
        taken = time.monotonic() - begun
        used = [sum(one.cpu_times()[:2]) - past for one, past in zip(both, before, strict=True)]
        return [100 * one / taken for one in used], memory


if __name__ == "__main__":
    report.main(measure, turns=1)
