"""The two commands name what is missing, each in one sentence with its remedy, before any work starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

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


def test_here_nothing_is_missing() -> None:
    done = subprocess.run([REPOSITORY / ".ci" / "prerequisites"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert Path(done.stdout.strip()).exists()


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
    old = tmp_path / "python3.8"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = make(fresh_copy, path_without(), "demo", f"PYTHON={old}")
    assert done.stderr.startswith("Python 3.11 or newer is missing: install it with '")
    assert "make PYTHON=" in done.stderr.splitlines()[0]


def test_an_old_node_is_named(fresh_copy: Path, path_without: PathWithout) -> None:
    path = path_without("node")
    node = Path(path) / "node"
    node.write_text('#!/bin/sh\n[ "$1" = -p ] && echo 16 || echo v16.20.2\n')
    node.chmod(0o755)
    said = make(fresh_copy, path, "demo").stderr
    assert said.startswith("Node.js v16.20.2 is too old: install version 20 or newer")


def test_windows_is_sent_to_wsl(fresh_copy: Path, path_without: PathWithout) -> None:
    path = path_without("uname")
    uname = Path(path) / "uname"
    uname.write_text("#!/bin/sh\necho MINGW64_NT-10.0\n")
    uname.chmod(0o755)
    assert "use WSL" in make(fresh_copy, path, "demo").stderr


def step(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [REPOSITORY / ".ci" / "step", "Doing it", *command], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_step_that_works_is_quiet() -> None:
    done = step("sh", "-c", "echo noise; echo more >&2")
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["Doing it", "  0:00"] or done.stdout.splitlines() == ["Doing it", "  0:01"]
    assert done.stderr == ""


def test_a_step_that_fails_shows_what_it_printed_and_fails() -> None:
    done = step("sh", "-c", "echo reason >&2; exit 7")
    assert done.returncode == 7
    assert done.stderr == "reason\nFailed: Doing it (exit code 7); the lines above say why.\n"


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def ask_for_packages(copy: Path, path: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": path}
    return subprocess.run(
        [".ci/test-packages"], cwd=copy, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def stand_in(path: str, name: str, script: str) -> None:
    tool = Path(path) / name
    tool.unlink(missing_ok=True)
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


def test_without_root_it_says_what_is_missing_and_which_tests_that_leaves_out(
    fresh_copy: Path, path_without: PathWithout
) -> None:
    path = path_without(*BROWSERS, "id")
    stand_in(path, "id", "echo 1000")
    done = ask_for_packages(fresh_copy, path)
    assert done.returncode == 0
    assert "Missing: chromium" in done.stdout
    assert 'tests marked "browser" are left out' in done.stdout
    assert '"apt-get install chromium"' in done.stdout


def test_root_on_debian_gets_the_packages_after_an_update(
    fresh_copy: Path, path_without: PathWithout, tmp_path: Path
) -> None:
    path = path_without(*BROWSERS, "id", "apt-get")
    stand_in(path, "id", "echo 0")
    stand_in(path, "apt-get", f'echo "$@" >>{tmp_path}/asked')
    assert ask_for_packages(fresh_copy, path).returncode == 0
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[0] for line in asked] == ["update", "install"]
    assert asked[1].endswith(" chromium")


def test_a_failing_installation_is_no_success(fresh_copy: Path, path_without: PathWithout) -> None:
    path = path_without(*BROWSERS, "id", "apt-get")
    stand_in(path, "id", "echo 0")
    stand_in(path, "apt-get", "echo no network >&2; exit 100")
    done = ask_for_packages(fresh_copy, path)
    assert done.returncode != 0
    assert "no network" in done.stderr


def test_nothing_is_done_when_a_browser_is_here(fresh_copy: Path, path_without: PathWithout) -> None:
    path = path_without(*BROWSERS, "apt-get")
    stand_in(path, "chromium", "exit 0")
    stand_in(path, "apt-get", "exit 1")
    done = ask_for_packages(fresh_copy, path)
    assert (done.returncode, done.stdout) == (0, "")
