"""From what a user wrote to what ranks are asked: a cell as plain Python with its place, names as pickles."""

from __future__ import annotations

import io
import re
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter import capture
from distdl_jupyter.capture import listing
from distdl_jupyter.capture.captured_code import CapturedCode, payload_fields, pickled
from distdl_jupyter.capture.cell import plain_python
from distdl_jupyter.capture.modules import search_path
from distdl_jupyter.capture.notebook import CodeLocation, cell_label
from distdl_jupyter.capture.unpicklable import refuse
from distdl_jupyter.core.spec import Source
from distdl_jupyter.core.store import JobFolder

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBER = re.compile(r"In \[(\d+)\]")


def session() -> CapturedCode:
    """Return the draft of a job whose ranks stay."""
    place = capture.here()
    return CapturedCode(
        kind="ranks",
        name=f"{place.name.removesuffix('.ipynb')[:100]} ranks".strip(),
        source=Source(
            notebook=place.path, cell_id=place.cell_id, execution_count=place.execution_count, command="ranks.start()"
        ),
        payload_json=payload_fields("ranks", path=search_path(place)),
    )


def cell(code: str, number: int, *, label: str, raw_cell: str) -> dict[str, Any]:
    """Return the request to run a cell. Raises InvalidSpec, SyntaxError (both name the line as the cell shows it)."""
    place = capture.here()
    first_line = _first_line(raw_cell or place.raw, code)
    matched = _NUMBER.fullmatch(label)
    count = int(matched[1]) if matched else place.execution_count if first_line else None
    title = cell_label(count, place.name) if count is not None or not label else label
    filename = f"<{title[:1].lower()}{title[1:]}, {number}>"
    first_line = first_line or 1
    return {
        "do": "run",
        "id": number,
        "code": plain_python(code, first_line=first_line, filename=filename, awaits=True),
        "filename": filename,
        "label": label or (f"In [{count}]" if count is not None else title),
        "cell": count,
        "title": title,
        "first_line": first_line,
    }


def _first_line(raw: str, code: str) -> int | None:
    """Return the number of the code's first line within the whole cell, None when ``raw`` is another cell."""
    position = raw.rstrip().rfind(code.rstrip())
    return raw.count("\n", 0, position) + 1 if position >= 0 and code.strip() else None


def names(values: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return ``names`` and ``sources`` of a request, and the pickles. Raises InvalidSpec for what cannot travel."""
    if not values:
        return {}, b""
    notes, file = pickled(values.items())
    refuse(notes, values, unit="cell")
    with file:
        file.seek(0)
        sources = {name: text.to_json() for name, text in listing.sources_of(notes, _here()).items()}
        return {"names": list(values), "sources": sources}, file.read()


def files(draft: CapturedCode) -> bytes:
    """Return the files of a job's code as a tar: ranks on another machine do not see the job's folder."""
    with tempfile.TemporaryDirectory(prefix="distdl-") as name:
        folder = JobFolder(Path(name))
        folder.code.mkdir(mode=0o700)
        draft.write(folder)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(name, ".")
        return packed.getvalue()


def _here() -> CodeLocation:
    return capture.here()
