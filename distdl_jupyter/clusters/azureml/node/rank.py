"""A program: one rank of a job on Azure Machine Learning, which starts it itself, on every node.

``python -m distdl_jupyter.clusters.azureml.node.rank [--data NAME=FOLDER] [--outputs FOLDER]`` in the folder of the
job's code. Who the rank is stands in the variables that Azure ML sets: those of Open MPI (Mpi), of torchrun (PyTorch)
or ``TF_CONFIG`` (TensorFlow). The worker runs as a child, so that its own end can be told whatever it was, and what it
says goes to the one log that Azure ML keeps for each process.

Azure ML knows one way to stop a job; it is taken for an interrupt first, so that training code may save its work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from distdl_jupyter.clusters.azureml.node import rendezvous
from distdl_jupyter.clusters.azureml.node.log_mux import LogMux
from distdl_jupyter.clusters.azureml.node.node_plan import NodePlan, who
from distdl_jupyter.clusters.azureml.node.rendezvous import Rendezvous, RendezvousFailed
from distdl_jupyter.node import oom, processes

#: Below ``outputs``, which Azure ML keeps: where the ranks' values go.
RESULTS = "distdl/results"
#: Seconds in which a rank's last words may come out of its pipes when it has ended.
_LAST_WORDS = 0.3
_TICK = 0.5
#: Seconds in which a service has to say that it is ready.
_SERVICE_TIMEOUT = 60.0
#: How a rank ends that has only lent its node.
_ENDED_WELL = {"code": 0, "signal": None, "evidence": ""}


class Stopping:
    """Hears SIGTERM and SIGINT; a rank then gets INT, later TERM, then KILL."""

    def __init__(self, grace: float) -> None:
        self._steps = [(0.0, signal.SIGINT), (grace, signal.SIGTERM), (3 * grace, signal.SIGKILL)]
        self.since: float | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def _hear(self, *_: object) -> None:
        self.since = self.since or time.monotonic()

    def __call__(self) -> bool:
        """Say whether somebody wants the end."""
        return self.since is not None

    def carry_on(self, pid: int) -> None:
        """Send what is due: INT to the rank alone, the others to everything that descends from it."""
        while self.since is not None and self._steps and time.monotonic() - self.since >= self._steps[0][0]:
            number = self._steps.pop(0)[1]
            found = [pid] if number == signal.SIGINT else processes.descendants([pid], processes.table())
            processes.send(found, number)


class Services:
    """The helper processes of a job on node 0."""

    def __init__(self, node: NodePlan) -> None:
        self._node = node
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> set[int]:
        """The pids of the services."""
        return {process.pid for process in self._running}

    def start(self) -> None:
        """Start them and wait until each has said that it is ready. Raises RendezvousFailed."""
        for service in self._node.plan["services"]:
            process = self._start([self._node.fill(word) for word in service["arguments"]])
            self._running.append(process)
            ready, said = threading.Event(), bytearray()
            threading.Thread(target=_pass_on, args=(process, service["ready"].encode(), ready, said),
                             daemon=True).start()  # fmt: skip
            ready.wait(_SERVICE_TIMEOUT)
            if service["ready"].encode() not in said:
                sys.stderr.write(said.decode(errors="replace"))
                raise RendezvousFailed(f"{service['name']} did not start on {self._node.node}.")

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        # A platform may signal all processes of a job; services must outlive the ranks that are being stopped.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._node.common(),
            )
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """End them."""
        for process in self._running:
            if process.stdin is not None:
                process.stdin.close()
        time.sleep(0.05 if self._running else 0)
        processes.send(self.pids, signal.SIGKILL)
        self._running.clear()


def _pass_on(process: subprocess.Popen[bytes], ready: bytes, event: threading.Event, said: bytearray) -> None:
    """Read a service's output: up to its ready line into ``said``, what comes later to this process's own output."""
    assert process.stdout is not None, "a service is started with a pipe"
    while line := process.stdout.readline():
        if event.is_set():
            with contextlib.suppress(OSError):
                os.write(2, line)
        else:
            said += line
            if ready in line:
                event.set()
    event.set()


def meet(node: NodePlan, services: Services, stopped: Stopping) -> None:
    """Find out where the ranks meet, when this job's have to. Raises RendezvousFailed."""
    if not node.plan["meets"]:
        return
    address, port = _of_node_0(node)
    nonce = node.plan["common"]["DISTDL_NONCE"]
    if node.one.rank != 0:
        node.learn(rendezvous.join(address, port, nonce, stopped))
        return
    host = rendezvous.Host(port, nonce, node.one.world_size - 1)
    try:
        found = _found(node, address)
        node.learn(found)
        services.start()
    except RendezvousFailed as error:
        host.refuse(str(error))
        raise
    host.announce(found)


def _of_node_0(node: NodePlan) -> tuple[str, int]:
    """Return node 0's address and the port on which rank 0 tells the others where they meet.

    Batch keeps the port of AZ_BATCH_MASTER_NODE for itself; MASTER_PORT is the job's.
    """
    master = os.environ.get("MASTER_ADDR") or os.environ.get("AZ_BATCH_MASTER_NODE", "").rpartition(":")[0]
    return master or "127.0.0.1", int(os.environ.get("MASTER_PORT") or node.plan["port"])


def _found(node: NodePlan, address: str) -> Rendezvous:
    try:
        own = socket.gethostbyname(address)
        ports = node.ports.reserve(node.plan["ports"], own)
    except OSError as error:
        raise RendezvousFailed(f"{node.node} cannot listen at {address}: {error}.") from error
    return Rendezvous(own, rendezvous.network_of(own), tuple(ports))


class Rank:
    """The worker and its two pipes."""

    def __init__(self, log: LogMux) -> None:
        self._log = log
        self._streams = selectors.DefaultSelector()
        self._wake, wake = os.pipe()
        for fd in (self._wake, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._streams.register(self._wake, selectors.EVENT_READ, "")

    def run(self, argv: Sequence[str], environment: Mapping[str, str], stopping: Stopping) -> int:
        """Run it to its end and return its code, minus the signal's number when one ended it. Raises OSError."""
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=dict(environment), start_new_session=True)  # fmt: skip
        assert child.stdout is not None
        assert child.stderr is not None
        self._streams.register(child.stdout, selectors.EVENT_READ, "out")
        self._streams.register(child.stderr, selectors.EVENT_READ, "err")
        while child.poll() is None:
            stopping.carry_on(child.pid)
            self._pass_on(_TICK)
        # Whatever it has left running may hold the pipes open for ever.
        until = time.monotonic() + 10.0
        while self._pass_on(_LAST_WORDS) and time.monotonic() < until:
            pass
        return child.returncode

    def _pass_on(self, seconds: float) -> bool:
        came = False
        for key, _ in self._streams.select(seconds):
            if key.data:
                content = os.read(key.fd, 65_536)
                came = came or bool(content)
                write(self._log.said(key.data, content)) if content else self._streams.unregister(key.fileobj)
            else:
                os.read(self._wake, 4096)
                came = True
        return came


def write(content: bytes) -> None:
    """Write to the log of this process, all of it."""
    view = memoryview(content)
    while view:
        view = view[os.write(1, view) :]


def _prepare(folder: Path) -> None:
    """Let the ranks' values go where Azure ML keeps files, and put this node's folder into the payload's paths."""
    (folder / "outputs" / RESULTS).mkdir(parents=True, exist_ok=True)
    (folder / "work").mkdir(exist_ok=True)
    for link, target in ((folder / "results", Path("outputs", RESULTS)), (folder / "work/outputs", Path("../outputs"))):
        with contextlib.suppress(FileExistsError):
            link.symlink_to(target)
    payload = folder / "payload.json"
    hidden = payload.with_name(f".{payload.name}.{os.getpid()}")
    hidden.write_text(payload.read_text(encoding="utf-8").replace('"@job@/', f'"{folder}/'), encoding="utf-8")
    hidden.replace(payload)


def keep(outputs: Path, target: Path) -> None:
    """Copy what ranks have put into ``outputs`` to another folder, which Azure ML uploads at the end."""
    for path in outputs.rglob("*"):
        name = path.relative_to(outputs)
        if path.is_file() and name.parts[0] != Path(RESULTS).parts[0]:
            other, seen = target / name, path.stat()
            if other.exists() and (other.stat().st_size, other.stat().st_mtime) == (seen.st_size, seen.st_mtime):
                continue
            other.parent.mkdir(parents=True, exist_ok=True)
            hidden = other.with_name(f".{other.name}.{os.getpid()}")
            shutil.copy2(path, hidden)
            hidden.replace(other)


def main() -> int:
    """Run this process's rank."""
    given = _arguments()
    folder = Path.cwd()
    try:
        one = who(os.environ)
        node = NodePlan(folder, one)
    except (ValueError, KeyError, OSError) as error:
        sys.stderr.write(f"This rank cannot start: {error}.\n")
        return 64
    log = LogMux(node.plan["common"]["DISTDL_NONCE"], one.rank)
    write(log.head)
    code, outcome = _life(node, log, given)
    if given.outputs:
        keep(folder / "outputs", Path(given.outputs))
    write(log.end(json.dumps(outcome)))
    for rank in range(1, node.plan["ranks"] if node.leads_alone else 0):
        write(LogMux(node.plan["common"]["DISTDL_NONCE"], rank).head + log.end(json.dumps({**outcome, **_ENDED_WELL})))
    return code


def speak_for_others(node: NodePlan, back: bytes) -> None:
    """Let a worker greet for each rank that only lends its node; ``back`` gives the word to this process's own rank.

    No process of ours runs on those nodes. Raises OSError.
    """
    for rank in range(1, node.plan["ranks"]):
        lent = node.common() | node.of_rank(rank) | {"DISTDL_JOB_DIR": str(node.folder), "DISTDL_RAY": "elsewhere"}
        said = subprocess.run(node.worker(), stdin=subprocess.DEVNULL, capture_output=True, env=lent, check=False)
        write(LogMux(node.plan["common"]["DISTDL_NONCE"], rank).head + said.stdout)
    write(back)


def _life(node: NodePlan, log: LogMux, given: argparse.Namespace) -> tuple[int, dict[str, object]]:
    """Return the exit code and what is told of the rank's end."""
    stopping, services = Stopping(node.plan["grace"]), Services(node)
    _prepare(node.folder)
    before = oom.counters()
    data = dict(one.split("=", 1) for one in given.data)
    try:
        meet(node, services, stopping)
        environment = node.variables({node.plan["data"][name]: where for name, where in data.items()})
        if node.leads_alone:
            environment |= {"RAY_ADDRESS": "auto", "DISTDL_RAY": "platform"}
            speak_for_others(node, log.head)
        returncode = Rank(log).run(node.worker(), environment, stopping)
    except (RendezvousFailed, OSError) as error:
        return 1, {"code": 1, "signal": None, "evidence": str(error), "node": node.node}
    finally:
        services.close()
    name = processes.signal_name(-returncode) if returncode < 0 else None
    evidence = oom.evidence(before) if name == "KILL" and not stopping() else ""
    end: dict[str, object] = {
        "code": returncode if name is None else None,
        "signal": name,
        "evidence": evidence,
        "node": node.node,
    }
    return returncode if name is None else 128 - returncode, end


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m distdl_jupyter.clusters.azureml.node.rank", description=__doc__)
    parser.add_argument("--data", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--outputs", default="", metavar="FOLDER")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
