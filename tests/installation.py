"""The package as a user has it: the wheel, installed into an environment of its own, where no Node.js is found.

``wheel`` is the one wheel of this run (the one that ``make wheel`` built, when no source is newer). ``installed`` is an
environment whose big packages are links to those of the environment that runs the tests; the package itself comes from
the wheel, and nothing of the source tree can be imported there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_OUTPUTS = {ROOT / "distdl_jupyter" / "labextension", ROOT / "distdl_jupyter" / "widgets" / "static"}
_SKIPPED = {"__pycache__", "node_modules"}
#: Folders of an environment into which the wheel writes too; all others are linked as a whole.
_SHARED = [
    "", "bin", "etc", "etc/jupyter", "etc/jupyter/jupyter_server_config.d", "lib", "lib/python*",
    "lib/python*/site-packages", "share", "share/jupyter", "share/jupyter/labextensions",
]  # fmt: skip
_NODE = {"node", "nodejs", "npm", "npx", "yarn", "yarnpkg", "pnpm", "corepack"}


@dataclass(frozen=True)
class Installation:
    """An environment that has the wheel: its prefix, its Python, and a PATH without Node.js."""

    prefix: Path
    path: str

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment variables to start programs with: no settings of the user or of the tests."""
        own = {"HOME": str(self.prefix.parent), "PATH": self.path, "VIRTUAL_ENV": str(self.prefix)}
        return {**plain_environment(), **own, **more}

    def run(self, *command: str, **more: str) -> str:
        """Run a program of the environment outside the source tree; return what it printed, or fail with it."""
        done = subprocess.run(
            [str(self.prefix / "bin" / command[0]), *command[1:]],
            env=self.environment(**more), cwd=self.prefix, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel: the one in ``dist``, built anew when a source is newer."""
    return copied_wheel(tmp_path_factory.mktemp("wheel"))


def copied_wheel(folder: Path) -> Path:
    """Copy the wheel into a folder, built anew when a source is newer; return the copy."""
    with _alone():
        built = _built()
        if built is None or built.stat().st_mtime < max(file.stat().st_mtime for file in sources()):
            _build()
            built = _built()
        assert built is not None, "the build left no wheel in dist"
        return Path(shutil.copy2(built, folder))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An environment that has the wheel, and the tests' other packages."""
    home = tmp_path_factory.mktemp("installed")
    prefix = home / "environment"
    _mirror(Path(sys.prefix), prefix, own=_own_files())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(prefix / "bin" / "python")]
    _checked([*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)])
    return Installation(prefix, f"{prefix / 'bin'}{os.pathsep}{programs(home / 'programs')}")


def plain_environment() -> dict[str, str]:
    """Return this process's environment variables without those that set up Python, Jupyter or this package."""
    prefixes = ("JUPYTER", "JPY", "IPYTHON", "DISTDL", "PYTHON")
    return {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}


def programs(folder: Path, *, node: bool = False) -> Path:
    """Make a folder of all programs on PATH but those of this environment, and without ``node`` but Node.js and npm."""
    folder.mkdir()
    own = Path(sys.prefix) / "bin"
    left_out = set() if node else _NODE
    for place in map(Path, os.get_exec_path()):
        for program in place.iterdir() if place.is_dir() and place != own else ():
            if program.name not in left_out and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return folder


def sources() -> Iterator[Path]:
    """Yield every file that the wheel is made from: not from schema.ts, which the checks write."""
    yield from (ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE"))
    for top in (ROOT / "distdl_jupyter", ROOT / "labextension"):
        for folder, below, files in os.walk(top):
            below[:] = [name for name in below if name not in _SKIPPED and Path(folder, name) not in _OUTPUTS]
            yield from (Path(folder, name) for name in files if name != "schema.ts")


def front_end() -> Iterator[str]:
    """Yield the names of the files that a build of the front end made."""
    package = ROOT / "distdl_jupyter"
    for folder in (*_OUTPUTS, package / "locale"):
        yield from (str(file.relative_to(ROOT)) for file in folder.rglob("*") if file.is_file())


def _built() -> Path | None:
    return max((ROOT / "dist").glob("*.whl"), key=lambda file: file.stat().st_mtime, default=None)


def _build() -> None:
    _checked([str(ROOT / ".ci" / "wheel"), sys.executable], HATCH_JUPYTER_BUILDER_SKIP_NPM="1")


def _checked(command: list[str], **more: str) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **more}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-5000:]}"


@contextmanager
def _alone() -> Iterator[None]:
    """Build one after the other when several test runs share this checkout."""
    with Path(tempfile.gettempdir(), f"distdl-wheel-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _own_files() -> set[Path]:
    """Return what the editable install, and its links for JupyterLab, put into the environment of the tests."""
    prefix = Path(sys.prefix)
    own = distribution("distdl-jupyter")
    recorded = {Path(os.path.normpath(str(own.locate_file(file)))) for file in own.files or []}
    return {
        *recorded,
        *(file.parent for file in recorded if file.parent.suffix == ".dist-info"),
        prefix / "share/jupyter/labextensions/distdl-jupyter",
        prefix / "etc/jupyter/jupyter_server_config.d/distdl_jupyter.json",
    }


def _mirror(source: Path, target: Path, own: set[Path], inside: Path = Path()) -> None:
    """Link what lies in an environment into a new one, except what is in ``own``; scripts name the new Python."""
    target.mkdir()
    for entry in source.iterdir():
        place = inside / entry.name
        if entry in own:
            continue
        if any(place.match(pattern) and len(place.parts) == pattern.count("/") + 1 for pattern in _SHARED if pattern):
            _mirror(entry, target / entry.name, own, place)
        elif entry.is_symlink() and entry.readlink().parts[:1] != ("/",):
            (target / entry.name).symlink_to(entry.readlink())
        elif str(inside) == "bin" and entry.is_file() and _is_script(entry):
            (target / entry.name).write_bytes(_for(entry, target))
            (target / entry.name).chmod(0o755)
        else:
            (target / entry.name).symlink_to(entry.resolve() if entry.is_symlink() else entry)


def _is_script(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(2) == b"#!"


def _for(script: Path, folder: Path) -> bytes:
    """Return a script with the Python of another environment in its first line."""
    return script.read_bytes().replace(bytes(Path(sys.prefix) / "bin"), bytes(folder), 1)
