"""What a forked process sets anew in the numerical libraries that its parent had loaded. None is imported here."""

from __future__ import annotations

import sys


def reseed() -> None:
    """Give this process random numbers of its own."""
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()


def has_threads() -> bool:
    """Say whether a library is loaded that keeps a number of threads (besides those for linear algebra)."""
    return "torch" in sys.modules


def set_threads(count: int) -> None:
    """Let that library use ``count`` threads."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)
