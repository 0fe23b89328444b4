"""Installing Horovod: kept when it fits, taken from the cache in another environment, never built twice."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from distdl_jupyter.environment.cache import WheelCache
from distdl_jupyter.environment.horovod import build_key, install
from distdl_jupyter.environment.inspection import Inspection, inspect_environment
from distdl_jupyter.environment.mpi import find_mpi

REPOSITORY = Path(__file__).parents[2]


def test_a_second_install_is_quick_and_says_so() -> None:
    said: list[str] = []
    installed = install(said.append)
    assert installed.how == "kept"
    assert installed.controllers == ("gloo", "mpi")
    assert "already installed and works" in str(installed)
    assert said == ["looking at torch and Horovod"]


def test_the_key_follows_torch_and_mpi() -> None:
    seen = Inspection(torch_version="2.13.0+cpu")
    mpi = find_mpi()
    key = build_key(seen, mpi)
    assert mpi is not None
    assert key.mpi == mpi.label
    assert build_key(seen, None) == dataclasses.replace(key, mpi="no-mpi")
    assert build_key(Inspection(torch_version="2.14.0"), mpi).slug != key.slug


@pytest.fixture(scope="module")
def cached_wheel() -> Path:
    """The wheel for this environment in the user's cache; built now if somebody emptied the cache."""
    key = build_key(inspect_environment(), find_mpi())
    if WheelCache().find(key) is None:
        install(force=True)
    wheel = WheelCache().find(key)
    assert wheel is not None
    return wheel


@pytest.fixture
def other_environment(tmp_path: Path) -> Path:
    """A virtual environment elsewhere with everything that this one has, except Horovod."""
    folder = tmp_path / "other"
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    borrow(Path(sysconfig.get_path("purelib")), site)
    borrow(Path(sys.prefix) / "bin", folder / "bin")
    borrow(Path(sys.prefix) / "lib", folder / "lib")
    return folder


def borrow(source: Path, target: Path) -> None:
    for entry in source.iterdir():
        if "horovod" not in entry.name and not (target / entry.name).exists():
            (target / entry.name).symlink_to(entry)


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.timeout(1500)
def test_another_environment_takes_the_wheel_built_earlier(cached_wheel: Path, other_environment: Path) -> None:
    before = cached_wheel.stat().st_mtime_ns
    python = other_environment / "bin" / "python"
    assert "No module named 'horovod'" in run(python, "-c", "import horovod").stderr
    done = run(python, "-m", "distdl_jupyter.environment.horovod")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"Horovod 0\.28\.1 with Gloo and MPI is installed, from the wheel built earlier \(.*\)\.\n", done.stdout
    )
    assert "compiling" not in done.stderr
    assert cached_wheel.stat().st_mtime_ns == before
    where = run(python, "-c", "import horovod.torch as hvd; print(hvd.__file__, hvd.gloo_built(), hvd.mpi_built())")
    assert where.stdout.startswith(str(other_environment)), where.stderr
    assert where.stdout.endswith("True True\n")
    again = run(python, "-m", "distdl_jupyter.environment.horovod")
    assert "is already installed and works" in again.stdout


@pytest.mark.timeout(1500)
def test_the_built_library_looks_nowhere_in_the_environment_that_built_it(
    cached_wheel: Path, tmp_path: Path, dynamic_section: Callable[[Path], str]
) -> None:
    with zipfile.ZipFile(cached_wheel) as archive:
        name = next(name for name in archive.namelist() if "/mpi_lib_v2." in name)
        dynamic = dynamic_section(Path(archive.extract(name, tmp_path)))
    assert "/../../../.." in dynamic
    assert sys.prefix not in dynamic
