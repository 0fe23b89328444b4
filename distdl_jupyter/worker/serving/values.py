"""Values on their way out of a rank: pickled when they can be, else their text with the reason."""

from __future__ import annotations

import pickle
from typing import Any

from distdl_jupyter.worker import results

#: Values beyond so many bytes stay in the rank, unless whoever asks wants more.
LARGEST = 256 * 1024 * 1024


class _TooLarge(Exception):
    """The pickle has grown beyond the limit."""


class _Bounded:
    """A file in memory that takes so many bytes."""

    def __init__(self, most: int) -> None:
        self.data = bytearray()
        self._most = most

    def write(self, piece: Any, /) -> int:
        """Take bytes. Raises _TooLarge."""
        view = memoryview(piece)
        if len(self.data) + view.nbytes > self._most:
            raise _TooLarge
        self.data += view.cast("B") if view.contiguous else view.tobytes()
        return view.nbytes


def packed(value: Any, most: int = LARGEST) -> tuple[bytes, str]:
    """Return (pickle, ""), or (b"", a sentence why it stays in the rank)."""
    if value is None:
        return _NONE, ""
    file = _Bounded(most)
    try:
        _dump(value, file)
    except _TooLarge:
        name = type(value).__name__
        return b"", (f"The value is {name} of more than {most // 2 ** 20} MB, so only its text is returned. End the "
        "cell with a part of it, or write it to a file.")  # fmt: skip
    except Exception as error:  # noqa: BLE001  a value's own code runs here and can raise anything
        why = (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200].rstrip(".")
        return b"", (f"The value is {type(value).__name__}, which cannot be pickled ({why}), so only its text is "
        "returned. End the cell with plain data, arrays or a state_dict.")  # fmt: skip
    return bytes(file.data), ""


_NONE = pickle.dumps(None)


def _dump(value: Any, file: _Bounded) -> None:
    if type(value) in (bool, int, float, str):
        pickle.dump(value, file)
        return
    try:
        import cloudpickle
    except ImportError:  # an environment that has no more than this package's worker
        pickle.dump(value, file)
    else:
        cloudpickle.dump(value, file)


def text(value: Any) -> str:
    """Return a value's text as a notebook shows it, shortened; its type when its own code fails."""
    try:
        return results.text(value)
    except Exception:  # noqa: BLE001  a foreign class's own method
        return type(value).__name__
