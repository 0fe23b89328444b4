"""The cache directory: built wheels, staged data and responses of Azure."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from distdl_jupyter.worker.hooks import frameworks


def cache_directory() -> Path:
    """Return the package's cache directory (it need not exist yet).

    ``DISTDL_CACHE`` takes precedence over the platform's default: ``$XDG_CACHE_HOME/distdl`` or
    ``~/.cache/distdl`` on Linux, ``~/Library/Caches/distdl`` on macOS.
    """
    if override := os.environ.get("DISTDL_CACHE"):
        return Path(override).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "distdl"
    if platform.system() == "Darwin":
        return Path.home() / "Library" / "Caches" / "distdl"
    return Path.home() / ".cache" / "distdl"


def compiled_code() -> tuple[str, str]:
    """Return the environment variable of torch's compiler cache and the folder that later jobs share.

    Its keys hold the versions of torch, CUDA and Triton and the GPU's model, so one folder serves all of them.
    """
    return frameworks.COMPILED_VARIABLE, str(cache_directory() / frameworks.COMPILED_FOLDER)
