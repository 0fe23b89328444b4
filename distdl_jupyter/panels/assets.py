"""Where the built front end of the panels lies, with one sentence for a checkout in which it was not built."""

from __future__ import annotations

from pathlib import Path

from distdl_jupyter.core.errors import PluginUnavailable

STATIC = Path(__file__).parent / "static"


def asset(name: str) -> Path:
    """Return the path of a bundled file such as ``head.js``. Raises PluginUnavailable when it was not built."""
    path = STATIC / name
    if not path.is_file():
        raise PluginUnavailable(
            f"The panels' front end is not built ({name} is missing).",
            hint="Run 'npm ci && npm run build' in the folder labextension, or 'make' at the top.",
        )
    return path
