"""Which variables of the environment Python code reads while modules are imported, and which it sets.

A module that was imported ahead has seen the template's environment; a job may use it only where these variables are
equal. Reads of C libraries are not seen here, see ``preconditions``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

#: Modules that look through the whole environment at their import, and the prefix that they look for.
KNOWN_READERS = {"tqdm.utils": "TQDM_"}
_BETWEEN = ("os", "_collections_abc", "collections.abc")

_read: set[str] = set()
_looked_through: dict[str, set[str]] = {}


class _Recording(os._Environ):  # type: ignore[type-arg]  # noqa: SLF001 - os.environ has this class and no public one
    """``os.environ`` for the time of the imports."""

    def __getitem__(self, key: Any) -> Any:
        """Return the value; the name is kept."""
        if _caller() not in KNOWN_READERS and isinstance(key, str):
            _read.add(key)
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        """Iterate; who does so may read anything."""
        if (module := _caller()) not in KNOWN_READERS:
            _looked_through[module] = _importing()
        return super().__iter__()

    def copy(self) -> dict[Any, Any]:
        """Return a copy; whoever keeps one keeps this environment."""
        _looked_through[_caller()] = _importing()
        return super().copy()


def _caller() -> str:
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the one way to know who reads
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "?")) if frame is not None else "?"


def _importing() -> set[str]:
    """Return the modules whose import is under way: each of them imports the one that reads."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - as above
    found = set()
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            found.add(str(frame.f_globals.get("__name__", "?")))
        frame = frame.f_back
    return found


class Recorder:
    """Records while it is entered; it may be entered again."""

    def __init__(self) -> None:
        #: Names of the variables that were read.
        self.read: set[str] = set()
        #: Variables that the imports have set, with their values.
        self.set: dict[str, str] = {}
        self._before: dict[str, str] = {}

    def __enter__(self) -> Recorder:
        self._before = dict(os.environ)
        os.environ.__class__ = _Recording
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        os.environ.__class__ = os._Environ  # noqa: SLF001 - as above
        self.read |= _read
        _read.clear()
        now = dict(os.environ)
        self.set |= {name: value for name, value in now.items() if self._before.get(name) != value}

    def looked_through(self) -> dict[str, set[str]]:
        """Return, once, the modules that have looked through the whole environment, each with those that import it."""
        found = dict(_looked_through)
        _looked_through.clear()
        return found
