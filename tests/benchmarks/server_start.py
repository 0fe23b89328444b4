"""What the extension adds to the start of a Jupyter server: in milliseconds and as a share of the start without it.

    .venv/bin/python tests/benchmarks/server_start.py [rounds]

Each start is a process of its own with no other extension; they take turns with and without ours, and the median of the
rounds counts. Measured from the start of Python until the server answers.
"""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil

ROUNDS = 9
#: What the project allows itself.
GOAL_MS = 150
START = """
import jupyter_core.paths
jupyter_core.paths.ENV_CONFIG_PATH[:] = jupyter_core.paths.SYSTEM_CONFIG_PATH[:] = []
from jupyter_server.serverapp import ServerApp
ServerApp.launch_instance()
"""


def start(folder, *, ours):
    """Return the seconds until a server answers, its seconds of processor, and those of its first answer of ours."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kinds = {f"JUPYTER_{kind}_DIR": str(folder / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    options = {
        "ServerApp.port": port,
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "ServerApp.root_dir": str(folder),
        "ServerApp.log_level": "ERROR",
        "IdentityProvider.token": "t",
    }
    given = {"distdl_jupyter": True} if ours else {}
    code = START.replace("launch_instance()", f"launch_instance(jpserver_extensions={given})")
    command = [sys.executable, "-c", code, *(f"--{name}={value}" for name, value in options.items())]
    begin = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, **kinds, "DISTDL_HOME": str(folder / "home")},
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        address = f"http://127.0.0.1:{port}/" + ("distdl/api/jobs?token=t" if ours else "api/status?token=t")
        _until_it_answers(f"http://127.0.0.1:{port}/api", process)
        taken, used = time.perf_counter() - begin, sum(psutil.Process(process.pid).cpu_times()[:2])
        begin = time.perf_counter()
        urllib.request.urlopen(address, timeout=60).read()
        return taken, used, time.perf_counter() - begin
    finally:
        process.terminate()
        process.wait(30)


def _until_it_answers(address, process):
    while process.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=60).read()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.005)
        else:
            return
    raise SystemExit("The server ended before it answered.")


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    taken, used, first = {True: [], False: []}, {True: [], False: []}, []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for ours in (number % 2 == 0, number % 2 != 0):
                seconds, processor, answer = start(Path(folder), ours=ours)
                if number:  # the first round only warms the disk's cache
                    taken[ours].append(seconds)
                    used[ours].append(processor)
                    first += [answer] if ours else []
    with_, without = (statistics.median(taken[ours]) for ours in (True, False))
    added = statistics.median(one - other for one, other in zip(taken[True], taken[False], strict=True))
    print(
        f"server start without {without * 1000:.0f} ms, with {with_ * 1000:.0f} ms: ratio {with_ / without:.2f}, "
        f"adds {added * 1000:.0f} ms (goal: below {GOAL_MS} ms), median of {rounds}"
    )
    processor = statistics.median(used[True]) - statistics.median(used[False])
    print(f"of the processor's time it adds {processor * 1000:.0f} ms, which tells more on a busy machine")
    print(f"first answer, asked for at once: {statistics.median(first) * 1000:.0f} ms")


if __name__ == "__main__":
    main()
