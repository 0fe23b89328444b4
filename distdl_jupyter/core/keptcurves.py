"""The curves of a job's log up to some byte, kept beside it in ``curves.json``, so that a late viewer has them at once.

A cache of the same kind as ``core.snapshot``, beside which it stands: missing, old or deleted at any moment, and
replaced whole. Who reads both takes this one first, and who writes both writes it last: so the view is never the older
one, and a reader folds what lies between them itself.

Its size is that of the series, which are bounded; a job with so many metrics and ranks that they take more than
``MOST`` values is read from its log. In it is JSON of one line: columns as base64 of their bytes, objects as lists of
their slots.
"""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import zlib
from array import array
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import whole
from distdl_jupyter.core.buckets import Grid, Metric, Point, Series
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.snapshot import fits

if TYPE_CHECKING:
    from distdl_jupyter.core.store import JobFolder

#: To be raised when ``core.buckets`` folds the same points to something else than before.
RULES = 1
#: Values of all series together, of 48 bytes each.
MOST = 200_000

_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Grid, Metric, Point, Series)}
_SLOTS: dict[type, tuple[str, ...]] = {kind: tuple(kind.__slots__) for kind in _KINDS.values()}
VERSION = f"{RULES}-{zlib.crc32(repr((list(_SLOTS.values()), sys.byteorder)).encode()):08x}"


def write(folder: JobFolder, book: SeriesBook, cursor: int) -> None:
    """Keep the curves of all events in the first ``cursor`` bytes. Where they cannot be kept nothing happens."""
    if book.size > MOST:
        return
    with contextlib.suppress(OSError):
        known = {"v": VERSION, "cursor": cursor, "identity": folder.events.stat().st_ino, "curves": _told(book.metrics)}
        whole.keep(folder.curves, json.dumps(known, separators=(",", ":")))


def read(folder: JobFolder) -> tuple[SeriesBook, int] | None:
    """Return curves and the cursor up to which they were folded; None where none fit to the log that stands there."""
    try:
        known = json.loads(folder.curves.read_bytes())
        if known["v"] != VERSION or not fits(folder.events, known["identity"], known["cursor"]):
            return None
        return SeriesBook(_made(known["curves"])), known["cursor"]
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None


def _told(value: Any) -> Any:
    """Return a value of the series as JSON data."""
    if type(value) in _SLOTS:
        return {type(value).__name__: [_told(getattr(value, name)) for name in _SLOTS[type(value)]]}
    if isinstance(value, array):
        return {value.typecode: base64.b64encode(value.tobytes()).decode("ascii")}
    if isinstance(value, dict):
        return {"dict": [[_told(one), _told(other)] for one, other in value.items()]}
    if isinstance(value, set):
        return {"set": sorted(value)}
    return list(value) if isinstance(value, tuple) else value


def _made(told: Any) -> Any:
    """Return the value of ``_told`` data. Raises ValueError, TypeError or LookupError when it is damaged."""
    if isinstance(told, list):
        return tuple(told)
    if not isinstance(told, dict):
        return told
    [(kind, held)] = told.items()
    if kind == "dict":
        return {_made(one): _made(other) for one, other in held}
    if kind == "set":
        return set(held)
    if kind in _KINDS:
        return _object(_KINDS[kind], held)
    column = array(kind)
    column.frombytes(base64.b64decode(held))
    return column


def _object(kind: Any, held: list[Any]) -> Any:
    made = kind.__new__(kind)
    for name, value in zip(_SLOTS[kind], held, strict=True):
        setattr(made, name, _made(value))
    return made
