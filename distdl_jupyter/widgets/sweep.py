"""A sweep in a cell's output: live where a page knows it, and as far as it had come for ever.

``application/vnd.distdl.sweep+json`` names the sweep for front ends that know it, which ask the server for it;
``text/html`` and ``text/plain`` are what was known of it when it was shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdl_jupyter.saved import sweep as saved

if TYPE_CHECKING:
    import ipywidgets

    from distdl_jupyter.views.sweep import SweepShown

SWEEP_MIME = "application/vnd.distdl.sweep+json"


def show(found: SweepShown) -> None:
    """Display a sweep."""
    from IPython.display import publish_display_data

    publish_display_data(_bundle(found))  # type: ignore[no-untyped-call]


def output(found: SweepShown) -> ipywidgets.Output:
    """Return a widget that displays a sweep."""
    import ipywidgets  # a terminal displays without

    return ipywidgets.Output(outputs=({"output_type": "display_data", "data": _bundle(found), "metadata": {}},))


def _bundle(found: SweepShown) -> dict[str, Any]:
    return {
        SWEEP_MIME: {"id": found.id, "version": 1},
        "text/html": saved.html(found.panel),
        "text/plain": str(found),
    }
