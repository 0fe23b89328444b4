"""Values that a rank sends: pickled where that is possible, and as a notebook shows them."""

from __future__ import annotations

import base64
import pickle
from typing import Any

from distdl_jupyter.worker import masking, results

#: Bytes of the largest value that is sent.
LARGEST = 256 * 1024 * 1024
#: Characters of the longest form; a longer one is left out.
_LONGEST = 2_000_000
#: Items of a container, or characters of a string, beyond which its text is shortened; characters of other texts.
_LARGE, _LONG = 1_000, 4_000
#: The methods by which IPython asks a value for a form.
_METHODS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_latex_": "text/latex",
}
_NONE = pickle.dumps(None)


class _TooLarge(Exception):
    """The pickle has grown beyond the limit."""


class _BoundedFile:
    """A file in memory of limited size."""

    def __init__(self, most: int) -> None:
        self.data = bytearray()
        self._most = most

    def write(self, piece: Any, /) -> int:
        """Append bytes. Raises _TooLarge."""
        view = memoryview(piece)
        if len(self.data) + view.nbytes > self._most:
            raise _TooLarge
        self.data += view.cast("B") if view.contiguous else view.tobytes()
        return view.nbytes


def packed(value: Any, most: int = LARGEST) -> tuple[bytes, str]:
    """Return (pickle, ""), or (b"", a sentence why the value is not sent)."""
    if value is None:
        return _NONE, ""
    file, name = _BoundedFile(most), type(value).__name__
    try:
        _dump(value, file)
    except _TooLarge:
        return b"", (
            f"The value is {name} of more than {most // 2**20} MB, so only its text is returned. End the "
            "cell with a part of it, or write it to a file."
        )
    except Exception as error:  # noqa: BLE001  a value's own code runs here and can raise anything
        why = (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200].rstrip(".")
        return b"", (
            f"The value is {name}, which cannot be pickled ({why}), so only its text is "
            "returned. End the cell with plain data, arrays or a state_dict."
        )
    return bytes(file.data), ""


def _dump(value: Any, file: _BoundedFile) -> None:
    if type(value) in (bool, int, float, str):
        pickle.dump(value, file)
        return
    try:
        import cloudpickle
    except ImportError:  # an environment that has only this package's worker
        pickle.dump(value, file)
    else:
        cloudpickle.dump(value, file)


def text(value: Any) -> str:
    """Return a value's text as a notebook shows it, shortened; its type when its own code fails."""
    try:
        return results.text(value)
    except Exception:  # noqa: BLE001  a foreign class's own method
        return type(value).__name__


def forms(value: Any) -> dict[str, str]:
    """Return the forms of a value by MIME type, always with ``text/plain``; {} for None. Pictures are base64."""
    if value is None:
        return {}
    found = {"text/plain": _plain(value)}
    if not isinstance(value, type):
        found |= {mime: form for method, mime in _METHODS.items() if (form := _form(value, method))}
    return found


def _plain(value: Any) -> str:
    # Tables and arrays shorten themselves by lines, which a cut in the middle would spoil; containers do not.
    if isinstance(value, (str, bytes, bytearray, list, tuple, dict, set, frozenset)) and len(value) > _LARGE:
        return text(value)
    try:
        plain = repr(value)
    except Exception:  # noqa: BLE001  a foreign class's own method
        return text(value)
    return masking.redact(plain) if len(plain) <= _LONG else text(value)


def _form(value: Any, method: str) -> str:
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
