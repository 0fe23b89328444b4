"""Keeps secrets out of what a rank reports: by the name of a variable, and by the values in the environment."""

from __future__ import annotations

import os
import re

MASK = "•••"

#: The same rule as for the job's spec; a test holds the two together.
_SECRET = re.compile(
    r"(secret|passw(or)?d|passphrase|token|api_?key|access_?key|account_?key|private_?key|credential|sas$|_sas_|_key$|^key$"
    r"|connection_?string|signature)",
    re.IGNORECASE,
)
#: Shorter values are words that stand in many texts by chance.
_SHORTEST = 6


def looks_secret(name: str) -> bool:
    """Say whether a variable of this name probably holds a secret (token, password, key, SAS ...)."""
    return _SECRET.search(name) is not None


def redact(text: str) -> str:
    """Return the text without the values of environment variables whose name looks secret."""
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and value in text and looks_secret(name):
            text = text.replace(value, MASK)
    return text
