"""What a fresh interpreter says about torch and Horovod."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from distdl_jupyter.environment import horovod
from distdl_jupyter.environment.build import BuildFailed
from distdl_jupyter.environment.inspection import inspect_environment


def test_the_installed_horovod_imports_with_both_controllers() -> None:
    seen = inspect_environment()
    assert seen.horovod_error == ""
    assert seen.is_horovod_usable
    assert seen.horovod_version == metadata.version("horovod")
    assert seen.torch_version == metadata.version("torch")
    assert seen.controllers == ("Gloo", "MPI")


def test_looking_imports_no_torch_here() -> None:
    program = (
        "import sys\n"
        "from distdl_jupyter.environment.doctor import diagnose\n"
        "rows = {row.name: row.value for row in diagnose()}\n"
        "print(rows['torch'], 'torch' in sys.modules, 'horovod' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{metadata.version('torch')} (")
    assert done.stdout.endswith(") False False\n")


def test_a_broken_horovod_is_an_error_and_not_a_controller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '0.1'\n")
    (package / "torch.py").write_text("raise ImportError('libmpi.so.40: cannot open shared object file')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    seen = inspect_environment()
    assert not seen.is_horovod_usable
    assert seen.horovod_error == "ImportError: libmpi.so.40: cannot open shared object file"
    assert seen.controllers == ()
    assert seen.torch_version


@pytest.mark.parametrize(
    ("torch", "remedy"),
    [("import time\ntime.sleep(600)\n", "less busy"), ("import os\nos._exit(9)\n", "--force-reinstall torch")],
)
def test_an_import_of_torch_that_fails_has_its_remedy(
    torch: str, remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text(torch)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(horovod, "_IMPORT_SECONDS", 1.0)
    with pytest.raises(BuildFailed) as failed:
        horovod.install()
    assert failed.value.code == "torch-not-importable"
    assert remedy in failed.value.hint


def test_a_torch_in_the_current_folder_is_not_the_installed_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError\n")
    monkeypatch.chdir(tmp_path)
    assert inspect_environment().torch_error == ""
