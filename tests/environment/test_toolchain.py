"""Prerequisites: each one that is missing is named in one sentence with its remedy, before any work."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from distdl_jupyter.core.errors import PluginUnavailable
from distdl_jupyter.environment import toolchain


def path_without(tmp_path: Path, *hidden: str) -> str:
    """Return a PATH that has every tool of the real one except those whose names are ``hidden``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for directory in reversed(os.environ["PATH"].split(os.pathsep)):
        for tool in Path(directory).iterdir() if Path(directory).is_dir() else ():
            if tool.name not in hidden:
                link = folder / tool.name
                link.unlink(missing_ok=True)
                link.symlink_to(tool)
    return str(folder)


def test_everything_is_here() -> None:
    assert toolchain.find_missing_for_install() == []
    assert toolchain.find_missing_for_build() == []
    toolchain.require([])


def test_a_missing_compiler_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", path_without(tmp_path, "g++", "c++", "clang++"))
    (missing,) = toolchain.find_missing_for_build()
    assert missing.problem == "Building Horovod needs a C++ compiler, but none is on PATH."
    assert "install" in missing.remedy


def test_a_compiler_that_cannot_compile_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    false = shutil.which("false")
    assert false is not None
    monkeypatch.setenv("CXX", false)
    (missing,) = toolchain.find_missing_for_build()
    assert false in missing.problem


def test_a_compiler_with_a_launcher_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = toolchain.find_compiler()
    monkeypatch.setenv("CXX", f"env {compiler}")
    assert toolchain.find_missing_for_build() == []


def test_missing_make_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", path_without(tmp_path, "make"))
    (missing,) = toolchain.find_missing_for_build()
    assert "`make`" in missing.problem
    assert "install" in missing.remedy


def test_missing_headers_and_a_full_disk_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "not" / "yet"))
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=10**9))
    headers, disk = toolchain.find_missing_for_build()
    assert "Python.h" in headers.problem
    assert "install" in headers.remedy
    assert f"1.5 GB of disk space, but {tmp_path} has less" in disk.problem
    assert "DISTDL_CACHE" in disk.remedy


def test_what_any_horovod_needs_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    finder = SimpleNamespace(PathFinder=SimpleNamespace(find_spec=lambda _name: None))
    monkeypatch.setattr(toolchain, "machinery", finder)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path))
    monkeypatch.setattr(toolchain, "find_version", lambda *_names: "")
    pip, system, torch = toolchain.find_missing_for_install()
    assert "has no pip" in pip.problem
    assert "ensurepip" in pip.remedy
    assert "belongs to the operating system" in system.problem
    assert "python3 -m venv" in system.remedy
    assert "torch is not installed" in torch.problem
    assert "pip install 'distdl-jupyter[torch]'" in torch.remedy
    with pytest.raises(PluginUnavailable, match="TensorFlow is not installed") as raised:
        toolchain.require_tensorflow()
    assert "pip install 'distdl-jupyter[tensorflow]'" in raised.value.hint


def test_all_that_is_missing_is_said_at_once() -> None:
    missing = [toolchain.Prerequisite("No a.", "Get a."), toolchain.Prerequisite("No b.", "Get b.")]
    with pytest.raises(PluginUnavailable) as raised:
        toolchain.require(missing)
    assert str(raised.value) == "No a. Get a.\nNo b. Get b."
