"""How every other process speaks with the keeper: one request, one answer; starts it for a sign-in only."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure.credentials import asked_for
from distdl_jupyter.core import sockets
from distdl_jupyter.core.errors import DistDLError, NotSignedIn

if TYPE_CHECKING:
    from pathlib import Path

    from azure.core.credentials import AccessToken, AccessTokenInfo, TokenRequestOptions

#: Seconds that an answer may take: a token is renewed over the network, a code is fetched.
ANSWER_SECONDS = 90.0
START_SECONDS = 60.0
#: A keeper that ends while it is asked is asked again, or another one is started.
_ATTEMPTS = 3


def there() -> bool:
    """Say whether a keeper listens."""
    with contextlib.suppress(OSError, DistDLError), _connected():
        return True
    return False


def ask(do: str, *, start: bool = False, **more: Any) -> dict[str, Any] | None:
    """Return the keeper's answer, None when there is no keeper. Raises NotSignedIn with what it says.

    ``start`` starts one first where there is none.
    """
    for _ in range(_ATTEMPTS):
        try:
            connection = _connected()
        except OSError:
            if not start:
                return None
            connection = _started()
        with connection:
            line = _exchanged(connection, {"do": do, **more})
        if line:
            answer: dict[str, Any] = json.loads(line)
            if "error" in answer:
                raise NotSignedIn(answer["error"]["message"], hint=answer["error"]["hint"])
            return answer
    raise NotSignedIn("The process that holds the sign-in did not answer.", hint="Sign in to Azure again.")


def _exchanged(connection: socket.socket, asked: dict[str, Any]) -> bytes:
    """Return the line that answers, b"" when the keeper just ended."""
    try:
        with connection.makefile("rwb", buffering=0) as stream:
            stream.write(json.dumps(asked).encode() + b"\n")
            return stream.readline()
    except OSError:
        return b""


def _connected() -> socket.socket:
    """Return a connection. Raises OSError when nobody listens, DistDLError when somebody else does."""
    path = sockets.place("azure")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(str(path))
        _check_own(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_own(connection: socket.socket, path: Path) -> None:
    if sockets.peer_uid(connection) != os.getuid():
        raise DistDLError(f"Somebody else listens at {path}.", hint="Set JUPYTER_RUNTIME_DIR to a folder of yours.")


def _started() -> socket.socket:
    """Start a keeper in a session of its own and wait until it listens."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "distdl_jupyter.azure.keeper"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if not _private(name)},
    )
    # A child that ended stays a zombie until somebody waits for it; nobody else here would.
    threading.Thread(target=process.wait, name="reap-keeper", daemon=True).start()
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            return _connected()
        if process.returncode:
            break
        time.sleep(0.05)
    raise NotSignedIn("The process that holds the sign-in did not start.",
                      hint="python -m distdl_jupyter.azure.keeper in a terminal says why.")  # fmt: skip


def _private(name: str) -> bool:
    """Say whether a variable is none of the keeper's business: secrets of other ways to sign in, marks of a job."""
    return name in ("AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PASSWORD", "AZURE_PASSWORD") or name.startswith(
        ("AZURE_STORAGE_", "DISTDL_")
    )


class KeeperCredential:
    """azure-core's ``TokenCredential`` that asks the keeper each time; this process keeps no token of it."""

    def get_token(self, *scopes: str, claims: str | None = None, tenant_id: str | None = None,
                  enable_cae: bool = False, **_: Any) -> AccessToken:  # fmt: skip
        """Return a token for the scopes (azure-core's older protocol). Raises NotSignedIn."""
        from azure.core.credentials import AccessToken

        info = self.get_token_info(*scopes, options=asked_for(claims, tenant_id, cae=enable_cae))
        return AccessToken(info.token, info.expires_on)

    def get_token_info(self, *scopes: str, options: TokenRequestOptions | None = None) -> AccessTokenInfo:
        """Return a token with what is known of it (azure-core's newer protocol). Raises NotSignedIn."""
        from azure.core.credentials import AccessTokenInfo

        answer = ask("token", scopes=list(scopes), options=dict(options or {}))
        if answer is None:
            raise NotSignedIn("Nobody is signed in to Azure any more.", hint="Sign in to Azure again.")
        return AccessTokenInfo(answer["token"], int(answer["expires_on"]))

    def close(self) -> None:
        """Do nothing: the keeper stays."""

    def __enter__(self) -> KeeperCredential:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
