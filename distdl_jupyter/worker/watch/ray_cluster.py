"""One Ray cluster of a job's nodes: rank 0 starts the head, the others join it and lend their machine.

The nodes meet at a socket of rank 0: it tells them when the head is up, they tell when they are in, and when it closes
the job's code has ended. A node is ``ray start`` as a child, in a short folder of its own; everything that it starts is
gone when this rank goes on, and its folder with it. Nothing of Ray is imported
(https://docs.ray.io/en/latest/cluster/cli.html, "ray start").
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from distdl_jupyter.worker import channel, owned
from distdl_jupyter.worker.identity import identify
from distdl_jupyter.worker.watch.hooks import guarded

#: Seconds in which all nodes must be in: the last one may be the last that a scheduler gets ready.
JOIN_TIMEOUT = 300.0
_STEP = 0.5
#: Seconds in which what tasks have printed last comes to the driver, which shows it.
_LAST_WORDS = 1.0
#: Ray's sockets lie below it, and a socket's path has 107 bytes at most; TMPDIR may be longer than that.
_ROOT, _PREFIX = Path("/tmp"), "distdl-ray-"  # noqa: S108  a folder of the user's own, see _own_folder
#: What ``ray start`` says when everything that it starts is up.
_UP = "Ray runtime started."
#: Seconds for that, and how often it is tried: Ray gives its own parts 15 s, which are not enough on a busy machine.
_START_TIMEOUT, _TRIALS = 120.0, 3
#: Seconds in which a folder may be made and not be locked yet.
_YOUNG = 60.0
#: Seconds for an orderly end.
_GRACE = 10.0
#: Variables of this rank that mean nothing in a task of Ray, where training libraries set their own.
_OF_THIS_RANK = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK",
                           "OMP_NUM_THREADS", "DISTDL_RAY", "RAY_ADDRESS"))  # fmt: skip
#: ``jsonschema`` imports it if it is there, as in every environment with Jupyter. It takes seconds of computing in each
#: of Ray's processes, for a check of IRIs that Ray does not make.
_LEFT_OUT = "rfc3987_syntax"


#: The first release that asks everybody who connects for a token (its release notes, "Token authentication").
_FIRST = (2, 52)


def asks_for_token(version: str) -> bool:
    """Say whether this release of Ray lets in only who knows the token."""
    return tuple(int(word) for word in version.split(".")[:2] if word.isdigit()) >= _FIRST


@dataclass(frozen=True, slots=True)
class Node:
    """What this rank was told: where the head is, and what is its own."""

    rank: int
    world_size: int
    nonce: str
    address: str
    ports: tuple[int, ...]
    own_address: str
    own_ports: tuple[int, ...]
    cpus: int
    #: Whether another node of the job is on this machine, whose folder is this one's too.
    shares_machine: bool

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Node:
        """Return it from the variable's JSON."""
        identity = identify(os.environ)
        return cls(identity.rank, int(os.environ["DISTDL_WORLD_SIZE"]), identity.nonce, str(fields["address"]),
                   tuple(map(int, fields["ports"])), str(fields["own_address"]), tuple(map(int, fields["own_ports"])),
                   int(fields["cpus"]), bool(fields["shares_machine"]))  # fmt: skip

    @property
    def hello(self) -> bytes:
        """The line with which a node begins; who does not know the job's nonce is not heard."""
        return f"{self.nonce}\n".encode()


@contextlib.contextmanager
def in_cluster(variable: str) -> Iterator[bool]:
    """Be part of the job's Ray cluster and yield whether this rank only lends and has no code to run.

    ``variable`` is the backend's variable. Raises RayNotStarted, ConnectionError.
    """
    with (_lead if os.environ["DISTDL_RANK"] == "0" else _lend)(Node.of(json.loads(variable))):
        yield os.environ["DISTDL_RANK"] != "0"


@contextlib.contextmanager
def _lead(node: Node) -> Iterator[None]:
    """Run the head while the code runs."""
    _settings(node)
    _report("rendezvous")
    with contextlib.ExitStack() as stack:
        # The other nodes hear of the end, whatever happens here, when these are closed.
        listener = stack.enter_context(socket.create_server((node.address, node.ports[2]), backlog=node.world_size))
        ray = stack.enter_context(RayNode(node.own_address, node.cpus, node.own_ports))
        ray.start("--head", f"--port={node.ports[0]}", f"--ray-client-server-port={node.ports[1]}", "--no-monitor",
                  "--include-dashboard=false", f"--temp-dir={ray.folder}")  # fmt: skip
        for connection in _joined(listener, node):
            stack.enter_context(connection)
        _report_ready(node.world_size)
        try:
            yield
        finally:
            guarded("at the end", _leave)


def _joined(listener: socket.socket, node: Node) -> list[socket.socket]:
    """Return the connections of all other nodes, each of which is in. Raises ConnectionError."""
    until = time.monotonic() + JOIN_TIMEOUT
    found: list[socket.socket] = []
    listener.settimeout(_STEP)
    while len(found) < node.world_size - 1:
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            connection.settimeout(JOIN_TIMEOUT)
            if _line(connection) == node.hello:
                connection.sendall(b"up\n")
                found.append(connection)
            else:
                connection.close()
        _check_time(until, "Not all nodes have joined Ray")
    for connection in found:
        if _line(connection) != b"in\n":
            raise ConnectionError("A node left while the nodes joined Ray. See its log lines for the cause.")
    return found


@contextlib.contextmanager
def _lend(node: Node) -> Iterator[None]:
    """Lend this machine until rank 0 has ended."""
    _settings(node)
    _report("rendezvous")
    with _at_rank_0(node) as connection, RayNode(node.own_address, node.cpus, node.own_ports) as ray:
        # One reader of the tasks' output on a machine; two would show every line twice.
        reader = ("--include-log-monitor=false",) if node.shares_machine else ()
        ray.start(f"--address={node.address}:{node.ports[0]}", *reader)
        connection.sendall(b"in\n")
        _report_ready(node.world_size)
        connection.settimeout(_STEP)
        while not _closed(connection):
            ray.check()
        yield


def _at_rank_0(node: Node) -> socket.socket:
    """Return a connection to rank 0, whose head is up. Raises ConnectionError."""
    until = time.monotonic() + JOIN_TIMEOUT
    while True:
        with contextlib.suppress(OSError):
            connection = socket.create_connection((node.address, node.ports[2]), timeout=JOIN_TIMEOUT)
            connection.sendall(node.hello)
            if _line(connection) == b"up\n":
                return connection
            connection.close()
        _check_time(until, f"Rank 0 has not started Ray at {node.address}")
        time.sleep(_STEP)


def _check_time(until: float, what: str) -> None:
    if time.monotonic() > until:
        raise ConnectionError(f"{what} within {JOIN_TIMEOUT:g} s.")


def _line(connection: socket.socket) -> bytes:
    """Return a short line, what came of it when the other side hung up."""
    said = b""
    with contextlib.suppress(OSError):
        while not said.endswith(b"\n") and len(said) < 100 and (came := connection.recv(1)):
            said += came
    return said


def _closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def _settings(node: Node) -> None:
    """Let ``ray.init()`` find this cluster, here and in what Ray starts, and let nobody else into it.

    Ray listens on all interfaces; it does so on the loopback alone where it may not be a cluster of several nodes.
    """
    # The nonce is known to the job's ranks alone, and who sees the token does not know the nonce.
    token = hashlib.sha256(f"ray {node.nonce}".encode()).hexdigest()
    os.environ |= {
        "RAY_ADDRESS": f"{node.address}:{node.ports[0]}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1" if node.world_size > 1 else "0",
    }


def _leave() -> None:
    """Disconnect the driver, if the code has not."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        time.sleep(_LAST_WORDS)
        ray.shutdown()


def _report_ready(size: int) -> None:
    _report("ready", backend="ray", size=size)


def _report(type_: str, **fields: Any) -> None:
    out = channel.current()
    if out is not None:
        out.send(type_, **fields)


class RayNotStarted(RuntimeError):
    """Ray did not start on this node, or has ended by itself."""


class RayNode:
    """A context in which a node can be started; at its end nothing of it is left."""

    def __init__(self, address: str, cpus: int, ports: Sequence[int]) -> None:
        self._common = (
            f"--node-ip-address={address}", f"--num-cpus={cpus}", f"--dashboard-agent-listen-port={ports[0]}",
            f"--dashboard-agent-grpc-port={ports[1]}", f"--runtime-env-agent-port={ports[2]}",
            f"--metrics-export-port={ports[3]}", "--disable-usage-stats", "--block",
        )  # fmt: skip
        self.folder = _ROOT / (_PREFIX + hashlib.sha256(os.environ["DISTDL_JOB_ID"].encode()).hexdigest()[:8])
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = -1

    def __enter__(self) -> RayNode:
        _remove_abandoned()
        self._lock = _own_folder(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        os.close(self._lock)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, *arguments: str) -> None:
        """Start the node, and return when it is up. Raises RayNotStarted."""
        if not asks_for_token(version := metadata.version("ray")):
            raise RayNotStarted(f"Ray {version} on {os.uname().nodename} has no authentication. Install 2.52 or later.")
        for trial in range(_TRIALS):
            log = self.folder / f"start-{os.getpid()}-{trial}.log"
            self._begin(log, arguments)
            if self._came_up(log):
                return
            self._stop()
        raise RayNotStarted(f"Ray did not start on {os.uname().nodename}. Its last output:\n{_tail(log)}")

    def _begin(self, log: Path, arguments: Sequence[str]) -> None:
        with open(log, "wb", opener=owned.private) as file:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", *arguments, *self._common],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=self._environment(), start_new_session=True,
            )  # fmt: skip

    def _environment(self) -> dict[str, str]:
        left_out = self.folder / "left-out"
        left_out.mkdir(exist_ok=True)
        (left_out / f"{_LEFT_OUT}.py").write_text("raise ImportError('left out')\n", encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if name not in _OF_THIS_RANK}
        path = os.pathsep.join(filter(None, (str(left_out), kept.get("PYTHONPATH"))))
        # Ray would wait for running tasks, but at the end of a job nobody wants their results any more.
        # Nobody reads its events and metrics here, and its servers complain in the log when they cannot send them.
        own = {
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
            "RAY_enable_ray_event": "0",
            "RAY_enable_open_telemetry": "0",
        }
        return kept | own | {"PYTHONPATH": path}

    def _came_up(self, log: Path) -> bool:
        until = time.monotonic() + _START_TIMEOUT
        while self._process is not None and self._process.poll() is None and time.monotonic() < until:
            if _UP in log.read_text(encoding="utf-8", errors="replace"):
                return True
            time.sleep(0.1)
        return False

    def check(self) -> None:
        """Raise RayNotStarted when the node has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise RayNotStarted(f"Ray on {os.uname().nodename} ended with code {self._process.returncode}.")

    def _stop(self) -> None:
        """End everything that this node has started; its processes share a session."""
        if self._process is None:
            return
        session = self._process.pid
        for name in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(name)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_GRACE)
        _end_session(session)
        self._process = None


def _end_session(session: int) -> None:
    """Kill what is left of a session, and wait until it is gone."""
    until = time.monotonic() + _GRACE
    while (left := list(_members(session))) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _members(session: int) -> Iterator[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True, check=False).stdout
    for pid in map(int, listed.split()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == session and not _is_dead(pid):
                yield pid


def _is_dead(pid: int) -> bool:
    """Say whether a process has ended and only its parent has not noticed (Linux; elsewhere it is not known)."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    return False


def _own_folder(folder: Path) -> int:
    """Make a folder that nobody else can read and return a descriptor that says it is in use. Raises OSError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if os.fstat(descriptor).st_uid != os.getuid():
        os.close(descriptor)
        raise PermissionError(f"{folder} belongs to another user. Remove it, or ask its owner to.")
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _remove_abandoned() -> None:
    """Remove folders of nodes that were killed."""
    for folder in _ROOT.glob(f"{_PREFIX}{'[0-9a-f]' * 8}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                seen = os.fstat(descriptor)
                if seen.st_uid == os.getuid() and time.time() - seen.st_mtime > _YOUNG:
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])
    return ""
