"""What is installed on this machine for this process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def installed_version(*names: str) -> str:
    """Return the version of the first installed distribution of these, "" if there is none."""
    from importlib import metadata  # imports the whole ``email`` package

    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def requirement() -> str:
    """Return the pip requirement of this package: the clone or wheel it was installed from, else its name."""
    import json
    from importlib import metadata

    origin = json.loads(metadata.distribution("distdl-jupyter").read_text("direct_url.json") or "{}")
    if "vcs_info" in origin:
        return f"{origin['vcs_info']['vcs']}+{origin['url']}"
    return str(origin.get("url", "distdl-jupyter"))


def has_java() -> bool:
    """Return whether Java is installed, searched as Spark's scripts do."""
    import shutil  # imports all compression modules

    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java").exists() if home else shutil.which("java") is not None
