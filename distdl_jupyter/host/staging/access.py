"""The shared access signatures of one source: asked for when needed, renewed in time, kept in memory only."""

from __future__ import annotations

import datetime as dt
import re
import threading
import time
from typing import Any
from urllib.parse import parse_qs

from distdl_jupyter.host.staging.failure import Failure
from distdl_jupyter.host.staging.talk import Talk

#: Seconds that an answer may take: someone may have to sign in first.
_PATIENCE = 600.0
#: Seconds before its end at which a signature is renewed; a quarter of its life where that is less.
_AHEAD = 120.0
#: Signatures in a row that may be refused before nothing was read with one.
_REFUSALS = 3
#: What may stand in one; anything else would change the request that it becomes a part of.
_WRITTEN = re.compile(r"[A-Za-z0-9%&=+/:.,_~-]+")
_RIGHTS = ("Give the account that is signed in the role Storage Blob Data Reader and, for signatures, "
           "Storage Blob Delegator.")  # fmt: skip
#: By the service's code (learn.microsoft.com/rest/api/storageservices/blob-service-error-codes).
_REMEDIES = {
    "AuthorizationPermissionMismatch": _RIGHTS,
    "AuthorizationFailure": "Let the storage account's firewall admit this machine, or use a private endpoint.",
    "AuthorizationSourceIPMismatch": "Let the storage account's firewall admit this machine.",
    "AuthenticationFailed": "Look whether this machine's clock is right, and sign in to Azure again.",
}


class Access:
    """The right to read one source's blobs."""

    def __init__(self, source: str, talk: Talk) -> None:
        self._source = source
        self._talk = talk
        self._lock = threading.Lock()
        self._all = ""
        self._each: dict[str, str] = {}
        self._renew_at = 0.0
        self._refused = 0
        #: Counts up with each signature that came.
        self.number = 0

    def sas(self, name: str) -> tuple[str, int]:
        """Return the signature that reads a blob, and its number. Raises Failure when there is none."""
        with self._lock:
            if not self.number or time.monotonic() > self._renew_at:
                self._renew()
            found = self._each.get(name, self._all)
            if not found:
                raise Failure(f"The right to read {name!r} was not given.", source=self._source)
            return found, self.number

    def refused(self, number: int, status: int, code: str) -> None:
        """Take that the service refused the signature of that number. Raises Failure when another one will not help."""
        with self._lock:
            if number != self.number:
                return
            self._refused += 1
            if self._refused >= _REFUSALS:
                raise Failure(f"Azure Blob refuses to let {self._source} be read ({status} {code}).",
                              _REMEDIES.get(code, _RIGHTS), self._source)  # fmt: skip
            self._renew()

    def worked(self) -> None:
        """Take that the service accepted a signature."""
        self._refused = 0

    def _renew(self) -> None:
        try:
            told = self._talk.ask({"type": "renew", "source": self._source}, _PATIENCE)
        except TimeoutError:
            raise Failure(f"The right to read {self._source} was not renewed within {_PATIENCE / 60:.0f} minutes.",
                          "Sign in to Azure again and start the job anew.", self._source) from None  # fmt: skip
        if told.get("refused"):
            raise Failure(str(told["refused"]), str(told.get("remedy") or ""), self._source)
        self._all = self._read(told.get("sas") or "")
        self._each = {str(name): self._read(one) for name, one in (told.get("each") or {}).items()}
        self.number += 1
        life = min((_life(one) for one in [self._all, *self._each.values()] if one), default=0.0)
        # Where the clocks differ the end is not known, and the service's refusal has to tell.
        self._renew_at = time.monotonic() + life - min(_AHEAD, life / 4) if life > 0 else float("inf")

    def _read(self, told: Any) -> str:
        text = str(told).removeprefix("?")
        if text and not _WRITTEN.fullmatch(text):
            raise Failure("What was given is no shared access signature.", source=self._source)
        return text


def _life(sas: str) -> float:
    """Return for how many seconds a signature is good by this machine's clock; 0 when it cannot be told."""
    try:
        end = dt.datetime.fromisoformat(parse_qs(sas)["se"][0])
    except (KeyError, ValueError):
        return 0.0
    return (end.replace(tzinfo=end.tzinfo or dt.UTC) - dt.datetime.now(dt.UTC)).total_seconds()
