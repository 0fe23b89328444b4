"""The two commands name what is missing, each in one sentence with its remedy, before any work starts."""

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
@pytest.mark.parametrize(
    ("hidden", "sentence"),
    [
        (("g++", "c++", "clang++"), "A C++ compiler is missing: install one with '"),
        (("node",), "Node.js is missing: install version 20 or newer with '"),
        (("npm",), "npm is missing: install it with '"),
    ],
)
def test_a_missing_tool_is_named_before_any_work(
    command: str, hidden: tuple[str, ...], sentence: str, fresh_copy: Path, path_without: PathWithout
) -> None:
    done = make(fresh_copy, path_without(*hidden), command)
    assert done.returncode != 0
    said = done.stderr.splitlines()
    assert said[0].startswith(sentence)
    assert said[0].endswith("'.")
    assert all(line.startswith("make: ") for line in said[1:])
    assert not (fresh_copy / ".venv").exists()


def test_all_that_is_missing_is_said_at_once(fresh_copy: Path, path_without: PathWithout) -> None:
    said = make(fresh_copy, path_without("g++", "c++", "clang++", "node", "npm"), "demo").stderr.splitlines()
    assert [line.split(" is missing")[0] for line in said[:3]] == ["A C++ compiler", "Node.js", "npm"]


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
