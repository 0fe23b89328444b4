"""The handler of Horovod's rendezvous server, which here answers only those who know a secret."""

from __future__ import annotations

import hmac

from horovod.runner.http.http_server import RendezvousHandler


def prefix(secret: str, port: int) -> str:
    """Return how the paths of those who know the secret begin."""
    return f"/{secret}:{port}/" if secret else "/"


class Doorkeeper(RendezvousHandler):  # type: ignore[misc]
    """Takes the secret from each path, and turns away a path without it."""

    #: Where every path begins; set for each server.
    prefix: str
    path: str

    def do_GET(self) -> None:  # noqa: N802
        """Give a value that a rank has told."""
        if self._let_in():
            super().do_GET()

    def do_PUT(self) -> None:  # noqa: N802
        """Take a value that a rank tells the others."""
        if self._let_in():
            super().do_PUT()

    def do_DELETE(self) -> None:  # noqa: N802
        """Hear that a rank needs no more."""
        if self._let_in():
            super().do_DELETE()

    def do_HEAD(self) -> None:  # noqa: N802
        """Show no files, as the class above would."""
        self.send_status_code(404)

    def log_message(self, *_args: object) -> None:
        """Requests are no news for the user's log."""

    def _let_in(self) -> bool:
        known = self.path[: len(self.prefix)].encode(errors="replace")
        if not hmac.compare_digest(known, self.prefix.encode()):
            self.send_status_code(403)
            return False
        self.path = "/" + self.path[len(self.prefix) :]
        return True
