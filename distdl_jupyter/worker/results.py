"""The return value of a rank: its pickle in the job's folder and a short text of it."""

from __future__ import annotations

import math
import pickle
import reprlib
from itertools import islice
from pathlib import Path
from typing import Any

from distdl_jupyter.worker import owned, secret_patterns

#: Longest text of a value, in characters.
LONGEST = 400
_PLAIN = (type(None), bool, int, float, str)


def save(folder: Path, rank: int, value: Any) -> tuple[int, str]:
    """Pickle the value to ``results/rank-<rank>.pkl`` and return (bytes, "").

    If the value cannot be pickled or written, return (0, a sentence with the reason) and leave no file.
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


class _BoundedFile:
    """An in-memory file of limited size."""

    def __init__(self, most: float) -> None:
        self.data = bytearray()
        self._most = most

    def write(self, piece: Any, /) -> int:
        """Append bytes. Raises _TooLarge."""
        view = memoryview(piece)
        if len(self.data) + view.nbytes > self._most:
            raise _TooLarge
        self.data += view.cast("B") if view.contiguous else view.tobytes()
        return view.nbytes


def pickled(value: Any, subject: str, most: float = math.inf) -> tuple[bytes | bytearray, str]:
    """Return (pickle, ""), or (b"", a sentence with the reason) if it fails or exceeds ``most`` bytes."""
    file, name = _BoundedFile(most), type(value).__name__
    try:
        if type(value) in _PLAIN:
            pickle.dump(value, file)
        else:
            try:
                from cloudpickle import dump
            except ImportError:  # a host that has only this folder
                from pickle import dump
            dump(value, file)
    except _TooLarge:
        return b"", (
            f"{subject} is {name} of more than {most // 2**20:.0f} MB, so only its text is returned. End the cell with "
            "a part of it, or write it to a file."
        )
    except Exception as error:  # noqa: BLE001  user code runs here and can raise anything
        why = (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200].rstrip(".")
        return b"", (
            f"{subject} is {name}, which cannot be pickled ({why}), so only its text is returned. End the cell with "
            "plain data, arrays or a state_dict."
        )
    return file.data, ""


def text(value: Any) -> str:
    """Return the value as shown by a notebook, at most LONGEST characters; "" for None.

    Return the name of the type if the value's own code fails.
    """
    if value is None:
        return ""
    try:
        shown = secret_patterns.redact(_Short().repr(value))
    except Exception:  # noqa: BLE001  a user-defined method
        return type(value).__name__
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"


class _Short(reprlib.Repr):
    """Truncates long containers and strings before formatting them, and handles a ``repr`` that raises."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 20
        self.maxarray = 20
        self.maxstring = self.maxother = LONGEST
        self.maxlong = 80

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """Format a dict in its own order (the base class sorts it)."""
        if level <= 0 and x:
            return "{...}"
        shown = [f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}" for k, v in islice(x.items(), self.maxdict)]
        return f"{{{', '.join(shown + ['...'] * (len(x) > self.maxdict))}}}"
