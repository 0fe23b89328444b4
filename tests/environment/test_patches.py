"""The edits of Horovod's source fit the published source and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdl_jupyter.environment import build
from distdl_jupyter.environment.build import BuildFailed, apply_patches


def source(folder: Path, *names: build.Patch) -> Path:
    for patch in names:
        file = folder / patch.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((file.read_text() if file.exists() else "") + f"first\n{patch.before}\nlast\n")
    return folder


@pytest.mark.parametrize("system_mpi", [False, True])
def test_each_text_is_replaced_once(tmp_path: Path, system_mpi: bool) -> None:
    folder = source(tmp_path, *build.PATCHES, build.SYSTEM_MPI_PATCH)
    apply_patches(folder, system_mpi=system_mpi)
    text = (folder / "CMakeLists.txt").read_text()
    assert "CXX_STANDARD 17)" in text
    assert " -include string -include cstdint" in text
    assert "CMAKE_INSTALL_RPATH" in text
    assert ("IN LISTS MPI_LIBRARIES" in text) is system_mpi
    assert "= delete;" in (folder / "third_party/flatbuffers/include/flatbuffers/stl_emulation.h").read_text()
    assert "find_package(CUDAToolkit QUIET)" in (folder / "cmake/Modules/FindPytorch.cmake").read_text()


def test_a_source_that_is_another_one_is_refused(tmp_path: Path) -> None:
    folder = source(tmp_path, *build.PATCHES[1:])
    (folder / "CMakeLists.txt").write_text("project(other)\n")
    with pytest.raises(BuildFailed) as raised:
        apply_patches(folder, system_mpi=False)
    assert raised.value.code == "horovod-source-changed"
    assert "CMakeLists.txt" in raised.value.message
