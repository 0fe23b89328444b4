"""The pictures that ranks have displayed, as files ``pictures/<number>.<form>`` of a job's folder.

``read`` returns only data that starts as a PNG or a JPEG, never markup, so a page can show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from distdl_jupyter.worker import owned
from distdl_jupyter.worker.pictures import LARGEST, MOST, form_of

__all__ = ["LARGEST", "MOST", "all_of", "form_of", "path", "read"]

FOLDER = "pictures"


def path(folder: Path, number: int, form: str) -> Path:
    """Return where a picture of the job in ``folder`` is kept; ``form`` is png or jpeg."""
    return folder / FOLDER / f"{number}.{form}"


def read(folder: Path, number: int) -> tuple[bytes, str] | None:
    """Return a stored picture and its form, None if it is missing or invalid."""
    for form in ("png", "jpeg"):
        try:
            with owned.open_own(path(folder, number, form)) as file:
                data = file.read(LARGEST + 1)
        except OSError:
            continue
        detected = form_of(data)
        if detected is not None and detected.name == form and len(data) <= LARGEST:
            return data, form
    return None


def all_of(folder: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of all stored pictures."""
    for file in sorted((folder / FOLDER).glob("*.*")):
        if file.stem.isascii() and file.stem.isdecimal() and (picture := read(folder, int(file.stem))) is not None:
            yield int(file.stem), picture[0]
