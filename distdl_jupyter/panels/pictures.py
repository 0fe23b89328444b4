"""The pictures that ranks have shown: what a panel answers when its page asks for one, and what a notebook keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import pictures as kept
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.saved.job import address

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from distdl_jupyter.core.view import JobView
    from distdl_jupyter.saved.job import Picture

#: Bytes of the pictures that a notebook keeps of one job.
_KEPT = 1_000_000


def answer(folder: Path, question: Mapping[str, Any]) -> dict[str, Any]:
    """Read a picture by its ``number``; return it as a data URL in ``value``, or ``error``. Never raises."""
    number = question.get("number")
    found = kept.read(folder, number) if type(number) is int else None
    if found is None:
        return {"error": JobNotFound("This picture is not there any more.").to_json()}
    return {"value": address(*found)}


def newest(folder: Path, view: JobView) -> list[Picture]:
    """Return the newest pictures, oldest of them first, as many as a notebook keeps."""
    found: list[Picture] = []
    left = _KEPT
    for one in reversed(view.pictures):
        read = kept.read(folder, one.number)
        if read is not None:
            left -= len(read[0])
            if left < 0:
                break
            found.append((one, *read))
    return found[::-1]
