"""The handler of Horovod's rendezvous server, which here answers only requests that have the job's secret."""

from __future__ import annotations

import hmac

from horovod.runner.http.http_server import RendezvousHandler


def prefix(secret: str, port: int) -> str:
    """Return how the path of an authorized request begins."""
    return f"/{secret}:{port}/" if secret else "/"


class AuthHandler(RendezvousHandler):  # type: ignore[misc]
    """Takes the secret from each path, and refuses a path without it."""

    #: Where every path begins; set for each server.
    prefix: str
    path: str

    def do_GET(self) -> None:  # noqa: N802
        """Return a value that a rank has stored."""
        if self._authorized():
            super().do_GET()

    def do_PUT(self) -> None:  # noqa: N802
        """Store a value for the other ranks."""
        if self._authorized():
            super().do_PUT()

    def do_DELETE(self) -> None:  # noqa: N802
        """Note that a rank needs a scope no more."""
        if self._authorized():
            super().do_DELETE()

    def do_HEAD(self) -> None:  # noqa: N802
        """Show no files, as the class above would."""
        self.send_status_code(404)

    def log_message(self, *_args: object) -> None:
        """Log nothing: requests do not belong in the user's log."""

    def _authorized(self) -> bool:
        """Strip the secret from the path, or answer 403."""
        known = self.path[: len(self.prefix)].encode(errors="replace")
        if not hmac.compare_digest(known, self.prefix.encode()):
            self.send_status_code(403)
            return False
        self.path = "/" + self.path[len(self.prefix) :]
        return True
