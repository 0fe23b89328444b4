"""A real IPython shell to capture from, and a real rank that runs what was captured."""

from __future__ import annotations

import atexit
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from distdl_jupyter.capture import CapturedCode, capture_cell
from distdl_jupyter.core.store import JobFolder, JobStore, create_id
from tests.worker import ranks


class Notebook:
    """Runs cells in one shell, as a kernel does."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell

    def run(self, cell: str) -> Any:
        """Run one cell; an exception in it fails the test."""
        result = self.shell.run_cell(cell, store_history=True)
        result.raise_error()
        return result.result

    def __getitem__(self, name: str) -> Any:
        return self.shell.user_ns[name]

    def capture(self, code: str, **more: Any) -> CapturedCode:
        """Capture a cell below a magic line."""
        return capture_cell(code, self.shell.user_ns, **{"execution_count": 7, **more})


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """A fresh shell in an empty folder."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    known = set(sys.modules)
    shell = InteractiveShell.instance()
    yield Notebook(shell)
    atexit.unregister(shell.atexit_operations)
    shell.atexit_operations()
    InteractiveShell.clear_instance()
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "") or ""):
            del sys.modules[name]


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path / "home")


@pytest.fixture
def written(store: JobStore) -> Callable[[CapturedCode], JobFolder]:
    """Write a draft into a job's folder."""

    def write(draft: CapturedCode) -> JobFolder:
        folder = store.prepare(create_id())
        draft.write(folder)
        return folder

    return write


@pytest.fixture
def rank(written: Callable[[CapturedCode], JobFolder]) -> Callable[..., ranks.Ended]:
    """Run a draft in one real rank; ``value`` of the result is what its code returned."""

    def run(draft: CapturedCode) -> ranks.Ended:
        folder = written(draft)
        ended = ranks.run(folder)
        assert ended.code == 0, ended.out + ended.err
        ended.value = (
            pickle.loads(folder.get_result_path(0).read_bytes()) if folder.get_result_path(0).exists() else None
        )
        return ended

    return run


def payload_of(folder: JobFolder) -> dict[str, Any]:
    return json.loads((folder.path / "payload.json").read_text())
