"""Converts values to text and pickles: the value that a rank returns, and short descriptions of values in an error.

Short descriptions do not run code that can take long, raise, or wait for a GPU. ``repr`` is called only for classes
that are known to be safe. Other values are described by their class.
"""

from __future__ import annotations

import io
import math
import pickle
import reprlib
import types
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from distdl_jupyter.worker import owned, secret_patterns
from distdl_jupyter.worker.hooks.tensors import shape

#: Maximum number of characters in the text of a returned value.
LONGEST = 400
_PLAIN_TYPES = (type(None), bool, int, float, str)


def save(folder: Path, rank: int, value: Any) -> tuple[int, str]:
    """Pickle the value to ``results/rank-<rank>.pkl`` and return (size in bytes, "").

    If the value cannot be pickled or written, leave no file and return (0, a sentence with the reason).
    """
    target = folder / "results" / f"rank-{rank}.pkl"
    data, problem = pickled(value, f"The value of rank {rank}")
    if problem:
        return 0, problem
    try:
        target.parent.mkdir(mode=0o700, exist_ok=True)
        owned.write(target, data, sync=True)
    except OSError as error:
        text = f"The value of rank {rank} cannot be written to {target}: {error.strerror}. Only its text is returned."
        return 0, text
    return len(data), ""


class _TooLarge(Exception):
    """The pickle exceeds the limit."""


class _BoundedFile(io.BytesIO):
    """An in-memory file of limited size."""

    def __init__(self, max_bytes: float) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def write(self, piece: Any, /) -> int:
        """Append bytes. Raises _TooLarge."""
        if self.tell() + memoryview(piece).nbytes > self._max_bytes:
            raise _TooLarge
        return super().write(piece)


def pickled(value: Any, subject: str, most: float = math.inf) -> tuple[bytes, str]:
    """Return (pickle, ""), or (b"", a sentence with the reason) if it fails or exceeds ``most`` bytes."""
    file, name = _BoundedFile(most), type(value).__name__
    try:
        if type(value) in _PLAIN_TYPES:
            pickle.dump(value, file)
        else:
            try:
                from cloudpickle import dump
            except ImportError:  # the host has only this package's worker folder
                from pickle import dump
            dump(value, file)
    except _TooLarge:
        return b"", (
            f"{subject} is {name} of more than {most // 2**20:.0f} MB, so only its text is returned. End the cell with "
            "a part of it, or write it to a file."
        )
    except Exception as error:  # noqa: BLE001  user code runs here and can raise anything
        reason = (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200].rstrip(".")
        return b"", (
            f"{subject} is {name}, which cannot be pickled ({reason}), so only its text is returned. End the cell with "
            "plain data, arrays or a state_dict."
        )
    return file.getvalue(), ""


def text(value: Any) -> str:
    """Return the text that a notebook shows for the value, at most LONGEST characters; "" for None.

    If the value's ``repr`` raises, return the name of its type.
    """
    if value is None:
        return ""
    try:
        text_ = secret_patterns.redact(_ShortRepr().repr(value))
    except Exception:  # noqa: BLE001  a user-defined method
        return type(value).__name__
    return text_ if len(text_) <= LONGEST else f"{text_[: LONGEST - 1]}…"


class _ShortRepr(reprlib.Repr):
    """Truncates long containers and strings before formatting them, and handles a ``repr`` that raises."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 20
        self.maxarray = 20
        self.maxstring = self.maxother = LONGEST
        self.maxlong = 80

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """Format a dict in insertion order (the base class sorts it)."""
        if level <= 0 and x:
            return "{...}"
        items = [f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}" for k, v in islice(x.items(), self.maxdict)]
        return f"{{{', '.join(items + ['...'] * (len(x) > self.maxdict))}}}"


# short descriptions ------------------------------------------------------------------------------

TIMES = "\N{MULTIPLICATION SIGN}"
#: Maximum number of characters in the short description of a string, and of another value.
LONGEST_STRING, LONGEST_SHORT = 80, 160
_MAX_ITEMS = 6
#: Modules of the standard library whose classes have a short and fast ``repr``.
_SAFE_MODULES = ("pathlib", "datetime", "decimal", "fractions", "uuid", "enum")
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}
_CODE: dict[type, str] = {
    types.FunctionType: "function",
    types.BuiltinFunctionType: "function",
    types.MethodType: "method",
    types.ModuleType: "module",
}


def short(value: Any) -> str:
    """Describe a value in LONGEST_SHORT characters: ``312``, ``Tensor 32 x 10 float32`` or ``dict, keys a, b``."""
    try:
        text = _describe(value, 2)
    except Exception:  # noqa: BLE001  attributes of user-defined classes are read
        text = type(value).__name__
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_SHORT else f"{text[: LONGEST_SHORT - 1]}…"


def _format_scalar(value: Any) -> str:
    kind = type(value)
    if kind is float:
        return repr(value) if len(repr(value)) <= 8 else f"{value:.6g}"
    if kind is int and abs(value) >= 10**30:
        return f"int of {value.bit_length():,} bits"
    if kind in (str, bytes):
        prefix = repr(value[:LONGEST_STRING])
        return prefix if len(value) <= LONGEST_STRING else f"{prefix}… ({len(value):,})"
    return repr(value)


def _describe(value: Any, depth: int) -> str:
    kind = type(value)
    name = kind.__name__
    if kind in (*_PLAIN_TYPES, complex, bytes):
        return _format_scalar(value)
    if kind in _CODE:
        return f"{_CODE[kind]} {value.__name__}"
    if isinstance(value, type):
        return f"class {value.__name__}"
    if kind in _BRACKETS:
        if len(value) > _MAX_ITEMS or depth <= 0:
            return f"{name} of {len(value):,}"
        opening, closing = _BRACKETS[kind] if value else (f"{name}(", ")")
        return f"{opening}{', '.join(_describe(item, depth - 1) for item in value)}{closing}"
    if (sizes := shape(value)) is not None:
        return _format_array(name, value, sizes)
    if (keys := keys_of(value)) is not None:
        total = len(value) if isinstance(value, dict) else len(keys)
        suffix = f" and {total - 8:,} more" if total > 8 else ""
        return f"{name}, keys {', '.join(str(key)[:40] for key in keys[:8])}{suffix}" if keys else f"{name}, empty"
    if isinstance(value, BaseException):
        return f"{name}: {str(value)[:LONGEST_STRING]}"
    module = str(getattr(kind, "__module__", ""))
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


def keys_of(value: Any) -> list[Any] | None:
    """Return the first nine keys of a mapping or of an object with ``keys()``, None for another value."""
    if isinstance(value, dict):
        return list(islice(dict.keys(value), 9))
    if isinstance(value, type) or not (isinstance(value, Mapping) or callable(getattr(type(value), "keys", None))):
        return None
    try:
        return list(islice(value.keys(), 9))
    except Exception:  # noqa: BLE001  a user-defined method
        return None


def format_names(names: list[Any], more: int = 0) -> str:
    """Return names as an enumeration, such as ``image and target`` or ``a, b, c and 4 more``."""
    parts = [str(name)[:40] for name in names] + ([f"{more} more"] if more else [])
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
