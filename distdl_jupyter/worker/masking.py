"""Keeps secrets out of what a rank reports: by a variable's name, by the values in the environment, by their form."""

from __future__ import annotations

import os
from pathlib import Path

from distdl_jupyter.worker import secret_patterns

MASK = secret_patterns.MASK
looks_secret = secret_patterns.looks_secret
#: Shorter values are words that stand in many texts by chance.
_SHORTEST = 6


def redact(text: str) -> str:
    """Return the text without the values of environment variables whose name looks secret, and without known forms."""
    for name, value in os.environ.items():
        # A variable may name the file that holds a secret: paths are no secrets.
        if len(value) >= _SHORTEST and value in text and looks_secret(name) and not Path(value).exists():
            text = text.replace(value, MASK)
    return secret_patterns.mask(text)
