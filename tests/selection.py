"""Which tests run, the quick selection of ``make test`` or all of them (``make test-all``), and on which worker.

What is marked ``full``, a test or one ``pytest.param(..., marks=pytest.mark.full)``, is not in the quick selection.
What is marked ``readme("Slurm")`` shows a row of README's table, or a feature that README names, and always is in it.
A test that can do more or less of the same asks ``few_or_all(6, 50)``.

Tests of one file stay on one worker of pytest-xdist, because they share fixtures; so do those of the one Slurm that a
machine can have, and those of the browser, which with its JupyterLab is as much as one processor bears.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

#: Folders of which one worker runs everything. They take longest, so they begin first.
TOGETHER = ("tests/browser", "tests/clusters/slurm")

# The quick selection draws the same few examples at every run; all tests together look for new ones.
settings.register_profile("quick", max_examples=30, deadline=None, derandomize=True, database=None)
settings.register_profile("all", max_examples=300, deadline=None)


def everything() -> bool:
    """Say whether all tests are to run, not the quick selection alone."""
    return os.environ.get("DISTDL_TESTS") == "all"


def few_or_all(few: int, all_: int) -> int:
    """Return how often a test repeats what it does in this run."""
    return all_ if everything() else few


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("all" if everything() else "quick")
    config.addinivalue_line("markers", "readme(text): shows what README says of this; never left out")
    config.addinivalue_line("markers", "full: left out of the quick selection; DISTDL_TESTS=all runs it")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked ``full`` and shows nothing of README, unless everything is to run."""
    left_out = [] if everything() else [item for item in items if _is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not _is_left_out(item)]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(TOGETHER))


def _is_left_out(item: pytest.Item) -> bool:
    return item.get_closest_marker("full") is not None and item.get_closest_marker("readme") is None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler of pytest-xdist that keeps the tests of a file, or of one of these folders, together."""
    from xdist.scheduler import LoadScopeScheduling

    class FilesTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return next((folder for folder in TOGETHER if file.startswith(folder + "/")), file)

    return FilesTogether(config, log)
