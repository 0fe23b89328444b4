"""Why data could not be staged, as one sentence with its remedy, and without any signature or password."""

from __future__ import annotations

import re

_SIGNATURE = re.compile(r"(sig=)[^&\s\"']+", re.IGNORECASE)
_PASSWORD = re.compile(r"(://)[^/\s:@]*:[^/\s@]*@")


class Failure(Exception):
    """``text`` is one sentence, ``remedy`` what to do, ``source`` the name of the source ("" for none)."""

    def __init__(self, text: str, remedy: str = "", source: str = "") -> None:
        super().__init__(masked(text))
        self.text = masked(text)
        self.remedy = masked(remedy)
        self.source = source


def masked(text: str) -> str:
    """Return a text without the signatures that stand in it, and without users and passwords of addresses."""
    return _SIGNATURE.sub(r"\1***", _PASSWORD.sub(r"\1", text))


def readable(size: float) -> str:
    """Return a number of bytes in the unit that people would take."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"
