"""A network of emulated nodes on this machine, whose links have a rate and a latency: for trying out a slower one.

* ``Rehearsal`` starts this module as a program: ``python -m distdl_jupyter.clusters.rehearsal NODES RATE LATENCY``.
  It makes a network namespace for each node (network_namespaces(7)), where ``link0`` leads to a bridge in one more.
* What a node sends is held to the rate (tc-tbf(8)); what reaches it is late by the latency (tc-netem(8)).
* A node's link is one queue. Its packets of TCP segmentation are therefore no longer than a millisecond of it, as TCP
  itself cuts them for an interface of that rate (tcp_tso_autosize in net/ipv4/tcp_output.c), so that the short messages
  with which ranks agree do not wait behind 64 KiB of a gradient. TCP is CUBIC (RFC 9438), which Linux comes with,
  whatever this machine prefers.
* The namespaces have no names: they live as long as the program, which ends with its standard input, and the processes
  inside. So nothing is left of them, also when the supervisor was killed. No packet leaves them.
* Root makes them directly, everybody else in a user namespace.
* Ranks enter theirs by themselves (``worker.network``), however they were started.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.link import Link, rate
from distdl_jupyter.worker import network

#: What the nodes' interfaces are called.
INTERFACE = "link0"
#: Bytes that a node may send at once: at least the largest packet of TCP segmentation, and those of so many seconds.
_LEAST_BURST, _BURST_SECONDS = 64 * 1024, 0.002
#: Bytes of a packet of TCP segmentation: those of so many seconds, within these limits.
_PACKET_SECONDS, _LEAST_PACKET, _MOST_PACKET = 0.001, 4 * 1024, 64 * 1024
#: Bytes that wait in a node for its link, and packets that are on their way.
_QUEUE, _ON_THE_WAY = 16 * 2**20, 1_000_000
#: From this rate on (bits a second) it is measured what this machine reaches, for so many seconds.
_MEASURED_FROM, _MEASURING = 500e6, 0.3
_MOST_NODES = 200
_NETWORK = "10.203.0"
_TIMEOUT = 60.0
_REMEDY = "Remove rehearse; the nodes on this machine then use its loopback interface."


def address(node: int) -> str:
    """Return the address of a node in its network."""
    return f"{_NETWORK}.{node + 1}"


def host_name(node: int) -> str:
    """Return what a node is called."""
    return f"node-{node}"


def check(nodes: int) -> None:
    """Raise InvalidSpec when this machine cannot have so many nodes with links of their own."""
    if nodes < 2:
        raise InvalidSpec(
            "A rehearsal needs at least 2 nodes, but the job has one.",
            code="rehearse-one-node",
            field="rehearse",
            hint="Set node_count=2 or more, or remove rehearse.",
        )
    if nodes > _MOST_NODES:
        raise InvalidSpec(
            f"A rehearsal can have at most {_MOST_NODES} nodes.",
            code="rehearse-too-many-nodes",
            field="node_count",
            hint=f"Set node_count to at most {_MOST_NODES}.",
        )
    if sys.platform != "linux":
        raise InvalidSpec(
            "A rehearsal needs Linux, because each node gets its own network namespace.",
            code="rehearse-needs-linux",
            field="rehearse",
            hint=_REMEDY,
        )
    if _tool("ip") is None or _tool("tc") is None:
        raise InvalidSpec(
            "A rehearsal needs the programs ip and tc.",
            code="rehearse-programs-missing",
            field="rehearse",
            hint="Install them: apt-get install iproute2",
        )


@functools.cache
def _tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


class Rehearsal:
    """The network of one job. Raises LaunchFailed where this machine gives none, or not of this link."""

    def __init__(self, nodes: int, link: Link) -> None:
        words = [str(nodes), repr(link.bits_per_second), repr(link.latency_seconds)]
        # In the supervisor's session and without the job's mark: it is none of the job's processes.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DISTDL_")}
        self._program = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=environment, cwd="/",
        )  # fmt: skip
        assert self._program.stdout is not None
        said = self._program.stdout.readline()
        try:
            found = json.loads(said)
        except ValueError:
            self.close()
            raise LaunchFailed(
                "The network of the rehearsal could not be created.", code="rehearse-network-failed", hint=_REMEDY
            ) from None
        if "failed" in found:
            self.close()
            raise LaunchFailed(found["failed"], code=found["code"], hint=found["hint"])
        self._user, self._nodes = found["user"], found["nodes"]

    def write_hosts(self, folder: Path) -> None:
        """Write the names of the nodes into a private folder that stays as long as their processes."""
        self._hosts = folder / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{address(at)} {host_name(at)}" for at in range(len(self._nodes)))]
        self._hosts.write_text("\n".join(lines) + "\n", encoding="ascii")

    def variables(self, node: int) -> dict[str, str]:
        """Return the variable by which a process enters the network of a node."""
        folder = f"/proc/{self._program.pid}/fd"
        user = "" if self._user is None else f"{folder}/{self._user}"
        return {network.VARIABLE: f"{user}:{folder}/{self._nodes[node]}:{host_name(node)}:{self._hosts}"}

    def close(self) -> None:
        """End it; the network goes with the last process in it."""
        for pipe in (self._program.stdin, self._program.stdout):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._program.wait(_TIMEOUT)


# the program ------------------------------------------------------------------------------------


class _Refused(Exception):
    """The sentence and its remedy."""


class _Network:
    """What the program makes and holds."""

    def __init__(self, count: int, link: Link) -> None:
        self._link = link
        self.user = _enter_new()
        self._switch = _opened("net")
        self.nodes = []
        for _ in range(count):
            network.unshare(network.NEWNET)
            self.nodes.append(_opened("net"))
        self._connect()
        self._measure()
        self._limit()

    def _connect(self) -> None:
        network.setns(self._switch, network.NEWNET)
        lines = ["link add br0 type bridge", "link set br0 up"]
        for at, node in enumerate(self.nodes):
            space = f"/proc/{os.getpid()}/fd/{node}"
            lines += [
                f"link add to{at} type veth peer name {INTERFACE} netns {space}",
                f"link set to{at} master br0 up",
            ]
        _run("ip", lines)
        packet = min(_MOST_PACKET, max(_LEAST_PACKET, int(self._link.bits_per_second / 8 * _PACKET_SECONDS)))
        for at, node in enumerate(self.nodes):
            network.setns(node, network.NEWNET)
            _run("ip", ["link set lo up", f"link set {INTERFACE} addrgenmode none",
                        f"link set {INTERFACE} gso_max_size {packet}",
                        f"addr add {address(at)}/24 dev {INTERFACE}", f"link set {INTERFACE} up",
                        *_cubic(at)])  # fmt: skip

    def _measure(self) -> None:
        """Raise _Refused for a rate that this machine does not reach itself."""
        wanted = self._link.bits_per_second
        if wanted >= _MEASURED_FROM and (reached := _reached(*self.nodes[:2])) < wanted:
            raise _Refused(
                f"This machine's own network reaches only {rate(reached)} now, so {rate(wanted)} cannot be rehearsed.",
                "Rehearse a lower rate, or try again when fewer programs run on this machine.",
            )

    def _limit(self) -> None:
        bits, delay = self._link.bits_per_second, self._link.latency_seconds
        burst = max(_LEAST_BURST, int(bits / 8 * _BURST_SECONDS))
        for node in self.nodes:
            network.setns(node, network.NEWNET)
            _run("tc", [f"qdisc add dev {INTERFACE} root tbf rate {bits:.0f}bit burst {burst} limit {burst + _QUEUE}"])
        network.setns(self._switch, network.NEWNET)
        if delay:
            late = f"root netem delay {1e6 * delay:.0f}us limit {_ON_THE_WAY}"
            try:
                _run("tc", [f"qdisc add dev to{at} {late}" for at in range(len(self.nodes))])
            except OSError as error:
                raise _Refused(
                    f"The kernel of this machine cannot delay packets: {error}.",
                    "Load the module sch_netem (in linux-modules-extra-... or kernel-modules-extra), or remove the "
                    "latency.",
                ) from error


def _cubic(node: int) -> list[str]:
    """Return the line of ip that gives a node's connections CUBIC, none where the kernel has no such thing."""
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").split()
    route = f"route change {_NETWORK}.0/24 dev {INTERFACE} src {address(node)} congctl cubic"
    return [route] if "cubic" in available else []


def _enter_new() -> int | None:
    """Enter a new network namespace; return the user namespace where that took one. Raises OSError."""
    user, group = os.getuid(), os.getgid()
    try:
        network.unshare(network.NEWNET)
    except OSError:
        network.unshare(network.NEWUSER | network.NEWNET)
        network.be(0, 0, (user, group))
        return _opened("user")
    return None


def _opened(kind: str) -> int:
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def _run(tool: str, lines: list[str]) -> None:
    """Run lines of ip or tc. Raises OSError with what it said."""
    program = _tool(tool)
    assert program is not None, "it was looked for before"
    done = subprocess.run([program, "-batch", "-"], input="\n".join(lines) + "\n", text=True, capture_output=True,
                          check=False)  # fmt: skip
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise OSError(said[0].removeprefix("Error: ").rstrip(".") if said else f"{tool} ended with {done.returncode}")


def _reached(first: int, second: int) -> float:
    """Return how many bits a second go from one network namespace to another now."""
    network.setns(first, network.NEWNET)
    server = socket.create_server((address(0), 0))
    network.setns(second, network.NEWNET)
    client = socket.create_connection(server.getsockname(), _TIMEOUT)
    served, _ = server.accept()
    until = time.monotonic() + _MEASURING

    def send() -> None:
        piece = bytes(2**20)
        while time.monotonic() < until:
            client.sendall(piece)
        client.close()

    with server, served:
        sender = threading.Thread(target=send)
        sender.start()
        begin, received = time.monotonic(), 0
        buffer = bytearray(2**20)
        while count := served.recv_into(buffer):
            received += count
        spent = time.monotonic() - begin
        sender.join()
    return 8 * received / spent


def main(nodes: str, bits: str, latency: str) -> None:
    """Make the network, say its descriptors as JSON, and hold them until the standard input ends."""
    said: dict[str, Any]
    try:
        made = _Network(int(nodes), Link(float(bits), float(latency)))
        said = {"user": made.user, "nodes": made.nodes}
    except _Refused as refused:
        said = {"failed": refused.args[0], "hint": refused.args[1], "code": "rehearse-link-failed"}
    except OSError as error:
        said = {
            "failed": f"Cannot create network namespaces on this machine: {error.strerror or error}.",
            "hint": "Namespaces need root, or user namespaces (sysctl user.max_user_namespaces, "
            f"kernel.apparmor_restrict_unprivileged_userns). {_REMEDY}",
            "code": "rehearse-namespaces-denied",
        }
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    os.read(0, 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
