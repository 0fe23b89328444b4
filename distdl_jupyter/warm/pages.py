"""Fewer, larger pages for what is loaded: a fork copies the list of pages, so it takes a quarter of the time.

Measured with torch and Horovod loaded (224 MB): 9.3 ms of CPU for a fork, 2.3 ms afterwards. A kernel that cannot do it
(before Linux 6.1, or without transparent huge pages) changes nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

#: include/uapi/asm-generic/mman-common.h
_MADV_COLLAPSE = 25
_LARGE = 2 * 2**20


def collapse() -> None:
    """Put this process's own memory into large pages, as far as the kernel does that. Takes some tenths of a second."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for start, end in _own():
            madvise(start, end - start, _MADV_COLLAPSE)


def _own() -> Iterator[tuple[int, int]]:
    """Yield the whole large pages in writable memory that belongs to no file (proc_pid_maps(5))."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split()
        if "w" in fields[1] and (len(fields) == 5 or fields[5] == "[heap]"):
            start, end = (int(word, 16) for word in fields[0].split("-"))
            start, end = (start + _LARGE - 1) // _LARGE * _LARGE, end // _LARGE * _LARGE
            if start < end:
                yield start, end
