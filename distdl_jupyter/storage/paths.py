"""Data sources that are folders or files already: what a node has to find at their path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.node.staging.paths import fingerprint

if TYPE_CHECKING:
    from distdl_jupyter.core.data import DataSource


def expected(source: DataSource) -> dict[str, Any] | None:
    """Return the fingerprint of what is at a source's path here, None where this machine does not see it.

    Raises DataUnavailable for a path of this machine that cannot be read.
    """
    try:
        return fingerprint(source.path)
    except OSError as error:
        if source.scheme == "shared":
            return None  # the nodes may see it all the same, and say so
        raise DataUnavailable(
            f"Cannot read {source.path}: {error.strerror}.", code="data-path-unreadable", hint="Check the path."
        ) from None
