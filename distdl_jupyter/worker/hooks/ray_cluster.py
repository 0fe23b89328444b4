"""Starts a Ray cluster on a job's nodes: rank 0 runs the head node, and the other ranks join it with their machines.

Each rank runs ``ray start --block`` as a child process, so the resource usage of Ray's tasks counts for the rank.
Rank 0 listens when the head is up. The other ranks connect to it when they have joined, and leave when their connection
closes. Ray is not imported (https://docs.ray.io/en/latest/cluster/cli.html, "ray start").
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from distdl_jupyter import permissions
from distdl_jupyter.worker import channel
from distdl_jupyter.worker.hooks.imports import call_hook

#: Timeout in seconds for all nodes to join. It is long because a scheduler may start the last node late.
JOIN_SECONDS = 300.0
#: Interval in seconds of attempts to connect and of checks of Ray, and timeout for the first message of a node.
_POLL_SECONDS, _HELLO_SECONDS = 0.5, 10.0
#: Seconds to wait for the last output of tasks to reach the driver, which prints it.
_OUTPUT_SECONDS = 1.0
#: Text that ``ray start`` prints when its processes are up.
_READY_TEXT = "Ray runtime started."
#: Timeout in seconds for this text, and number of attempts: Ray's timeout of 30 s is too short on a busy machine.
_START_SECONDS, _MAX_ATTEMPTS = 120.0, 3
#: Timeout in seconds for Ray to stop on request, and for its remaining processes to be killed.
_STOP_SECONDS, _KILL_SECONDS = 10.0, 5.0
#: Options of ``ray start`` for the ports of a node's agents.
_PORTS = ("dashboard-agent-listen-port", "dashboard-agent-grpc-port", "runtime-env-agent-port", "metrics-export-port")
#: Environment variables of a rank that Ray's tasks must not inherit, because training libraries set them.
_RANK_VARS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "OMP_NUM_THREADS")
#: Environment variables of this cluster that they must not inherit either.
_CLUSTER_VARS = ("DISTDL_RAY", "RAY_ADDRESS")
#: Settings of Ray's processes: do not wait for tasks at the end, and do not collect events and metrics (unused).
_SETTINGS = {
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_enable_ray_event": "0",
    "RAY_enable_open_telemetry": "0",
    "RAY_enable_metrics_collection": "0",
}


def has_authentication(version: str) -> bool:
    """Return whether this release of Ray can reject connections without a token (2.52 and later)."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= (2, 52)


@contextlib.contextmanager
def join_cluster(variable: str) -> Iterator[bool]:
    """Run a node of the cluster in ``DISTDL_RAY`` (JSON). Yield whether this rank only contributes its machine."""
    node, size = json.loads(variable), int(os.environ["DISTDL_WORLD_SIZE"])
    is_head = os.environ["DISTDL_RANK"] == "0"
    # ``ray.init()`` finds this cluster by its address, and other users cannot connect without the token. Ray listens on
    # all interfaces, or only on the loopback interface if clusters of several nodes are disabled.
    os.environ |= {
        "RAY_ADDRESS": f"{node['address']}:{node['ports'][0]}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": _derive("ray"),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1" if size > 1 else "0",
    }
    channel.send("rendezvous")
    # All nodes use the same path, because releases before 2.55 use the head's path everywhere. It is not in TMPDIR,
    # which may be too long for a socket. Agents remove such a folder when its pipe is closed (``node.run_dir``).
    folder = Path("/tmp", f"{Path(os.environ['DISTDL_PIPES']).name[:-8]}{_derive('folder')[:8]}")  # noqa: S108
    folder.mkdir(mode=0o700, exist_ok=True)
    if not permissions.is_own(folder):
        raise PermissionError(f"{folder} belongs to another user. Remove it, or ask its owner to.")
    with contextlib.suppress(FileExistsError):  # another node on this machine has created it
        os.mkfifo(folder / "alive", 0o600)
    pipe = os.open(folder / "alive", os.O_RDWR | os.O_CLOEXEC)
    try:
        with (_run_head if is_head else _run_worker)(node, folder, size):
            yield not is_head
    finally:
        os.close(pipe)
        shutil.rmtree(folder, ignore_errors=True)


def _derive(purpose: str) -> str:
    """Return a secret that only the job's processes can derive, because only they know the job's nonce."""
    return hashlib.sha256(f"{purpose} {os.environ['DISTDL_NONCE']}".encode()).hexdigest()


@contextlib.contextmanager
def _run_head(node: dict[str, Any], folder: Path, size: int) -> Iterator[None]:
    """Start the head, and yield when all nodes have joined."""
    gcs_port, client_port, join_port = node["ports"]
    ports = f"--port={gcs_port}", f"--ray-client-server-port={client_port}"
    options = ("--head", *ports, "--no-monitor", "--include-dashboard=false", f"--temp-dir={folder}")
    with (
        _run_ray(node, folder, *options),
        socket.create_server((node["address"], join_port), backlog=size) as listener,
        contextlib.ExitStack() as nodes,
    ):
        listener.settimeout(JOIN_SECONDS)
        joined_count = 1
        while joined_count < size:
            try:
                connection = nodes.enter_context(listener.accept()[0])
            except TimeoutError:
                raise ConnectionError(f"Not all nodes joined Ray within {JOIN_SECONDS:g} s.") from None
            connection.settimeout(_HELLO_SECONDS)
            has_joined = False
            with contextlib.suppress(OSError), connection.makefile("r", errors="replace") as lines:
                has_joined = lines.readline(100) == f"{_derive('join')}\n"
            joined_count += has_joined
            if not has_joined:
                connection.close()
        channel.send("ready", backend="ray", size=size)
        try:
            yield
        finally:
            call_hook("at the end", _disconnect)


@contextlib.contextmanager
def _run_worker(node: dict[str, Any], folder: Path, size: int) -> Iterator[None]:
    """Join the head and contribute this machine until rank 0 has exited."""
    _connect(node).close()  # succeeds when the head is up
    # If nodes share a machine and its folder, only one reads the output of tasks, so that it is not printed twice.
    options = ("--include-log-monitor=false",) if node["shares_machine"] else ()
    address = f"--address={node['address']}:{node['ports'][0]}"
    with _run_ray(node, folder, address, *options) as process, _connect(node) as connection:
        connection.sendall(f"{_derive('join')}\n".encode())
        channel.send("ready", backend="ray", size=size)
        while not select.select([connection], [], [], _POLL_SECONDS)[0]:  # readable at the end of rank 0
            if process.poll() is not None:
                raise RayStartError(f"Ray on {os.uname().nodename} exited with code {process.returncode}.")
        yield


def _connect(node: dict[str, Any]) -> socket.socket:
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        try:
            return socket.create_connection((node["address"], node["ports"][2]), timeout=_HELLO_SECONDS)
        except OSError as error:
            if time.monotonic() > deadline:
                text = f"Rank 0 did not start Ray at {node['address']} within {JOIN_SECONDS:g} s: {error}."
                raise ConnectionError(text) from error
            time.sleep(_POLL_SECONDS)


def _disconnect() -> None:
    """Disconnect the driver from Ray, if the code has not done so."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        time.sleep(_OUTPUT_SECONDS)
        ray.shutdown()


class RayStartError(RuntimeError):
    """Ray did not start on this node, or exited before the job."""


@contextlib.contextmanager
def _run_ray(node: dict[str, Any], folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start Ray on this machine, and yield its first process when it is up. Raises RayStartError."""
    host = os.uname().nodename
    if not has_authentication(version := metadata.version("ray")):
        raise RayStartError(f"Ray {version} on {host} has no authentication. Install 2.52 or later there.")
    env = {name: value for name, value in os.environ.items() if name not in _RANK_VARS + _CLUSTER_VARS} | _SETTINGS
    ports = (f"--{name}={port}" for name, port in zip(_PORTS, node["own_ports"], strict=True))
    options = (f"--node-ip-address={node['own_address']}", f"--num-cpus={node['cpus']}", *ports, "--block")
    command = (sys.executable, "-P", "-m", "ray.scripts.scripts", "start", *arguments, *options)
    output = ""
    for attempt in range(_MAX_ATTEMPTS):
        log = folder / f"start-{os.getpid()}-{attempt}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env, start_new_session=True
            )
        try:
            deadline = time.monotonic() + _START_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                if _READY_TEXT in log.read_text(encoding="utf-8", errors="replace"):
                    yield process
                    return
                time.sleep(0.1)
        finally:
            _stop_ray(process)
        output = log.read_text(encoding="utf-8", errors="replace")
    raise RayStartError("\n".join((f"Ray did not start on {host}. Its last output:", *output.splitlines()[-8:])))


def _stop_ray(process: subprocess.Popen[bytes]) -> None:
    """Stop Ray and everything in its session, in which Ray may start each worker in a separate process group."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    deadline = time.monotonic() + _KILL_SECONDS
    pids = [process.pid]
    while pids and time.monotonic() < deadline:
        pids.clear()
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _parent, _group, session = file.read_text(errors="replace").rpartition(")")[2].split()[:4]
                if int(session) == process.pid and state != "Z":
                    pids.append(int(file.parent.name))
                    os.kill(pids[-1], signal.SIGKILL)
        time.sleep(0.02)
