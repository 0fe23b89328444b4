r"""Encodes a report of a rank as one marked line of its standard output, and decodes it.

``\x1e<nonce> <compact strict JSON>\n``. The nonce is random for each job, so printed text cannot be mistaken for a
report. Text without a newline may precede the marker on the same line; ASCII escapes keep the JSON free of control
characters. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import json
from typing import Any

Report = dict[str, Any]

_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def marker(nonce: str) -> bytes:
    """Return the prefix of every report of the job."""
    return b"\x1e" + nonce.encode() + b" "


def encode(nonce: str, report: Report) -> bytes:
    """Return the report as one marked line.

    Raises ValueError for a number that is not finite and TypeError for values that JSON cannot represent.
    """
    return marker(nonce) + _dumps(report).encode() + b"\n"


def split(line: bytes, nonce: str) -> tuple[bytes, Report | None]:
    """Split one line into the text before the report and the report.

    Without a report, return the line and None: a marker with another nonce, or one that is not followed by a JSON
    object with a "type", is plain text.
    """
    mark = marker(nonce)
    start = line.find(mark)
    while start >= 0:
        report = _decode(line[start + len(mark) :])
        if report is not None:
            return line[:start], report
        start = line.find(mark, start + 1)
    return line, None


def _decode(text: bytes) -> Report | None:
    if not text.startswith(b"{"):
        return None
    try:
        report = _loads(text.decode())
        if rb"\ud" in text.lower():  # lone surrogates, which JSON allows but UTF-8 does not, become question marks
            report = _loads(json.dumps(report, ensure_ascii=False).encode(errors="replace").decode())
    except (ValueError, RecursionError):
        return None
    return report if isinstance(report, dict) and isinstance(report.get("type"), str) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not valid strict JSON.")


_loads = json.JSONDecoder(parse_constant=_refuse).decode
