"""How the launch form writes what it knows: plain data for the page. No secret passes through here."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.humanize import size
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.core.spec import Captured, Source

if TYPE_CHECKING:
    from distdl_jupyter.advice import Advice

_BREAKS = re.compile(r"(?<=\d) (?=(?:GB|Gb/s|min|h|s)\b)| (?=\N{MULTIPLICATION SIGN})|(?<=\N{MULTIPLICATION SIGN}) ")


def captured(items: Sequence[Captured], *, known: bool = True) -> dict[str, Any]:
    """Return the captured names with their sizes and the size of all; nobody could tell them when not ``known``."""
    return {
        "known": known,
        "size": size(sum(item.size for item in items)),
        "items": [{"name": item.name, "detail": item.detail, "size": size(item.size)} for item in items],
    }


def environment(variables: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the variables; a value is None where it is a secret, by its name or its form."""
    return [_variable(name, value, secret=is_secret(name, value)) for name, value in variables.items()]


def _variable(name: str, value: str, *, secret: bool) -> dict[str, Any]:
    return {"name": name, "value": None if secret else value, "secret": secret}


def advice(one: Advice) -> dict[str, Any]:
    """Return one advice as the page shows it."""
    return {
        "code": one.code,
        "level": one.level,
        "headline": one.headline,
        "reason": unbroken(one.reason),
        "action": one.action,
        "snippet": one.snippet,
        "source": one.source,
    }


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


def problems(items: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the first error of each field, from the checks' items; what is about no field stands there only."""
    found: dict[str, str] = {}
    for item in items:
        if item["level"] == "error" and item["field"]:
            name = _BESIDE.get(item["field"], item["field"])
            found.setdefault(name, f"{item['text']} {item['remedy']}".strip())
    return found
