"""The part of this package that runs on other machines, as one zip: worker, agent, and the rendezvous service.

The same sources give the same bytes, so a host unpacks each version once, in a folder named by its digest.
"""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from pathlib import Path
from typing import NamedTuple

import distdl_jupyter

#: Files and folders, relative to this package, that are self-contained.
PARTS = ("__init__.py", "_version.py", "worker", "host", "backends/__init__.py", "backends/rendezvous.py")
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip can tell


class Package(NamedTuple):
    """The zip and the name of its content: 16 hexadecimal digits."""

    digest: str
    content: bytes


@functools.cache
def built() -> Package:
    """Return the zip of the sources that this process runs with."""
    root = Path(distdl_jupyter.__file__).parent
    content = pack(root, PARTS)
    return Package(hashlib.sha256(content).hexdigest()[:16], content)


def pack(root: Path, parts: tuple[str, ...]) -> bytes:
    """Return a zip of the ``.py`` files of these parts under the name of ``root``."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(path for part in parts for path in _sources(root / part)):
            name = f"{root.name}/{path.relative_to(root).as_posix()}"
            entry = zipfile.ZipInfo(name, _EARLIEST)
            entry.external_attr = 0o100600 << 16
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _sources(path: Path) -> list[Path]:
    return [path] if path.is_file() else list(path.rglob("*.py"))
