"""A program: one rank of a job on Azure Machine Learning, which starts it itself, on every node.

``python -m distdl_jupyter.host.azureml [--data NAME=FOLDER] [--outputs FOLDER]`` in the folder of the job's code. Who
the rank is stands in the variables that Azure ML sets: those of Open MPI (Mpi), of torchrun (PyTorch) or ``TF_CONFIG``
(TensorFlow). The worker runs as a child, so that its own end can be told whatever it was, and what it says goes to the
one log that Azure ML keeps for each process.

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
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distdl_jupyter.host import gathering, meeting, memory, processes
from distdl_jupyter.host.allotment import Place
from distdl_jupyter.host.meeting import Meeting, NoMeeting
from distdl_jupyter.host.oneline import Mixer
from distdl_jupyter.host.services import Services

#: Below ``outputs``, which Azure ML keeps: where the ranks' values go.
RESULTS = "distdl/results"
#: Seconds in which a rank's last words may come out of its pipes when it has ended.
_LAST_WORDS = 0.3
_TICK = 0.5
#: How a rank ends that has only lent its node.
_ENDED_WELL = {"code": 0, "signal": None, "evidence": ""}


class Who(NamedTuple):
    """One process as Azure ML started it; ``local_rank`` None where it does not say."""

    rank: int
    world_size: int
    local_rank: int | None


def who(environment: Mapping[str, str]) -> Who:
    """Return which process this is; the first of one where nothing says so. Raises ValueError."""
    for names in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
                  ("RANK", "WORLD_SIZE", "LOCAL_RANK")):  # fmt: skip
        if names[0] in environment:
            rank, size, local = (environment.get(name) for name in names)
            return Who(int(rank or 0), int(size or 1), None if local is None else int(local))
    return _of_tensorflow(json.loads(environment["TF_CONFIG"])) if "TF_CONFIG" in environment else Who(0, 1, None)


def _of_tensorflow(told: Mapping[str, Mapping[str, object]]) -> Who:
    task, order = told["task"], _workers(told)
    return Who(list(order).index((str(task["type"]), int(str(task["index"])))), len(order), None)


def _workers(told: Mapping[str, Mapping[str, object]]) -> dict[tuple[str, int], str]:
    """Return where TensorFlow's workers listen, in the order of the ranks: {("worker", 0): "10.0.0.4:2222"}."""
    found: dict[tuple[str, int], str] = {}
    for kind in ("chief", "worker"):
        addresses: Any = told["cluster"].get(kind) or ()
        found |= {(kind, at): str(where) for at, where in enumerate(addresses)}
    return found


def seats(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the words for each rank's own address and port, which Azure ML tells for TensorFlow alone."""
    told = json.loads(environment.get("TF_CONFIG") or '{"cluster": {}}')
    places = [where.rpartition(":") for where in _workers(told).values()]
    addresses = {f"@rank-{rank}-address@": place[0] for rank, place in enumerate(places)}
    return addresses | {f"@rank-{rank}-port-0@": place[2] for rank, place in enumerate(places)}


class Spot(Place):
    """What this process knows before its rank starts."""

    def __init__(self, folder: Path, one: Who) -> None:
        super().__init__(folder)
        if one.world_size != (1 if self.leads_alone else self.plan["ranks"]):
            raise ValueError(f"Azure ML started {one.world_size} processes, but the job has {self.plan['ranks']} ranks")
        self.plan["python"] = sys.executable
        self.one = one
        self.node = os.uname().nodename
        self.words = seats(os.environ) | {"@cores@": str(max(1, (os.cpu_count() or 1) // self.plan["per_node"]))}

    @property
    def leads_alone(self) -> bool:
        """Whether Azure ML starts this process alone: with Ray the other nodes lend their machines to its head."""
        return bool(self.plan["started_as"] == "ray")

    def meet(self, services: Services, stopped: Stopping) -> None:
        """Find out where the ranks meet, when this job's have to. Raises NoMeeting."""
        if not self.plan["meets"]:
            return
        address, port = self._of_node_0()
        nonce = self.plan["common"]["DISTDL_NONCE"]
        if self.one.rank != 0:
            self.learn(gathering.join(address, port, nonce, stopped))
            return
        host = gathering.Host(port, nonce, self.one.world_size - 1)
        try:
            found = self._found(address)
            self.learn(found)
            services.start()
        except NoMeeting as error:
            host.refuse(str(error))
            raise
        host.tell(found)

    def _of_node_0(self) -> tuple[str, int]:
        """Return node 0's address and the port on which rank 0 tells the others where they meet.

        Batch keeps the port of AZ_BATCH_MASTER_NODE for itself; MASTER_PORT is the job's.
        """
        master = os.environ.get("MASTER_ADDR") or os.environ.get("AZ_BATCH_MASTER_NODE", "").rpartition(":")[0]
        return master or "127.0.0.1", int(os.environ.get("MASTER_PORT") or self.plan["port"])

    def _found(self, address: str) -> Meeting:
        try:
            own = socket.gethostbyname(address)
            ports = self._ports.reserve(self.plan["ports"], own)
        except OSError as error:
            raise NoMeeting(f"{self.node} cannot offer a meeting at {address}: {error}.") from error
        return Meeting(own, meeting.network_of(own), tuple(ports))

    def variables(self, own: dict[str, str]) -> dict[str, str]:
        """Return the environment of the rank; ``own`` holds the folders of its data."""
        found: dict[str, str] = self.common() | self.of_rank(self.one.rank) | own | {"DISTDL_JOB_DIR": str(self.folder)}
        if self.one.local_rank is not None:
            found |= dict.fromkeys(("DISTDL_LOCAL_RANK", "LOCAL_RANK"), str(self.one.local_rank))
        return found


class Stopping:
    """Hears SIGTERM and SIGINT; a rank then gets INT, later TERM, then KILL."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
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


class Rank:
    """The worker and its two pipes."""

    def __init__(self, mixer: Mixer) -> None:
        self._mixer = mixer
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
                write(self._mixer.said(key.data, content)) if content else self._streams.unregister(key.fileobj)
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
        spot = Spot(folder, one)
    except (ValueError, KeyError, OSError) as error:
        sys.stderr.write(f"This rank cannot start: {error}.\n")
        return 64
    mixer = Mixer(spot.plan["common"]["DISTDL_NONCE"], one.rank)
    write(mixer.head)
    code, told = _life(spot, mixer, given)
    if given.outputs:
        keep(folder / "outputs", Path(given.outputs))
    write(mixer.end(json.dumps(told)))
    for rank in range(1, spot.plan["ranks"] if spot.leads_alone else 0):
        write(Mixer(spot.plan["common"]["DISTDL_NONCE"], rank).head + mixer.end(json.dumps({**told, **_ENDED_WELL})))
    return code


def speak_for_others(spot: Spot, back: bytes) -> None:
    """Let a worker greet for each rank that only lends its node; ``back`` gives the word to this process's own rank.

    No process of ours runs on those nodes. Raises OSError.
    """
    for rank in range(1, spot.plan["ranks"]):
        lent = spot.common() | spot.of_rank(rank) | {"DISTDL_JOB_DIR": str(spot.folder), "DISTDL_RAY": "elsewhere"}
        said = subprocess.run(spot.worker(), stdin=subprocess.DEVNULL, capture_output=True, env=lent, check=False)
        write(Mixer(spot.plan["common"]["DISTDL_NONCE"], rank).head + said.stdout)
    write(back)


def _life(spot: Spot, mixer: Mixer, given: argparse.Namespace) -> tuple[int, dict[str, object]]:
    """Return the exit code and what is told of the rank's end."""
    stopping, services = Stopping(spot.plan["grace"]), Services(spot)
    _prepare(spot.folder)
    before = memory.counters()
    data = dict(one.split("=", 1) for one in given.data)
    try:
        spot.meet(services, stopping)
        environment = spot.variables({spot.plan["data"][name]: where for name, where in data.items()})
        if spot.leads_alone:
            environment |= {"RAY_ADDRESS": "auto", "DISTDL_RAY": "platform"}
            speak_for_others(spot, mixer.head)
        returncode = Rank(mixer).run(spot.worker(), environment, stopping)
    except (NoMeeting, OSError) as error:
        return 1, {"code": 1, "signal": None, "evidence": str(error), "node": spot.node}
    finally:
        services.close()
    name = processes.signal_name(-returncode) if returncode < 0 else None
    evidence = memory.evidence(before) if name == "KILL" and not stopping() else ""
    end: dict[str, object] = {
        "code": returncode if name is None else None,
        "signal": name,
        "evidence": evidence,
        "node": spot.node,
    }
    return returncode if name is None else 128 - returncode, end


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m distdl_jupyter.host.azureml", description=__doc__)
    parser.add_argument("--data", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--outputs", default="", metavar="FOLDER")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
