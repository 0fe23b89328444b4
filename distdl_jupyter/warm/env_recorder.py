"""Which variables of the environment Python code reads while modules are imported, and which it sets.

A module that was imported ahead has seen the template's environment; a job may use it only where these variables are
equal. A module that reads a variable of its own process (a rank's number, PATH) or the whole environment must not be
imported ahead. Reads of C libraries are not seen here, see ``preconditions``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from distdl_jupyter.worker.identity import LAUNCHERS

#: Modules that look through the whole environment at their import, and the prefix of what they look for.
KNOWN_READERS = {"tqdm.utils": "TQDM_", "networkx.utils.backends": "NETWORKX_"}
_BETWEEN = ("os", "_collections_abc", "collections.abc")
#: Variables that launchers set for each rank: no template can have their values.
_OF_RANKS = re.compile(
    r"(?:GLOBAL|NODE|ROLE|DISTDL|DISTDL_LOCAL|DISTDL_NODE|JSM_NAMESPACE|PMIX|MV2_COMM_WORLD)_RANK|"
    r"(?:ROLE|DISTDL)_WORLD_SIZE|MASTER_(?:ADDR|PORT)|TORCHELASTIC_\w+|(?:GLOO|NCCL)_SOCKET_IFNAME|"
    + "|".join(name for launcher in LAUNCHERS for name in launcher if name)
)
#: Variables that differ from terminal to terminal although the jobs are the same.
_OF_SHELLS = ("PATH", "PWD", "OLDPWD", "SHLVL", "_")


class UnforkableRead(NamedTuple):
    """What was read that no template can know, and the modules whose import was under way, the innermost first."""

    what: str
    importing: tuple[str, ...]


_read: set[str] = set()
_unforkable: list[UnforkableRead] = []


class _Recording(os._Environ):  # type: ignore[type-arg]  # noqa: SLF001 - os.environ has this class and no public one
    """``os.environ`` for the time of the imports."""

    def __getitem__(self, key: Any) -> Any:
        """Return the value; the name is kept."""
        if _caller() not in KNOWN_READERS and isinstance(key, str):
            if _OF_RANKS.fullmatch(key) or key in _OF_SHELLS:
                _unforkable.append(UnforkableRead(key, _importing()))
            else:
                _read.add(key)
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        """Iterate; who does so may read anything."""
        if _caller() not in KNOWN_READERS:
            _unforkable.append(UnforkableRead("the whole environment", _importing()))
        return super().__iter__()

    def copy(self) -> dict[Any, Any]:
        """Return a copy; whoever keeps one keeps this environment."""
        _unforkable.append(UnforkableRead("the whole environment", _importing()))
        return super().copy()


def _caller() -> str:
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the one way to know who reads
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "?")) if frame is not None else "?"


def _importing() -> tuple[str, ...]:
    """Return the modules whose import is under way, the innermost first: each of them imports the one that reads."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - as above
    names = []
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            names.append(str(frame.f_globals.get("__name__", "?")))
        frame = frame.f_back
    return tuple(names)


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

    def unforkable_reads(self) -> list[UnforkableRead]:
        """Return, once, what modules have read that no template can know."""
        reads = list(_unforkable)
        _unforkable.clear()
        return reads
