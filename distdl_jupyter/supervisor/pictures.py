"""Puts pictures together that ranks report in parts, and keeps them as files: an event and a line of the log for each.

Ranks that show the same picture share one, so their lines become one row as those of equal prints do. What is no
picture, comes in parts that do not fit, or is more than a job may have is left out.
"""

from __future__ import annotations

import binascii
import hashlib
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import atomic_write, pictures
from distdl_jupyter.core.humanize import count

if TYPE_CHECKING:
    from distdl_jupyter.supervisor.recorder import EventRecorder
    from distdl_jupyter.worker.pictures import Form


class Pictures:
    """The pictures of one job. Made when the first part of one arrives: most jobs show none."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._parts: dict[int, list[str]] = {}
        self._numbers = {_key(data): number for number, data in pictures.all_of(recorder.folder.path)}
        self._next = max([0, *self._numbers.values(), *(one.number for one in recorder.view.pictures)]) + 1
        self._logged: set[str] = set()

    def take(self, rank: int, report: dict[str, Any]) -> None:
        """Take a part of a picture of one rank; with the last one it is kept."""
        parts = self._parts.setdefault(rank, [])
        if report["begin"] == 0:
            parts.clear()
        begun = sum(map(len, parts))
        if report["begin"] != begun:
            return  # its beginning was read by a supervisor that died
        parts.append(report["data"])
        if begun + len(report["data"]) < report["of"]:
            return
        data = _decoded("".join(self._parts.pop(rank)))
        form = pictures.form_of(data) if len(data) <= pictures.LARGEST else None
        if form is not None:
            self._show(rank, data, form)

    def _show(self, rank: int, data: bytes, form: Form) -> None:
        key = _key(data)
        number = self._numbers.get(key)
        if number is None:
            if self._next > pictures.MOST:
                self._log_once(f"The job has shown {count(pictures.MOST)} images; later ones are omitted.")
                return
            number = self._next
            file = pictures.path(self._recorder.folder.path, number, form.name)
            try:
                file.parent.mkdir(mode=0o700, exist_ok=True)
                atomic_write.keep(file, data)
            except OSError as error:
                self._log_once(f"Images cannot be stored: {error.strerror}.")
                return
            self._numbers[key], self._next = number, number + 1
        size = {"form": form.name, "width": form.width, "height": form.height}
        self._recorder.write("picture", number=number, rank=rank, **size)
        text = f"[picture {number}: {form.width}×{form.height}]"
        name = pictures.path(self._recorder.folder.path, number, form.name).name
        self._recorder.write("log", rank=rank, stream="out", text=text, picture=name)

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            self._recorder.log(text)


def _decoded(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text)
    except ValueError:
        return b""


def _key(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
