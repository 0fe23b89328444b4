"""Reading what the linker wrote into a library."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def dynamic_section() -> Callable[[Path], str]:
    """Return a function that lists a library's dependencies and the places where they are looked for."""

    def read(library: Path) -> str:
        command = ["readelf", "-d"] if shutil.which("readelf") else ["otool", "-l"]
        return subprocess.run([*command, str(library)], capture_output=True, text=True, check=True).stdout

    return read
