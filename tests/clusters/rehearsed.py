"""A program: two nodes with a link, between which bytes are sent; prints what came of it as JSON.

``python -m tests.clusters.rehearsed RATE LATENCY BYTES`` needs no job: it shows what the network itself gives.
"""

import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

from distdl_jupyter.clusters.rehearsal import Rehearsal, address
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.link import Link
from distdl_jupyter.worker import network


def main(rate, latency, count):
    try:
        made = Rehearsal(2, Link(float(rate), float(latency)))
    except LaunchFailed as failed:
        return {"failed": str(failed), "hint": failed.hint}
    with tempfile.TemporaryDirectory() as folder:
        made.write_hosts(Path(folder))
        if not os.fork():
            _on(made, 1)
            with _connected() as client:
                client.sendall(bytes(int(count)))
            os._exit(0)
        read, write = os.pipe()
        if not os.fork():
            _on(made, 0)
            os.write(write, json.dumps(_received()).encode())
            os._exit(0)
        said = json.loads(os.read(read, 4096))
        os.wait()
        os.wait()
    made.close()
    return said | {"outside": os.uname().nodename}


def _on(made, node):
    environment = dict(os.environ, **made.variables(node))
    network.enter(environment)
    assert network.VARIABLE not in environment


def _connected():
    until = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("node-0", 5000), 20)  # its name is known
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.02)


def _received():
    with socket.create_server((address(0), 5000)) as server:
        connection, peer = server.accept()
        received, begin = len(connection.recv(1)), time.perf_counter()
        while piece := connection.recv(2**20):
            received += len(piece)
        seconds = time.perf_counter() - begin
    interfaces = sorted(name for _, name in socket.if_nameindex())
    return {"received": received, "seconds": seconds, "peer": peer[0], "host": os.uname().nodename,
            "interfaces": interfaces, "user": os.getuid(), "group": os.getgid()}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
