"""Where processes of an elastic job meet: Horovod's rendezvous server, with a secret in its address.

Horovod asks for ``http://ADDRESS:PORT/scope/key`` and knows no password. What stands behind the address is part of what
the program tells its processes, so it holds a secret of the job's own: ``127.0.0.1:29500/SECRET``. Who does not know it
is turned away. The server listens on the job's address only.
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

from distdl_jupyter.backends.doorkeeper import Doorkeeper, prefix

#: Horovod's scopes: a process asks for its numbers, and tells where it hears of new hosts (horovod/runner/elastic).
_NUMBERS, _LISTENERS = "rank_and_size", "worker_addresses"

#: Where a process hears of new hosts: {interface: [(address, port)]}, and the key that its messages carry.
Listener = tuple[dict[str, list[tuple[str, int]]], bytes]


class _Plain(pickle.Unpickler):
    """Opens plain data only: what arrives here is no reason to run anything."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Refuse every class and function."""
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")


def listener(value: bytes) -> Listener | None:
    """Return what a process told of where it listens, None for anything else."""
    try:
        addresses, key = _Plain(io.BytesIO(b64decode(value))).load()
        found = {str(name): [(str(host), int(port)) for host, port in some] for name, some in addresses.items()}
    except Exception:  # noqa: BLE001  a pickle can raise anything
        return None
    return (found, key) if isinstance(key, bytes) else None


class Meeting:
    """The server. ``ask`` gives a process its numbers, and may take as long as it likes to."""

    def __init__(self, address: str, port: int, ask: Callable[[str], bytes]) -> None:
        self._secret = secrets.token_hex(16)
        own = {"prefix": prefix(self._secret, port), "meeting": self}
        self._server = RendezvousHTTPServer((address, port), type("Handler", (_Handler,), own), 0)
        self._server.daemon_threads = True
        self.ask = ask
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
        """Serve nobody any more."""
        self._server.shutdown()
        self._server.server_close()

    def clear(self) -> None:
        """Forget what processes have told each other: they are about to meet anew."""
        self._server.init([])

    def tell_of_hosts(self, key: str) -> None:
        """Let the process at a seat know, without waiting, that others are to join or to leave.

        It hears of it at its next ``commit``. Horovod skips the exchange of state when hosts only go; that is never
        said here, because somebody may come meanwhile.
        """
        found = self.listeners.get(key)
        if found is not None:
            threading.Thread(target=_notify, args=found, daemon=True).start()


def _notify(addresses: dict[str, list[tuple[str, int]]], key: bytes) -> None:
    from horovod.runner.elastic.worker import HostUpdateResult, WorkerNotificationClient

    try:
        WorkerNotificationClient(addresses, key, 0).notify_hosts_updated(int(time.time()), HostUpdateResult.mixed)
    except Exception:  # noqa: BLE001  it is told again as long as nobody asks
        return


class _Handler(Doorkeeper):
    """Answers those who know the secret."""

    #: Whom to ask; set for each server.
    meeting: Meeting

    def do_DELETE(self) -> None:  # noqa: N802
        """What was told is forgotten when all meet again."""
        if self._let_in():
            self.send_status_code(200)

    def _get_value(self, scope: str, key: str) -> bytes | None:
        if scope == _NUMBERS:
            return self.meeting.ask(key)
        if scope == _LISTENERS:
            return None
        found: bytes | None = super()._get_value(scope, key)
        return found

    def _put_value(self, scope: str, key: str, value: bytes) -> None:
        if scope != _LISTENERS:
            super()._put_value(scope, key, value)
        elif (told := listener(value)) is not None:
            self.meeting.listeners[key] = told
