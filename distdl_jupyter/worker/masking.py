"""Keeps secrets out of what a rank reports: by a variable's name, by the values in the environment, by their form."""

from __future__ import annotations

import os
import re
from pathlib import Path

from distdl_jupyter.worker import secretforms

MASK = secretforms.MASK

_WORDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_SECRET_WORDS = frozenset(
    ("secret", "secrets", "password", "passwords", "passwd", "pwd", "passphrase", "token", "tokens", "apikey",
     "credential", "credentials", "sas", "signature", "key")
)  # fmt: skip
#: Shorter values are words that stand in many texts by chance.
_SHORTEST = 6


def looks_secret(name: str) -> bool:
    """Say whether a variable of this name probably holds a secret (token, password, key, SAS ...).

    The same rule as for the variables in a job's spec; a test holds the two together.
    """
    words = [word.lower() for word in _WORDS.split(name) if word]
    found = _SECRET_WORDS.intersection(words)
    if found == {"key"}:
        return words[-1] == "key"
    return bool(found) or "connectionstring" in "".join(words)


def redact(text: str) -> str:
    """Return the text without the values of environment variables whose name looks secret, and without known forms."""
    for name, value in os.environ.items():
        # PWD is the working directory, and a variable may name the file that holds a secret: paths are no secrets.
        if len(value) >= _SHORTEST and value in text and looks_secret(name) and not Path(value).exists():
            text = text.replace(value, MASK)
    return secretforms.mask(text)
