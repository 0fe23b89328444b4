"""This package's own Python sources as one zip, for other machines, where the worker and the agent run.

The rest travels because training code may name it: a module with a training function often also holds the line that
submits it. The same sources give the same bytes, so a host unpacks each version once, in a folder named by its digest.
"""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parents[1]
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip can tell


class Package(NamedTuple):
    """The zip and the name of its content: 16 hexadecimal digits."""

    digest: str
    content: bytes


@functools.cache
def built() -> Package:
    """Return the zip of the sources that this process runs with."""
    content = pack(_ROOT)
    return Package(hashlib.sha256(content).hexdigest()[:16], content)


def pack(root: Path) -> bytes:
    """Return a zip of the ``.py`` files below ``root``, under its name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(root.rglob("*.py")):
            name = f"{root.name}/{path.relative_to(root).as_posix()}"
            entry = zipfile.ZipInfo(name, _EARLIEST)
            entry.external_attr = 0o100600 << 16
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
