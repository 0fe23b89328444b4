"""What a build with NCCL finds on a machine with GPUs, in folders laid out as CUDA's toolkit and NCCL's wheel are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from distdl_jupyter.environment import toolchain
from distdl_jupyter.environment.build import Recipe, get_build_variables
from distdl_jupyter.environment.inspection import Inspection
from distdl_jupyter.environment.toolchain import Cuda, Prerequisite, find_cuda
from tests.processes import executable

GPUS = Inspection(
    torch_version="2.13.0+cu130", torch_cuda="13.0", gpu_names=("NVIDIA H200",), gpu_capabilities=("80", "90")
)


def toolkit(folder: Path, version: str) -> Path:
    executable(folder / "bin" / "nvcc", f"echo 'Cuda compilation tools, release {version}, V{version}.48'")
    (folder / "include").mkdir()
    (folder / "include" / "cuda_runtime.h").touch()
    return folder


def nccl_wheel(site: Path) -> None:
    record = site / "nvidia_nccl_cu13-2.28.9.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-nccl-cu13\nVersion: 2.28.9\n")
    names = ("nvidia/nccl/include/nccl.h", "nvidia/nccl/lib/libnccl.so.2")
    (record / "RECORD").write_text("".join(f"{name},,\n" for name in names))
    for name in names:
        (site / name).parent.mkdir(parents=True)
        (site / name).touch()


@pytest.mark.parametrize(
    "inspection",
    [Inspection(torch_version="2.13.0+cpu"), Inspection(torch_version="2.13.0+cu130", torch_cuda="13.0")],
    ids=["torch for CPUs", "no GPU"],
)
def test_nothing_is_built_or_missing_without_a_gpu(inspection: Inspection) -> None:
    assert find_cuda(inspection) is None


def test_toolkit_and_nccl_of_a_wheel_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "cuda", "13.0")))
    nccl_wheel(tmp_path / "site")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    parts = find_cuda(GPUS)
    assert isinstance(parts, Cuda)
    assert parts.label == "nccl-sm80-sm90"
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    variables = parts.prepare_variables(workspace)
    assert variables["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert variables["HOROVOD_BUILD_CUDA_CC_LIST"] == "80,90"
    home = Path(variables["HOROVOD_NCCL_HOME"])
    assert (home / "include" / "nccl.h").exists()
    assert (home / "lib" / "libnccl.so").resolve().name == "libnccl.so.2"


def test_a_script_that_calls_nvcc_is_not_taken_for_the_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = executable(tmp_path / "bin" / "nvcc", 'exec /elsewhere/bin/nvcc "$@"')
    monkeypatch.setenv("PATH", str(script.parent))
    monkeypatch.setattr(toolchain, "_CUDA_HOME", toolkit(tmp_path / "cuda", "13.0"))
    nccl_wheel(tmp_path / "site")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    parts = find_cuda(GPUS)
    assert isinstance(parts, Cuda)
    assert parts.home == tmp_path / "cuda"


def test_nccl_of_the_system_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = toolkit(tmp_path / "cuda", "13.0")
    for name in ("include/nccl.h", "lib64/libnccl.so.2"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).touch()
    monkeypatch.setenv("CUDA_HOME", str(home))
    parts = find_cuda(GPUS)
    assert isinstance(parts, Cuda)
    assert parts.nccl_library == home / "lib64" / "libnccl.so.2"


@pytest.mark.parametrize(
    ("version", "what", "remedy"),
    [
        ("", "nvcc was not found", "Install the CUDA 13.0 toolkit"),
        ("12.4", "does not match torch's CUDA 13.0", "Install the CUDA 13.0 toolkit"),
        ("13.0", "nccl.h and libnccl were not found", "pip install nvidia-nccl-cu13"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, what: str, remedy: str
) -> None:
    monkeypatch.setattr(toolchain, "_CUDA_HOME", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "cuda", version) if version else tmp_path))
    missing = find_cuda(GPUS)
    assert isinstance(missing, Prerequisite)
    assert what in missing.problem
    assert remedy in missing.remedy


def test_build_variables_of_the_user_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_NCCL_HOME", "/opt/nccl")
    parts = Cuda(tmp_path, tmp_path / "nccl.h", tmp_path / "libnccl.so.2", ("90",))
    variables = get_build_variables(Recipe(GPUS, cuda=parts), tmp_path)
    assert variables["HOROVOD_NCCL_HOME"] == "/opt/nccl"
    assert variables["HOROVOD_GPU_OPERATIONS"] == "NCCL"
