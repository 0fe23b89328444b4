"""Let code be parsed and analysed that is nested as deeply as Python can compile."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

#: Frames that the analysis may take; Python compiles some 3,000 levels of nested code.
_DEEP = 20_000

_lock = threading.Lock()
#: How many threads, or calls within one, are inside, and the limit before the first of them.
_inside = 0
_before = 0


@contextlib.contextmanager
def deep_recursion() -> Iterator[None]:
    """Let this thread follow all code that Python can compile: it takes several frames for each level.

    The limit is that of all threads: the last one that leaves puts back what was there before the first.
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
