"""A real IPython shell to capture from, and a real rank that runs what was captured."""

from __future__ import annotations

import atexit
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from distdl_jupyter.capture import CapturedCode, capture_cell
from distdl_jupyter.core.store import JobFolder, JobStore, new_id


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


@dataclass
class Ran:
    """How a rank ended: exit code, output, and its value when it has one."""

    code: int
    out: str
    err: str
    value: Any = None


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path / "home")


@pytest.fixture
def written(store: JobStore) -> Callable[[CapturedCode], JobFolder]:
    """Write a draft into a job's folder."""

    def write(draft: CapturedCode) -> JobFolder:
        folder = store.prepare(new_id())
        draft.write(folder)
        return folder

    return write


@pytest.fixture
def rank(written: Callable[[CapturedCode], JobFolder]) -> Callable[..., Ran]:
    """Run a draft in one real rank."""

    def run(draft: CapturedCode, *, check: bool = True) -> Ran:
        folder = written(draft)
        environment = {
            **os.environ,
            "DISTDL_JOB_ID": folder.id,
            "DISTDL_JOB_DIR": str(folder.path),
            "DISTDL_NONCE": "5eed",
            "DISTDL_RANK": "0",
            "DISTDL_WORLD_SIZE": "1",
            "DISTDL_LOCAL_RANK": "0",
            "DISTDL_LOCAL_SIZE": "1",
            "DISTDL_NODE_RANK": "0",
            "DISTDL_NODE_COUNT": "1",
            "DISTDL_HOST": "here",
        }
        done = subprocess.run(
            [sys.executable, "-m", "distdl_jupyter.worker"],
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        value = None
        if folder.result(0).exists():
            value = pickle.loads(folder.result(0).read_bytes())
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return Ran(done.returncode, done.stdout, done.stderr, value)

    return run


def payload_of(folder: JobFolder) -> dict[str, Any]:
    return json.loads((folder.path / "payload.json").read_text())
