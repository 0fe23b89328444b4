"""The import hook never breaks an import, and a rank imports no framework."""

import importlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.hooks import imports
from tests.worker import ranks


@pytest.fixture
def finder(tmp_path, monkeypatch):
    """A finder in place, and a folder of modules on the path; both are gone afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    found = imports.install()
    yield found
    sys.meta_path.remove(found)
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_failing_hook_is_a_note_and_not_an_error(finder, tmp_path, monkeypatch):
    notes = []
    monkeypatch.setattr(channel, "notify", lambda *note: notes.append(note))
    (tmp_path / "framework_b.py").write_text("value = 1\n")
    finder.hook("framework_b", lambda module: module.missing)
    assert importlib.import_module("framework_b").value == 1
    ((level, text, code),) = notes
    assert (level, code) == ("warning", "hook-failed")
    assert text.startswith("Metrics may be incomplete: AttributeError was raised after the import of framework_b")


def test_a_module_that_fails_to_import_can_be_imported_later(finder, tmp_path):
    seen = []
    (tmp_path / "framework_c.py").write_text("raise RuntimeError('broken')\n")
    finder.hook("framework_c", seen.append)
    with pytest.raises(RuntimeError, match="broken"):
        importlib.import_module("framework_c")
    assert seen == []
    (tmp_path / "framework_c.py").write_text("value = 12345\n")
    importlib.invalidate_caches()
    importlib.import_module("framework_c")
    assert len(seen) == 1


def test_a_rank_imports_no_framework_by_itself(folder):
    ended = ranks.run(folder.cell("""
import sys
heavy = {"torch", "numpy", "keras", "lightning", "transformers", "horovod", "tensorboard", "pandas", "cloudpickle"}
sorted({name.split(".")[0] for name in sys.modules} & heavy), "distdl_jupyter.core" in sys.modules
"""))  # fmt: skip
    assert ended.code == 0, ended.err
    assert folder.value() == ([], False)


def test_the_folder_works_with_permissions_alone_and_the_standard_library(folder, tmp_path):
    """As on a host to which nothing else was copied."""
    home, worker = tmp_path / "elsewhere", Path(imports.__file__).parents[1]
    shutil.copytree(worker, home / "distdl_jupyter" / "worker")
    shutil.copy(worker.parent / "permissions.py", home / "distdl_jupyter")
    folder.cell("""
from distdl_jupyter.worker.report import log
log(loss=0.5)
import distdl_jupyter.worker
{'file': distdl_jupyter.worker.__file__}
""")
    process = subprocess.run(
        [sys.executable, "-S", "-P", "-m", "distdl_jupyter.worker"],
        env=ranks.environment(folder, PYTHONPATH=str(home)),
        cwd=folder.path,
        capture_output=True,
        check=False,
    )
    ended = ranks.Ended(process.returncode, process.stdout, process.stderr)
    assert ended.code == 0, ended.err
    assert ended.metric("loss") == [(0, 0.5)]
    assert folder.value()["file"].startswith(str(home))
