"""Where processes of an elastic job meet: Horovod's rendezvous server, with a secret in its address.

Horovod asks for ``http://ADDRESS:PORT/scope/key`` and knows no password. What stands behind the address is part of what
the driver gives to its processes, so it holds a secret of the job's own: ``127.0.0.1:29500/SECRET``. Requests without
it are refused. The server listens on the job's address only.
"""

from __future__ import annotations

import io
import pickle
import secrets
import threading
import time
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from horovod.runner.http.http_server import RendezvousHTTPServer

from distdl_jupyter.backends.auth_handler import AuthHandler, prefix

#: Horovod's scopes: a process asks for its rank, and reports where it listens for changes of hosts
#: (horovod/runner/elastic/rendezvous.py).
_RANKS, _LISTENERS = "rank_and_size", "worker_addresses"

#: Where a process listens for changes of hosts: {interface: [(address, port)]}, and the key that signs messages to it.
Listener = tuple[dict[str, list[tuple[str, int]]], bytes]


class _PlainUnpickler(pickle.Unpickler):
    """Reads plain data only, because a pickle from the network may run anything."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Refuse every class and function."""
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")


def listener(value: bytes) -> Listener | None:
    """Return where a process says it listens, None for anything else."""
    try:
        addresses, key = _PlainUnpickler(io.BytesIO(b64decode(value))).load()
        found = {str(name): [(str(host), int(port)) for host, port in some] for name, some in addresses.items()}
    except Exception:  # noqa: BLE001  a pickle can raise anything
        return None
    return (found, key) if isinstance(key, bytes) else None


class ElasticRendezvous:
    """The server. ``assignment`` returns what Horovod answers a process in a slot, and may wait for it."""

    def __init__(self, address: str, port: int, assignment: Callable[[str], bytes]) -> None:
        self._secret = secrets.token_hex(16)
        own = {"prefix": prefix(self._secret, port), "rendezvous": self}
        self._server = RendezvousHTTPServer((address, port), type("Handler", (_Handler,), own), 0)
        self._server.daemon_threads = True
        self.assignment = assignment
        self.listeners: dict[str, Listener] = {}
        #: The variables by which processes find the server.
        self.variables = {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{address}:{port}/{self._secret}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        }

    def open(self) -> None:
        """Serve from now on, in threads of its own."""
        threading.Thread(target=self._server.serve_forever, name="rendezvous", daemon=True).start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    def clear(self) -> None:
        """Forget what processes have stored for each other: a new round begins."""
        self._server.init([])

    def notify_hosts_updated(self, key: str) -> None:
        """Notify the process in a slot, without waiting, that others are to join or to leave.

        Its next ``commit`` acts on that. Horovod skips the exchange of state when hosts are only removed; the result is
        always ``mixed`` here, because others may join meanwhile.
        """
        found = self.listeners.get(key)
        if found is not None:
            threading.Thread(target=_notify, args=found, daemon=True).start()


def _notify(addresses: dict[str, list[tuple[str, int]]], key: bytes) -> None:
    from horovod.runner.elastic.worker import HostUpdateResult, WorkerNotificationClient

    try:
        WorkerNotificationClient(addresses, key, 0).notify_hosts_updated(int(time.time()), HostUpdateResult.mixed)
    except Exception:  # noqa: BLE001  it is repeated until a process comes to the rendezvous
        return


class _Handler(AuthHandler):
    """Answers requests that have the secret."""

    #: Set for each server.
    rendezvous: ElasticRendezvous

    def do_DELETE(self) -> None:  # noqa: N802
        """Keep everything: it is cleared when a new round begins."""
        if self._authorized():
            self.send_status_code(200)

    def _get_value(self, scope: str, key: str) -> bytes | None:
        if scope == _RANKS:
            return self.rendezvous.assignment(key)
        if scope == _LISTENERS:
            return None
        found: bytes | None = super()._get_value(scope, key)
        return found

    def _put_value(self, scope: str, key: str, value: bytes) -> None:
        if scope != _LISTENERS:
            super()._put_value(scope, key, value)
        elif (found := listener(value)) is not None:
            self.rendezvous.listeners[key] = found
