"""The keeper's socket: who may speak, what is answered, when it ends. One thread for each connection."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import socket
import socketserver
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure.keeper.holder import Holder
from distdl_jupyter.azure.settings import AzureSettings
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.sockets import peer_uid

if TYPE_CHECKING:
    from collections.abc import Callable

#: Ends after so many seconds with nobody signed in, and in which nobody asked while somebody was.
IDLE_SECONDS = 3600.0
UNUSED_SECONDS = 72 * 3600.0
#: A request is a line; a longer one is not ours.
_LONGEST = 65536
_log = logging.getLogger(__name__)


class Service(socketserver.ThreadingUnixStreamServer):
    """Listens at ``path`` for the processes of user ``owner``."""

    daemon_threads = True

    def __init__(self, path: Path, *, owner: int | None = None) -> None:
        self.owner = os.getuid() if owner is None else owner
        self.holder = Holder()
        self.asked = time.monotonic()
        before = os.umask(0o177)
        try:
            super().__init__(str(path), _Connection)
        finally:
            os.umask(before)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Let nobody in but the owner."""
        uid = peer_uid(request)
        if uid != self.owner:
            _log.warning("user %d was sent away", uid)
        return uid == self.owner

    def service_actions(self) -> None:
        """End when nobody has needed it for long; called twice a second."""
        silent = time.monotonic() - self.asked
        if silent > (UNUSED_SECONDS if self.holder.is_signed_in else IDLE_SECONDS) and not self.holder.is_waiting:
            self.end()

    def end(self) -> None:
        """Stop serving: nobody finds the socket any more. ``shutdown`` waits for the loop that calls this."""
        Path(str(self.server_address)).unlink(missing_ok=True)
        threading.Thread(target=self.shutdown, daemon=True).start()

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request; errors are data."""
        self.asked = time.monotonic()
        holder = self.holder
        verbs: dict[str, Callable[[], Any]] = {
            "status": holder.status,
            "sign_in": lambda: holder.sign_in(asked["kind"], AzureSettings(**asked["settings"])),
            "resume": lambda: holder.resume(asked["kind"], AzureSettings(**asked["settings"])),
            "cancel": holder.cancel,
            "sign_out": holder.sign_out,
            "token": lambda: holder.token(asked["scopes"], asked.get("options") or {}),
        }
        try:
            said = verbs[asked["do"]]()
        except DistDLError as error:
            return {"error": {"message": error.message, "hint": error.hint}}
        except (KeyError, TypeError) as error:
            return {"error": {"message": f"The keeper does not understand this request ({type(error).__name__}).",
                              "hint": "Sign out and in again after an update of distdl_jupyter."}}  # fmt: skip
        return said if isinstance(said, dict) else {**dataclasses.asdict(said), "settings": holder.settings()}


class _Connection(socketserver.StreamRequestHandler):
    server: Service

    def handle(self) -> None:
        while line := self.rfile.readline(_LONGEST):
            try:
                asked = json.loads(line)
            except ValueError:
                return
            self.wfile.write(json.dumps(self.server.answer(asked)).encode() + b"\n")
            if asked.get("do") == "sign_out":
                self.request.shutdown(socket.SHUT_WR)
                self.server.end()
                return
