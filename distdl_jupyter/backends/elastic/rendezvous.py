"""Where processes of an elastic job meet: a rendezvous server that also gives them their ranks.

Horovod asks for ``http://ADDRESS:PORT/scope/key`` and knows no password. What stands behind the address is part of what
the driver gives to its processes, so it holds a secret of the job's own: ``127.0.0.1:29500/SECRET``. Requests without
it are refused. The server listens on the job's address only.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import pickle
import secrets
import threading
import time
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from distdl_jupyter.backends.rendezvous import Rendezvous

#: Horovod's scopes: a process asks for its rank, and reports where it listens for changes of hosts
#: (horovod/runner/elastic/rendezvous.py).
_RANKS, _LISTENERS = "rank_and_size", "worker_addresses"

#: Where a process listens for changes of hosts: {interface: [(address, port)]}, and the key that signs messages to it.
Listener = tuple[dict[str, list[tuple[str, int]]], bytes]


class _PlainUnpickler(pickle.Unpickler):
    """Reads plain data only, because a pickle from the network may run anything."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Refuse every class and function."""
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")


def listener(value: bytes) -> Listener | None:
    """Return where a process says it listens, None for anything else."""
    try:
        addresses, key = _PlainUnpickler(io.BytesIO(b64decode(value))).load()
        found = {str(name): [(str(host), int(port)) for host, port in some] for name, some in addresses.items()}
    except Exception:  # noqa: BLE001  a pickle can raise anything
        return None
    return (found, key) if isinstance(key, bytes) else None


class ElasticRendezvous(Rendezvous):
    """The server. ``assignment`` returns what Horovod answers a process in a slot, and may wait for it."""

    def __init__(self, address: str, port: int, assignment: Callable[[str], bytes]) -> None:
        secret = secrets.token_hex(16)
        super().__init__(address, port, secret)
        self._loop = asyncio.new_event_loop()
        self._assignment = assignment
        self.listeners: dict[str, Listener] = {}
        #: The variables by which processes find the server.
        self.variables = {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{address}:{port}/{secret}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        }

    def open(self) -> None:
        """Serve from now on, in a thread of its own."""
        self._serving = self._loop.create_task(self.serve())
        threading.Thread(target=self._run, name="rendezvous", daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serving)
        self._loop.close()

    def close(self) -> None:
        """Stop the server."""
        self._loop.call_soon_threadsafe(self._serving.cancel)

    def clear(self) -> None:
        """Forget what processes have stored for each other: a new round begins."""
        self._loop.call_soon_threadsafe(super().clear)

    def get(self, scope: str, key: str) -> asyncio.Future[bytes | None]:
        """Return a value, or the assignment of the process in a slot."""
        if scope != _RANKS:
            return super().get(scope, key)
        future: asyncio.Future[bytes | None] = self._loop.create_future()
        threading.Thread(target=self._assign, args=(key, future), daemon=True).start()
        return future

    def _assign(self, key: str, future: asyncio.Future[bytes | None]) -> None:
        value = self._assignment(key)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(future.set_result, value)

    def put(self, scope: str, key: str, value: bytes) -> None:
        """Keep a value, or where a process listens for changes of hosts."""
        if scope != _LISTENERS:
            super().put(scope, key, value)
        elif (found := listener(value)) is not None:
            self.listeners[key] = found

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
