"""The value that a rank gives back: its pickle in the job's folder and a short text of it."""

from __future__ import annotations

import os
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

    A value that cannot be pickled or written gives (0, a sentence that says why); no file appears then.
    """
    target = folder / "results" / f"rank-{rank}.pkl"
    try:
        data = _pickled(value)
    except Exception as error:  # noqa: BLE001  a value's own code runs here and can raise anything
        return 0, _refusal(rank, value, error)
    try:
        _write(target, data)
    except OSError as error:
        return (
            0,
            f"The value of rank {rank} cannot be written to {target}: {error.strerror}. Only its text is returned.",
        )
    return len(data), ""


def _write(target: Path, data: bytes) -> None:
    """Write the file so that it appears whole or not at all."""
    target.parent.mkdir(mode=0o700, exist_ok=True)
    hidden = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(hidden, "wb", opener=owned.private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(target)
    except OSError:
        hidden.unlink(missing_ok=True)  # on a full disk, what could not be finished takes room from others
        raise


def _pickled(value: Any) -> bytes:
    if type(value) in _PLAIN:
        return pickle.dumps(value)
    try:
        import cloudpickle
    except ImportError:  # a host that has no more than this folder
        return pickle.dumps(value)
    data: bytes = cloudpickle.dumps(value)
    return data


def _refusal(rank: int, value: Any, error: Exception) -> str:
    why = f"{type(error).__name__}: {error}".splitlines()[0][:200].rstrip(".")
    return (
        f"The value of rank {rank} is {type(value).__name__}, which cannot be pickled ({why}), so only its text is "
        "returned. End the cell with plain data, arrays or a state_dict."
    )


def text(value: Any) -> str:
    """Return the value as a notebook would show it, at most LONGEST characters; "" for None."""
    if value is None:
        return ""
    shown = secret_patterns.redact(_Short().repr(value))
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"


class _Short(reprlib.Repr):
    """Long containers and strings are cut before they are written out; a ``repr`` that raises is named instead."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 20
        self.maxarray = 20
        self.maxstring = self.maxother = LONGEST
        self.maxlong = 80

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """Show a dict in its own order (the base class sorts it)."""
        if level <= 0 and x:
            return "{...}"
        shown = [f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}" for k, v in islice(x.items(), self.maxdict)]
        return f"{{{', '.join(shown + ['...'] * (len(x) > self.maxdict))}}}"
