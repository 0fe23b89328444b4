"""The built front end of the panels, with one sentence for a checkout in which it was not built."""

from __future__ import annotations

from pathlib import Path

from distdl_jupyter.core.errors import PluginUnavailable

STATIC = Path(__file__).parent / "static"


def asset(name: str) -> str:
    """Return the text of a bundled file such as ``job.js``. Raises PluginUnavailable when it was not built.

    Not its path: anywidget watches a file for each widget that was made from one, and so keeps every such widget, with
    all that it refers to, for as long as the process lives.
    """
    path = STATIC / name
    if not path.is_file():
        raise PluginUnavailable(
            f"The front end of the panels is not built ({name} is missing).",
            code="front-end-not-built",
            hint="Run 'npm ci && npm run build' in the folder labextension, or 'make' in the repository.",
        )
    return path.read_text(encoding="utf-8") + "\n"  # one line without an end would be taken for a path
