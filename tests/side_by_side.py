"""How the tests run side by side (``pytest -n 2``): what stays on one worker, and what begins first.

Tests of one file stay together, because they share fixtures. So do those of one browser and of one Slurm, which take
seconds to start. The longest folders begin first, so that no worker is left with one of them at the end.
"""

from __future__ import annotations

from typing import Any

#: Folders of which one worker at a time runs everything.
TOGETHER = ("tests/browser", "tests/clusters/slurm")
#: Folders that take minutes, the longest first.
LONG = (
    *TOGETHER, "tests/multihost", "tests/warm", "tests/clusters", "tests/client", "tests/backends", "tests/ranks",
    "tests/server", "tests/faults", "tests/notebooks",
)  # fmt: skip


def scope(nodeid: str) -> str:
    """Return what a test stays together with: its file, or its folder."""
    file = nodeid.split("::", 1)[0]
    return next((folder for folder in TOGETHER if file.startswith(folder + "/")), file)


def rank(nodeid: str) -> int:
    """Return a number to sort by: smaller begins earlier."""
    return next((place for place, folder in enumerate(LONG) if nodeid.startswith(folder + "/")), len(LONG))


def make_scheduler(config: Any, log: Any) -> Any:
    """Return the scheduler of pytest-xdist that keeps ``scope`` together."""
    from xdist.scheduler import LoadScopeScheduling

    class SideBySide(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    return SideBySide(config, log)
