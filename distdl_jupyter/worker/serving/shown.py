"""How a notebook shows a value: its text, and the richer forms that its class offers (a table, a picture)."""

from __future__ import annotations

import base64
from typing import Any

from distdl_jupyter.worker import masking
from distdl_jupyter.worker.serving import values

#: Characters of one form; a longer one is left out.
_LONGEST = 2_000_000
#: Items of a container, or characters of a string, beyond which its text is shortened.
_LARGE = 1_000
#: The methods by which IPython asks a value for a form.
_METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_latex_", "text/latex"),
)


def bundle(value: Any) -> dict[str, str]:
    """Return the forms of a value by MIME type, always with ``text/plain``; nothing for None. Pictures are base64."""
    if value is None:
        return {}
    forms = {"text/plain": _plain(value)}
    if not isinstance(value, type):
        for method, mime in _METHODS:
            form = _asked(value, method)
            if form:
                forms[mime] = form
    return forms


def _plain(value: Any) -> str:
    # Tables and arrays shorten themselves by lines, which a cut in the middle would spoil; containers do not.
    if isinstance(value, (str, bytes, bytearray, list, tuple, dict, set, frozenset)) and len(value) > _LARGE:
        return values.text(value)
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  a foreign class's own method
        return values.text(value)
    return masking.redact(text) if len(text) <= 4_000 else values.text(value)


def _asked(value: Any, method: str) -> str:
    call = getattr(type(value), method, None)
    if call is None:
        return ""
    try:
        form = call(value)
    except Exception:  # noqa: BLE001  a foreign class's own method
        return ""
    if isinstance(form, bytes):
        form = base64.b64encode(form).decode()
    return masking.redact(form) if isinstance(form, str) and len(form) <= _LONGEST else ""
