"""A sweep in a cell's output: live where a page knows it, and as far as it had come for ever.

``application/vnd.distdl.sweep+json`` names the sweep for front ends that know it, which ask the server for it;
``text/html`` and ``text/plain`` are what was known of it when it was shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.saved import sweep as saved

if TYPE_CHECKING:
    from distdl_jupyter.views.sweep import SweepShown

SWEEP_MIME = "application/vnd.distdl.sweep+json"


def show(found: SweepShown) -> None:
    """Display a sweep."""
    from IPython.display import publish_display_data

    bundle = {
        SWEEP_MIME: {"id": found.id, "version": 1},
        "text/html": saved.html(found.panel),
        "text/plain": str(found),
    }
    publish_display_data(bundle)  # type: ignore[no-untyped-call]
