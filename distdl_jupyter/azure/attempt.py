"""A sign-in that somebody is asked for: a device code to enter, or a page in the browser.

It lives in a thread of the process that began it and ends with that process. Every other process of the user sees it
in ``distdl_azure_attempt.json`` beside the settings: JSON with ``kind``, ``prompt`` and ``error``, mode 0600, no token.
While it waits, its process holds a lock (flock) on that file. Whoever deletes it, or puts another one in its place,
cancels it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure import credentials, errors, stored
from distdl_jupyter.azure import settings as settled
from distdl_jupyter.azure.status import Problem, Prompt, State, Status
from distdl_jupyter.core import locks
from distdl_jupyter.core.errors import DistDLError

if TYPE_CHECKING:
    from distdl_jupyter.azure.settings import AzureSettings

FILE = "distdl_azure_attempt.json"
#: Seconds that ``begin`` waits for the code.
PROMPT_SECONDS = 60.0
NO_KEYRING = "This machine has no keyring, so the sign-in is stored unencrypted in a file that only you can read."
#: The file's size is always the same, so that a reader never sees the end of an older text.
_SIZE = 4096


def file() -> Path:
    """Return where the attempt is told."""
    return settled.file().with_name(FILE)


def begin(settings: AzureSettings) -> None:
    """Ask somebody to sign in; return when there is a code, or an end. Drops the attempt before. Raises OSError."""
    attempt = _Attempt(settings)
    threading.Thread(target=attempt.run, name="sign-in", daemon=True).start()
    if settings.credential == "device_code":
        attempt.shown.wait(PROMPT_SECONDS)


def drop() -> None:
    """Forget the attempt of whichever process; a code that is entered later is good for nothing."""
    file().unlink(missing_ok=True)


def seen() -> Status | None:
    """Return the attempt that waits or has failed, None where there is none or its process has ended."""
    try:
        with file().open(encoding="utf-8") as source:
            document = json.load(source)
            error = Problem(**document["error"]) if document["error"] else None
            prompt = Prompt(**document["prompt"]) if document["prompt"] else None
            own = os.fstat(source.fileno()).st_uid == os.geteuid()
            is_late = prompt is not None and prompt.until < time.time()
            if not own or (error is None and (is_late or locks.is_free(source.fileno()))):
                return None
            state: State = "failed" if error else "waiting"
            return Status(state=state, kind=str(document["kind"]), prompt=prompt, problem=error)
    except (OSError, ValueError, KeyError, TypeError):
        return None


class _Attempt:
    """One attempt. ``shown`` is set when there is something to show: a code, or its end."""

    def __init__(self, settings: AzureSettings) -> None:
        self.settings = settings
        self.shown = threading.Event()
        path = file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor, temporary = tempfile.mkstemp(prefix=f".{FILE}-", dir=path.parent)
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        self._publish()
        Path(temporary).replace(path)

    def run(self) -> None:
        """Sign in: it lasts until somebody entered the code, cancelled it, or the time is over."""
        try:
            self._sign_in()
        except DistDLError as error:
            self._publish(error=Problem(message=error.message, hint=error.hint, code=error.code))
        except Exception as error:  # noqa: BLE001 - whoever waits has to hear of the end
            explained = errors.explain(error)
            self._publish(error=Problem(message=explained.message, hint=explained.hint, code=explained.code))
        finally:
            os.close(self._descriptor)
            self.shown.set()

    def _is_current(self) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(file().stat(), os.fstat(self._descriptor))
        return False

    def _sign_in(self) -> None:
        note = ""
        try:
            record = self._authenticated(allow_file=False)
        except DistDLError as error:
            if error.message != errors.NO_KEYRING or self.settings.token_cache == "keyring":  # noqa: S105
                raise
            note = NO_KEYRING
            record = self._authenticated(allow_file=True)
        if self._is_current():
            stored.write(self.settings, record, note)
            drop()
        elif not stored.file().exists():
            stored.forget()  # It was cancelled while the tokens came.

    def _authenticated(self, *, allow_file: bool) -> Any:
        from azure.core.exceptions import AzureError

        cloud = self.settings.endpoints
        try:
            credential = credentials.attended(
                self.settings, stored.cache(allow_file=allow_file), self._show, wanted=self._is_current
            )
            with credential:
                return credential.authenticate(scopes=[cloud.scope(cloud.resource_manager)])
        except (AzureError, ValueError) as error:
            raise errors.explain(error) from None

    def _show(self, address: str, code: str, until: float) -> None:
        self._publish(prompt=Prompt(user_code=code, address=address, until=until))
        self.shown.set()

    def _publish(self, *, prompt: Prompt | None = None, error: Problem | None = None) -> None:
        document = {"kind": self.settings.credential, "prompt": prompt and dataclasses.asdict(prompt),
                "error": error and dataclasses.asdict(error)}  # fmt: skip
        os.pwrite(self._descriptor, json.dumps(document).encode().ljust(_SIZE), 0)
