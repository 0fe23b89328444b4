"""What is installed on this machine for this process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def installed_version(*names: str) -> str:
    """Return the version of the first of these distributions that is installed, "" for none."""
    from importlib import metadata  # brings the whole of ``email``

    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def requirement() -> str:
    """Return what pip installs this package from: the clone or wheel that it came from here, else its name."""
    import json
    from importlib import metadata

    origin = json.loads(metadata.distribution("distdl-jupyter").read_text("direct_url.json") or "{}")
    if "vcs_info" in origin:
        return f"{origin['vcs_info']['vcs']}+{origin['url']}"
    return str(origin.get("url", "distdl-jupyter"))


def has_java() -> bool:
    """Say whether Java is here, as Spark's own scripts look for it."""
    import shutil  # brings every way to compress

    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java").exists() if home else shutil.which("java") is not None
