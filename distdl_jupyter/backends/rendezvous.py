"""A program: Horovod's own rendezvous server for one job, on one address and port.

``python -m distdl_jupyter.backends.rendezvous ADDRESS PORT NODES PER_NODE`` serves until its standard input ends.
Ranks under the Gloo controller find each other here; ``horovodrun`` would run the same server in its own process.
It listens on the job's address only, where Horovod's own start listens on every interface, and answers only those who
know the job's secret.
"""

from __future__ import annotations

import os
import sys
import threading

from distdl_jupyter.worker import learning
from distdl_jupyter.worker.watch import rendezvous_secret

READY = "rendezvous ready"


def host_name(node: int) -> str:
    """Return the name of a logical node, the same for the server and the ranks."""
    return f"node-{node}"


def serve(address: str, port: int, nodes: int, per_node: int) -> None:
    """Serve the rendezvous of ``nodes`` x ``per_node`` ranks until standard input ends."""
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousHTTPServer

    from distdl_jupyter.backends.auth_handler import AuthHandler, prefix

    size = nodes * per_node
    own = {"prefix": prefix(rendezvous_secret.of(os.environ.get("DISTDL_NONCE", "")), port)}
    server = RendezvousHTTPServer((address, port), type("Handler", (AuthHandler,), own), 0)
    server.daemon_threads = True
    server.init(
        [
            SlotInfo(host_name(rank // per_node), rank, rank % per_node, rank // per_node, size, per_node, nodes)
            for rank in range(size)
        ]
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(READY + "\n")
    sys.stdout.flush()
    learning.tell()
    sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1], *map(int, sys.argv[2:5]))
