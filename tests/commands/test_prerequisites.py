"""``make`` names each missing tool with its fix before it does any work."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import executable

REPOSITORY = Path(__file__).parents[2]

PathWithout = Callable[..., str]


@pytest.fixture
def path_without(tmp_path: Path) -> PathWithout:
    """Return a function giving a PATH with every tool of the real one except those that are hidden."""

    def build(*hidden: str) -> str:
        folder = tmp_path / "bin"
        folder.mkdir()
        for directory in os.environ["PATH"].split(os.pathsep):
            for tool in Path(directory).iterdir() if Path(directory).is_dir() else ():
                if tool.name not in hidden and not (folder / tool.name).exists():
                    (folder / tool.name).symlink_to(tool)
        return str(folder)

    return build


@pytest.fixture
def fresh_copy(tmp_path: Path) -> Path:
    """The files that ``make`` reads before it does anything, and no environment."""
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(REPOSITORY / "Makefile", copy)
    shutil.copy(REPOSITORY / "pyproject.toml", copy)
    shutil.copytree(REPOSITORY / ".ci", copy / ".ci")
    for folder in ("labextension", "distdl_jupyter"):
        (copy / folder).mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(REPOSITORY / "labextension" / name, copy / "labextension")
    return copy


def make(copy: Path, path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # These tests may run inside `make test` themselves.
    outer = ("CXX", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    environment = {**{name: value for name, value in os.environ.items() if name not in outer}, "PATH": path}
    return subprocess.run(
        ["make", *arguments], cwd=copy, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("command", ["demo", "test", "lab"])
def test_missing_tools_are_named_before_any_work(command: str, fresh_copy: Path, path_without: PathWithout) -> None:
    done = make(fresh_copy, path_without("g++", "c++", "clang++", "node", "npm"), command)
    assert done.returncode != 0
    lines = done.stderr.splitlines()
    expected = [
        "A C++ compiler is missing: install one with '",
        "Node.js is missing: install version 20 or newer with '",
        "npm is missing: install it with '",
    ]
    for line, begin in zip(lines[:3], expected, strict=True):
        assert line.startswith(begin)
        assert line.endswith("'.")
    assert all(line.startswith("make: ") for line in lines[3:])
    assert not (fresh_copy / ".venv").exists()


def test_an_old_python_is_named(fresh_copy: Path, path_without: PathWithout, tmp_path: Path) -> None:
    old = executable(tmp_path / "python3.8", "exit 1")
    done = make(fresh_copy, path_without(), "demo", f"PYTHON={old}")
    assert done.stderr.startswith("Python 3.11 or newer is missing: install it with '")
    assert "make PYTHON=" in done.stderr.splitlines()[0]


def test_an_old_node_is_named(fresh_copy: Path, path_without: PathWithout) -> None:
    path = path_without("node")
    executable(Path(path) / "node", '[ "$1" = -p ] && echo 16 || echo v16.20.2')
    said = make(fresh_copy, path, "demo").stderr
    assert said.startswith("Node.js v16.20.2 is too old: install version 20 or newer")


def test_windows_is_sent_to_wsl(fresh_copy: Path, path_without: PathWithout) -> None:
    path = path_without("uname")
    executable(Path(path) / "uname", "echo MINGW64_NT-10.0")
    assert "use WSL" in make(fresh_copy, path, "demo").stderr
