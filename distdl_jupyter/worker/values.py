"""Converts values to text and pickles: the value that a rank returns, and short descriptions of values in an error.

Short descriptions do not run code that can take long, raise, or wait for a GPU. ``repr`` is called only for classes
that are known to be safe. Other values are described by their class.
"""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import reprlib
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from distdl_jupyter.worker import owned, secret_patterns
from distdl_jupyter.worker.hooks.frameworks import get_shape

#: Maximum number of characters in the text of a returned value.
_MAX_TEXT_CHARS = 400
_PLAIN_TYPES = (type(None), bool, int, float, str)


def save(folder: Path, rank: int, value: Any) -> tuple[int, str]:
    """Pickle the value to ``results/rank-<rank>.pkl``. Return (size in bytes, ""), or (0, the reason)."""
    target = folder / "results" / f"rank-{rank}.pkl"
    data, problem = to_pickle(value, f"The value of rank {rank}")
    try:
        if not problem:
            target.parent.mkdir(mode=0o700, exist_ok=True)
            owned.write(target, data, sync=True)
    except OSError as error:
        reason = f"The value of rank {rank} cannot be written to {target}: {error.strerror}"
        return 0, f"{reason}. Only its text is returned."
    return len(data), problem


class _BoundedFile(io.BytesIO):
    """An in-memory file with a maximum size in bytes, so that a large value is refused before it fills the memory."""

    max_bytes, is_full = math.inf, False

    def write(self, data: Any, /) -> int:
        """Append bytes. Raises OSError beyond the limit."""
        self.is_full = self.tell() + memoryview(data).nbytes > self.max_bytes
        if self.is_full:
            raise OSError
        return super().write(data)


def to_pickle(value: Any, subject: str, max_bytes: float = math.inf) -> tuple[bytes, str]:
    """Return (pickle, ""), or (b"", a sentence with the reason) if it fails or exceeds ``max_bytes``."""
    file, dump = _BoundedFile(), pickle.dump
    file.max_bytes = max_bytes
    try:
        if type(value) not in _PLAIN_TYPES:
            with contextlib.suppress(ImportError):  # the host may have only this package's worker folder
                import cloudpickle

                dump = cloudpickle.dump
        dump(value, file)
        return file.getvalue(), ""
    except Exception as error:  # noqa: BLE001  user code runs here and can raise anything
        reason = (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200].rstrip(".")
        problem, remedy = f", which cannot be pickled ({reason})", "plain data, arrays or a state_dict"
        if file.is_full:
            problem, remedy = f" and exceeds {max_bytes // 2**20:.0f} MB", "a part of it, or write it to a file"
    text = f"{subject} is of type {type(value).__name__}{problem}, so only its text is returned."
    return b"", f"{text} End the cell with {remedy}."


def to_text(value: Any) -> str:
    """Return the text that a notebook shows for the value, shortened, or "" for None. Its ``repr`` may raise."""
    with contextlib.suppress(Exception):  # a user-defined method
        text = "" if value is None else _ShortRepr().repr(value)
        return _truncate(secret_patterns.redact(text), _MAX_TEXT_CHARS)
    return type(value).__name__


def _truncate(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


class _ShortRepr(reprlib.Repr):
    """Truncates long containers and strings before formatting them, and handles a ``repr`` that raises."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 20
        self.maxarray = 20
        self.maxstring = self.maxother = _MAX_TEXT_CHARS
        self.maxlong = 80

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """Format a dict in insertion order (the base class sorts it)."""
        if level <= 0 and x:
            return "{...}"
        items = [f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}" for k, v in islice(x.items(), self.maxdict)]
        return f"{{{', '.join(items + ['...'] * (len(x) > self.maxdict))}}}"


TIMES = "\N{MULTIPLICATION SIGN}"
#: Maximum number of characters in the short description of a string, and of another value.
_MAX_STRING_CHARS, MAX_SHORT_CHARS = 80, 160
#: Maximum number of items of a list, tuple or set in a short description.
_MAX_ITEMS = 6
#: Modules of the standard library whose classes have a short and fast ``repr``.
_SAFE_MODULES = ("pathlib", "datetime", "decimal", "fractions", "uuid", "enum")
_BRACKETS: dict[type, str] = {list: "[]", tuple: "()", set: "{}"}


def describe(value: Any) -> str:
    """Describe a value in MAX_SHORT_CHARS characters: ``312``, ``Tensor 32 x 10 float32`` or ``dict, keys a, b``."""
    text = type(value).__name__
    with contextlib.suppress(Exception):  # attributes of user-defined classes are read
        text = _describe(value, 2)
    return _truncate(" ".join(text.split()), MAX_SHORT_CHARS)


def _describe(value: Any, depth: int) -> str:
    value_type = type(value)
    name = value_type.__name__
    if value_type is float and len(repr(value)) > 8:
        return f"{value:.6g}"
    if value_type is int and abs(value) >= 10**30:
        return f"int of {value.bit_length():,} bits"
    if value_type in (str, bytes) and len(value) > _MAX_STRING_CHARS:
        return f"{value[:_MAX_STRING_CHARS]!r}… ({len(value):,})"
    if value_type in (*_PLAIN_TYPES, complex, bytes):
        return repr(value)
    if value_type in _BRACKETS:
        if len(value) > _MAX_ITEMS or depth <= 0:
            return f"{name} of {len(value):,}"
        items = ", ".join(_describe(item, depth - 1) for item in value)
        return f"{_BRACKETS[value_type][0]}{items}{_BRACKETS[value_type][1]}" if value else f"{name}()"
    if (sizes := get_shape(value)) is not None:
        return _format_array(name, value, sizes)
    if (keys := list_keys(value)) is not None:
        total = len(value) if isinstance(value, dict) else len(keys)
        suffix = f" and {total - 8:,} more" if total > 8 else ""
        return f"{name}, keys {', '.join(str(key)[:40] for key in keys[:8])}{suffix}" if keys else f"{name}, empty"
    if isinstance(value, BaseException):
        return f"{name}: {str(value)[:_MAX_STRING_CHARS]}"
    module = str(getattr(value_type, "__module__", ""))
    return repr(value) if module.partition(".")[0] in _SAFE_MODULES or isinstance(value, range | slice) else name


def _format_array(name: str, value: Any, sizes: tuple[int, ...]) -> str:
    device = str(getattr(value, "device", "cpu"))
    location = "" if device.lower().startswith(("cpu", "<")) else device
    content = format_sizes(sizes)
    if not sizes and not location and callable(getattr(value, "item", None)):
        content = _describe(value.item(), 0)
    dtype = str(getattr(value, "dtype", "")).rpartition(".")[2]
    return " ".join(part for part in (name, content, dtype, location) if part)


def format_sizes(sizes: tuple[int, ...]) -> str:
    """Return a shape as text, such as ``32 x 10`` (with a multiplication sign), or ``scalar`` without dimensions."""
    return f" {TIMES} ".join(map(str, sizes)) or "scalar"


def list_keys(value: Any) -> list[Any] | None:
    """Return the first nine keys of a mapping or of an object with ``keys()``, or None for another value."""
    with contextlib.suppress(Exception):  # a user-defined method
        if isinstance(value, dict):
            return list(islice(dict.keys(value), 9))
        if not isinstance(value, type) and (isinstance(value, Mapping) or callable(getattr(type(value), "keys", None))):
            return list(islice(value.keys(), 9))
    return None


def format_names(names: list[Any], omitted_count: int = 0) -> str:
    """Return names as an enumeration, such as ``image and target`` or ``a, b, c and 4 more``."""
    parts = [str(name)[:40] for name in names] + ([f"{omitted_count} more"] if omitted_count else [])
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
