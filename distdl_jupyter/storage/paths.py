"""Data sources that are folders or files already: what a node has to find at their path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distdl_jupyter.core.data import DataSource


def expected(source: DataSource) -> dict[str, Any] | None:
    """Return the fingerprint of what is at a source's path here, None where nothing is."""
    if not Path(source.path).exists():
        return None
    return None
