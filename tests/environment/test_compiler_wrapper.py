"""The compiler's stand-in, run for real."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from distdl_jupyter.environment.compiler_wrapper import wrapper_script
from distdl_jupyter.environment.toolchain import compiler_command

HERE = "-Wl,-rpath,$ORIGIN/../../../.."
TORCH = "-Wl,-rpath,$ORIGIN/../../torch/lib"
TENSORFLOW = "-Wl,-rpath,$ORIGIN/../../tensorflow"


def run_wrapper(tmp_path: Path, *arguments: str, keep_rpaths: bool = False) -> list[str]:
    """Return the arguments that the real compiler would get."""
    compiler = tmp_path / "my compiler"
    compiler.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    wrapper = tmp_path / "cxx"
    wrapper.write_text(wrapper_script(f"'{compiler}' --first", keep_rpaths=keep_rpaths, system="Linux"))
    for script in (compiler, wrapper):
        script.chmod(0o755)
    done = subprocess.run([str(wrapper), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("old", ["-std=c++11", "-std=c++14", "-std=gnu++11", "-std=gnu++14"])
def test_old_language_levels_become_17(tmp_path: Path, old: str) -> None:
    assert run_wrapper(tmp_path, old, "-c", "a.cc") == ["--first", "-std=c++17", "-c", "a.cc"]


@pytest.mark.parametrize("new", ["-std=c++17", "-std=c++20", "-std=gnu++17"])
def test_newer_language_levels_stay(tmp_path: Path, new: str) -> None:
    assert run_wrapper(tmp_path, new, "-c", "a.cc") == ["--first", new, "-c", "a.cc"]


def test_other_arguments_stay_as_they_are(tmp_path: Path) -> None:
    odd = ['-DNAME="two words"', "-I/a path", "", "*", "$HOME", "-O3", "-gdwarf-4", "-c", "a.cc"]
    assert run_wrapper(tmp_path, *odd) == ["--first", *odd]


def test_a_unit_without_its_headers_becomes_an_empty_one(tmp_path: Path) -> None:
    got = run_wrapper(tmp_path, "-std=c++14", "-c", "/build/horovod/tensorflow/xla_mpi_ops.cc", "-o", "a.o")
    assert got == ["--first", "-std=c++17", "-c", "-x", "c++", "/dev/null", "-o", "a.o"]


def test_debug_information_is_left_out(tmp_path: Path) -> None:
    assert "-g" not in run_wrapper(tmp_path, "-O3", "-g", "-c", "a.cc")


def test_linking_finds_libraries_relative_to_the_extension(tmp_path: Path) -> None:
    wanted = ["-Wl,-rpath", "-Wl,/venv/lib", "-Wl,-rpath,/venv/torch/lib:/x", "-Wl,--enable-new-dtags", "-lmpi"]
    assert run_wrapper(tmp_path, "-shared", "a.o", *wanted) == [
        "--first", "-shared", "a.o", "-Wl,--enable-new-dtags", "-lmpi", HERE, TORCH, TENSORFLOW,
    ]  # fmt: skip


def test_a_system_mpi_keeps_its_path(tmp_path: Path) -> None:
    got = run_wrapper(tmp_path, "-shared", "a.o", "-Wl,-rpath,/opt/mpi/lib", keep_rpaths=True)
    assert got == ["--first", "-shared", "a.o", "-Wl,-rpath,/opt/mpi/lib", HERE, TORCH, TENSORFLOW]


def test_compiling_gets_no_link_options(tmp_path: Path) -> None:
    assert run_wrapper(tmp_path, "-c", "a.cc", "-o", "a.o") == ["--first", "-c", "a.cc", "-o", "a.o"]


def test_macos_has_its_own_word_for_here() -> None:
    script = wrapper_script("clang++", keep_rpaths=False, system="Darwin")
    assert "@loader_path/../../../.." in script
    assert "$ORIGIN" not in script


def test_the_real_compiler_builds_a_real_library_through_it(
    tmp_path: Path, dynamic_section: Callable[[Path], str]
) -> None:
    compiler = compiler_command()
    assert compiler is not None
    wrapper = tmp_path / "cxx"
    wrapper.write_text(wrapper_script(compiler, keep_rpaths=False))
    wrapper.chmod(0o755)
    (tmp_path / "a.cc").write_text("#include <string_view>\nint length(std::string_view s) { return s.size(); }\n")
    build = [str(wrapper), "-std=c++14", "-g", "-fPIC", "-shared", "-Wl,-rpath,/nowhere", "a.cc", "-o", "liba.so"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    dynamic = dynamic_section(tmp_path / "liba.so")
    assert "/../../torch/lib" in dynamic
    assert "/nowhere" not in dynamic
