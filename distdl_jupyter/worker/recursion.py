"""Raises the recursion limit for the analysis of deeply nested code."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

#: Frames allowed for the analysis; Python compiles about 3,000 levels of nested code.
_DEEP = 20_000

_lock = threading.Lock()
#: Number of active threads or nested calls, and the original limit.
_inside = 0
_before = 0


@contextlib.contextmanager
def deep_recursion() -> Iterator[None]:
    """Raise the recursion limit so that all code that Python can compile can be analyzed.

    The limit applies to all threads, so the last one to leave restores the original.
    """
    global _inside, _before
    with _lock:
        if not _inside:
            _before = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_before, _DEEP))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                sys.setrecursionlimit(_before)
