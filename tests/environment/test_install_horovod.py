"""Installing Horovod: kept when it fits, taken from the cache in another environment, never built twice."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from distdl_jupyter import cli
from distdl_jupyter.core.errors import PluginUnavailable
from distdl_jupyter.environment import horovod
from distdl_jupyter.environment.build import BuildFailed, Recipe, find_wheel, store_wheel
from distdl_jupyter.environment.horovod import install
from distdl_jupyter.environment.inspection import Inspection, inspect_environment
from distdl_jupyter.environment.toolchain import Cuda, Mpi, find_mpi

REPOSITORY = Path(__file__).parents[2]
INSTALL = ("-m", "distdl_jupyter.cli", "install", "horovod")


WORKS = Inspection(torch_version="2.13.0", horovod_version="0.28.1", has_gloo=True)
MPI = Mpi("openmpi", "4.1.4", Path("/usr/bin"))
CUDA = Cuda(Path("/usr/local/cuda"), Path("nccl.h"), Path("libnccl.so"), ("90",))


@pytest.mark.parametrize(
    ("recipe", "is_current"),
    [
        (Recipe(WORKS), True),
        (Recipe(WORKS, MPI), False),
        (Recipe(WORKS, cuda=CUDA), False),
        (Recipe(WORKS, tensorflow="2.21.0"), False),
        (Recipe(dataclasses.replace(WORKS, has_mpi=True, has_nccl=True, has_tensorflow=True), MPI, CUDA, "2.21"), True),
        (Recipe(dataclasses.replace(WORKS, has_tensorflow=True, tensorflow_error="gone"), tensorflow="2.21.0"), False),
        (Recipe(dataclasses.replace(WORKS, has_gloo=False)), False),
        (Recipe(dataclasses.replace(WORKS, horovod_error="undefined symbol")), False),
    ],
)
def test_a_horovod_of_others_is_kept_where_it_has_all_parts(
    recipe: Recipe, is_current: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert horovod._is_current(recipe) is is_current


def test_a_horovod_of_ours_is_kept_for_its_own_key_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = Recipe(dataclasses.replace(WORKS, has_mpi=True), MPI)
    record = tmp_path / "horovod-0.28.1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    wheel = tmp_path / "wheels" / recipe.key / "horovod-0.28.1.whl"
    (record / "direct_url.json").write_text(json.dumps({"url": wheel.as_uri()}))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert horovod._is_current(recipe)
    assert not horovod._is_current(dataclasses.replace(recipe, mpi=None))


def test_a_cached_wheel_that_does_not_work_is_forgotten_and_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def install_wheel(wheel: Path, _recipe: Recipe, _progress: object) -> Inspection:
        if wheel.name != "new.whl":
            raise BuildFailed("No.", hint="Build it.")
        return WORKS

    recipe, texts = Recipe(Inspection(torch_version="2.13.0")), list[str]()
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path))
    monkeypatch.setattr(horovod, "_install_wheel", install_wheel)
    monkeypatch.setattr(horovod, "build_wheel", lambda _recipe, _progress: tmp_path / "new.whl")
    (tmp_path / "old.whl").touch()
    store_wheel(recipe.key, tmp_path / "old.whl")
    assert horovod._ensure_installed(recipe, texts.append, force=False) == ("was built and installed", WORKS)
    assert find_wheel(recipe.key) is None
    assert texts == ["installing the cached wheel", "the cached wheel does not work here; rebuilding"]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {"force": False, "mpi": True, "tensorflow": None}),
        (["--force", "--no-mpi"], {"force": True, "mpi": False, "tensorflow": None}),
        (["--framework", "torch"], {"force": False, "mpi": True, "tensorflow": False}),
        (["--framework", "torch,tensorflow"], {"force": False, "mpi": True, "tensorflow": True}),
    ],
)
def test_the_command_passes_its_options(
    words: list[str], options: dict[str, object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[dict[str, object]] = []

    def install(_progress: object, **options: object) -> str:
        calls.append(options)
        return "Horovod works."

    monkeypatch.setattr(horovod, "install", install)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert cli.main(["install", "horovod", *words]) == 0
    assert capsys.readouterr() == ("Horovod works.\n", "")
    assert calls == [options]


@pytest.mark.parametrize("error", [PluginUnavailable("No g++.", hint="Get it."), PermissionError("No g++. Get it.")])
def test_the_command_says_why_it_failed(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install(_progress: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(horovod, "install", install)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert cli.main(["install", "horovod"]) == 1
    assert capsys.readouterr() == ("", "No g++. Get it.\n")


def test_an_unknown_framework_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["install", "horovod", "--framework", "mxnet"]) == 2
    assert "torch,tensorflow" in capsys.readouterr().err


@pytest.fixture(scope="module")
def cached_wheel() -> Path:
    """The wheel for this environment in the user's cache; built now if somebody emptied the cache."""
    key = Recipe(inspect_environment(), find_mpi()).key
    if find_wheel(key) is None:
        install(force=True)
    wheel = find_wheel(key)
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


def run(python: Path, *arguments: str, timeout: float = 250) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_the_built_library_looks_nowhere_in_the_environment_that_built_it(cached_wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(cached_wheel) as archive:
        name = next(name for name in archive.namelist() if "/mpi_lib_v2." in name)
        library = archive.extract(name, tmp_path)
    command = ["readelf", "-d"] if shutil.which("readelf") else ["otool", "-l"]
    dynamic = subprocess.run([*command, library], capture_output=True, text=True, check=True).stdout
    assert "/../../../.." in dynamic
    assert sys.prefix not in dynamic


KERAS = """
import os
import sys
sys.path.insert(0, {repository!r})
from tests.compat import test_horovod_keras as tests
(alone,) = tests.train(1, backend="tensorflow", begin=tests.BEGIN)
for controller in ("horovod-gloo", "horovod-mpi"):
    first, second = tests.train(2, backend="tensorflow", begin=tests.BEGIN, controller=controller)
    assert first["backend"] == "tensorflow"
    assert first["weights"] == second["weights"]
    tests.close(first["weights"], alone["weights"])
print("same weights")
"""


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_horovod_is_built_for_tensorflow_too_and_trains_with_it(other_environment: Path) -> None:
    """Takes minutes where this wheel was never built; it is kept in the user's cache as the other one."""
    python = other_environment / "bin" / "python"
    done = run(python, *INSTALL, "--framework", "torch,tensorflow", timeout=1200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Horovod 0.28.1 for torch and TensorFlow with Gloo and MPI was ")
    again = run(python, *INSTALL)
    assert "for torch and TensorFlow with Gloo and MPI is already installed and works" in again.stdout
    looked = run(python, "-m", "distdl_jupyter.cli", "doctor").stdout
    assert re.search(r"Horovod +.*0\.28\.1 for torch and TensorFlow", looked), looked
    trained = run(python, "-c", KERAS.format(repository=str(REPOSITORY)), timeout=600)
    assert trained.stdout.rstrip().endswith("same weights"), trained.stdout + trained.stderr
