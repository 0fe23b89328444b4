"""How the launch form writes what it knows: texts for the page. No secret passes through here."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from distdl_jupyter.core.humanize import size
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.core.spec import Captured, Source
from distdl_jupyter.form.schema import CapturedSize, CapturedSizes, FormCheck, Variable

_BREAKS = re.compile(r"(?<=\d) (?=(?:GB|Gb/s|min|h|s)\b)| (?=\N{MULTIPLICATION SIGN})|(?<=\N{MULTIPLICATION SIGN}) ")


def captured(items: Sequence[Captured], *, known: bool = True) -> CapturedSizes:
    """Return the captured names with their sizes and the size of all; nobody could tell them when not ``known``."""
    sizes = tuple(CapturedSize(item.name, item.detail, size(item.size)) for item in items)
    return CapturedSizes(known, size(sum(item.size for item in items)), sizes)


def environment(variables: Mapping[str, str]) -> tuple[Variable, ...]:
    """Return the variables; a value is None where it is a secret, by its name or its form."""
    return tuple(_variable(name, value, secret=is_secret(name, value)) for name, value in variables.items())


def _variable(name: str, value: str, *, secret: bool) -> Variable:
    return Variable(name, None if secret else value, secret)


def unbroken(text: str) -> str:
    """Return a sentence whose numbers stay on one line with their units."""
    return _BREAKS.sub("\N{NO-BREAK SPACE}", text)


def place(source: Source) -> tuple[int | None, str]:
    """Return where a function was written: its cell's execution count, or its file's name ("" when not known)."""
    if source.execution_count is not None:
        return source.execution_count, ""
    name = os.path.basename(source.filename)  # noqa: PTH119 - pseudo names such as <stdin> are no paths
    return None, "" if name.startswith("<") else name


#: Which field of the page an error is shown beside, by the name of the option where that differs.
_BESIDE = {"environment_variables": "environment"}


def problems(items: Sequence[FormCheck]) -> dict[str, str]:
    """Return the first error of each field, from the checks' items; what is about no field stands there only."""
    found: dict[str, str] = {}
    for item in items:
        if item.level == "error" and item.field:
            name = _BESIDE.get(item.field, item.field)
            found.setdefault(name, f"{item.text} {item.remedy}".strip())
    return found
