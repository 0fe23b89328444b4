"""What the extension adds to the start of a Jupyter server, beside the start without it.

``python -m tests.benchmarks.server_start``. Each start is a process of its own with no other extension; they take turns
with and without ours. Measured from the start of Python until the server answers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.benchmarks import report
from tests.benchmarks.report import Report
from tests.processes import free_port
from tests.server.running import TOKEN

#: What the project allows itself, in milliseconds.
GOAL_MS = 150
START = """
import jupyter_core.paths
jupyter_core.paths.ENV_CONFIG_PATH[:] = jupyter_core.paths.SYSTEM_CONFIG_PATH[:] = []
from jupyter_server.serverapp import ServerApp
ServerApp.launch_instance()
"""


@contextmanager
def serving(folder: Path, *, ours: bool = True, **traits: float) -> Iterator[tuple[psutil.Process, str]]:
    """Start a server with this extension alone or with none; yield its process and its address when it answers.

    ``traits`` are those of the extension. The data directory is that of the environment, else one in ``folder``.
    """
    kinds = {f"JUPYTER_{kind}_DIR": str(folder / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    options = {
        "ServerApp.port": free_port(),
        "ServerApp.port_retries": 0,
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "ServerApp.root_dir": str(folder),
        "ServerApp.log_level": "ERROR",
        "IdentityProvider.token": TOKEN,
        **{f"DistDLApp.{name}": value for name, value in traits.items()},
    }
    given = {"distdl_jupyter": True} if ours else {}
    code = START.replace("launch_instance()", f"launch_instance(jpserver_extensions={given})")
    command = [sys.executable, "-c", code, *(f"--{name}={value}" for name, value in options.items())]
    environment = {"DISTDL_HOME": str(folder / "home"), **os.environ, **kinds}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{options['ServerApp.port']}"
        _until_it_answers(f"{url}/api", process)
        yield psutil.Process(process.pid), url
    finally:
        process.terminate()
        process.wait(30)


def _until_it_answers(address: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=60).read()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.005)
        else:
            return
    raise SystemExit("The server ended before it answered.")


def start(folder: Path, *, ours: bool) -> tuple[float, float, float]:
    """Return the seconds until a server answers, its seconds of processor, and those of its first answer of ours."""
    begin = time.perf_counter()
    with serving(folder, ours=ours) as (process, url):
        taken, used = time.perf_counter() - begin, sum(process.cpu_times()[:2])
        begin = time.perf_counter()
        address = f"{url}/distdl/api/jobs" if ours else f"{url}/api/status"
        urllib.request.urlopen(f"{address}?token={TOKEN}", timeout=60).read()
        return taken, used, time.perf_counter() - begin


def measure(turns: int) -> Iterator[Report]:
    """Yield one table."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    used: dict[bool, list[float]] = {True: [], False: []}
    first: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(turns + 1):
            for ours in (number % 2 == 0, number % 2 != 0):
                seconds, processor, answer = start(Path(folder), ours=ours)
                if number:  # the first turn only warms the disk's cache
                    taken[ours].append(seconds)
                    used[ours].append(processor)
                    first += [answer] if ours else []
    table = Report("A Jupyter server starts", "ms", report.versions("distdl-jupyter", "jupyter-server"))
    added = [one - other for one, other in zip(taken[True], taken[False], strict=True)]
    table.compare("with the extension", taken[True], "without", taken[False])
    table.compare("of the processor", used[True], "without", used[False])
    table.value("what the extension adds", added, at_most=GOAL_MS)
    table.value("its first answer, asked for at once", first)
    yield table


if __name__ == "__main__":
    report.main(measure, turns=9)
