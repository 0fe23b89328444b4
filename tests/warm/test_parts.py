"""The parts of warm starts, without a template."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from distdl_jupyter.warm import fork, preload
from distdl_jupyter.warm import start as warm_start
from distdl_jupyter.warm.fork import Forker
from distdl_jupyter.warm.preload import Recorder


def test_reads_of_the_environment_are_recorded(monkeypatch):
    monkeypatch.setenv("WAS_THERE", "1")
    with Recorder() as recorder:
        os.environ.get("WAS_THERE")
        os.getenv("WAS_NOT_THERE")
        _ = "ASKED_FOR" in os.environ
        os.environ.setdefault("SET_BY_DEFAULT", "2")
    monkeypatch.delenv("SET_BY_DEFAULT")
    assert {"WAS_THERE", "WAS_NOT_THERE", "ASKED_FOR", "SET_BY_DEFAULT"} <= recorder.read_names
    assert recorder.new_values == {"SET_BY_DEFAULT": "2"}
    assert recorder.unforkable_reads == []
    os.environ.get("AFTERWARDS")
    with recorder:
        dict(os.environ)
    assert recorder.unforkable_reads[0][0] == "the whole environment"
    assert "AFTERWARDS" not in recorder.read_names


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "MASTER_PORT", "PATH"])
def test_a_variable_of_each_rank_or_shell_makes_a_module_unforkable(name):
    with Recorder() as recorder:
        os.environ.get(name)
    assert [variable for variable, _importing in recorder.unforkable_reads] == [name]
    assert name not in recorder.read_names


def test_torchs_own_settings_are_not_variables_of_ranks():
    with Recorder() as recorder:
        os.environ.get("TORCH_DISTRIBUTED_COMPILE_ON_ONE_RANK")
    assert recorder.unforkable_reads == []


@pytest.mark.parametrize(
    ("template", "job", "read", "name"),
    [
        ({"A": "1"}, {"A": "2"}, set(), ""),
        ({"A": "1"}, {"A": "2"}, {"A"}, "A"),
        ({}, {"A": "2"}, {"A"}, "A"),
        ({"A": "2"}, {}, {"A"}, "A"),
        ({}, {"LD_PRELOAD": "x"}, set(), "LD_PRELOAD"),
        ({}, {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "1", "PYTHONUNBUFFERED": "1"}, set(), ""),
        ({}, {"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS"}, "OMP_NUM_THREADS"),
        ({}, {"NETWORKX_BACKEND_PRIORITY": "cugraph"}, set(), "NETWORKX_BACKEND_PRIORITY"),
        ({"LANG": "C"}, {"LANG": "ja_JP.UTF-8"}, set(), "LANG"),
        ({}, {"PYTHONHASHSEED": "0"}, set(), "PYTHONHASHSEED"),
        ({"TERM": "dumb"}, {"TERM": "xterm-color", "COLUMNS": "80"}, {"TERM", "COLUMNS"}, ""),
    ],
)
def test_a_variable_matters_where_an_import_may_have_seen_it(template, job, read, name):
    assert preload.find_difference(template, job, read) == name


def test_what_imports_set_in_the_template_matters_where_the_submitter_has_another_value():
    recorder = Recorder()
    recorder.new_values = {"KMP_OF": "2", "KMP_SET": "True"}
    own = Forker(None, {"KMP_OF": "1"}, recorder)
    given = [{"KMP_OF": "1"}, {"KMP_OF": "2", "KMP_SET": "True"}, {"KMP_OF": "1", "KMP_SET": "False"}, {"KMP_OF": "3"}]
    reasons = [own.find_difference(environment) for environment in given]
    assert reasons[:2] == ["", ""]
    for reason, name in zip(reasons[2:], ("KMP_SET", "KMP_OF"), strict=True):
        assert reason == f"the value of the environment variable {name} differs from that of the template"


def test_a_changed_file_or_folder_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    file = tmp_path / "one.py"
    file.write_text("1")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    loaded = preload.Preloader()
    loaded.stamp([str(file)])
    assert loaded.find_change() == ""
    (tmp_path / "site" / "new.py").write_text("")
    assert loaded.find_change() == str(tmp_path / "site")
    (tmp_path / "site" / "new.py").unlink()
    os.utime(tmp_path / "site", ns=(0, 0))
    file.write_text("12")
    assert loaded.find_change() in (str(file), str(tmp_path / "site"))


def test_the_history_has_the_last_imports_without_unforkable_ones(tmp_path):
    own = preload.ImportHistory(tmp_path / "learned.json")
    own.add(f"old{number}" for number in range(10_000))
    own.add(["new", "common", "tensorflow.python", "keras"])
    again = preload.ImportHistory(tmp_path / "learned.json")
    assert again.list_names()[:3] == ["new", "common", "old0"]
    assert "old9999" not in again.list_names()
    assert not {"tensorflow.python", "keras"} & set(again.list_names())
    again.exclude(preload.UnforkableModule("common", "starts a thread when imported"))
    assert "common" not in preload.ImportHistory(tmp_path / "learned.json").list_names()
    again.add(["package.part", "packages"])
    again.exclude(preload.UnforkableModule("package", "reads the whole environment when imported"))
    assert again.list_names()[0] == "packages"
    (tmp_path / "learned.json").write_text("[")
    assert preload.ImportHistory(tmp_path / "learned.json").list_names() == []


@pytest.mark.parametrize(
    ("environment", "count"),
    [({"OMP_NUM_THREADS": "3"}, 3), ({}, None), ({"OMP_NUM_THREADS": "2,2"}, None), ({"OMP_NUM_THREADS": "0"}, None),
     ({"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "1"}, None)],
)  # fmt: skip
def test_a_number_of_threads_that_cannot_be_set_means_a_cold_start(environment, count, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert fork.count_library_threads(environment) == count


def test_data_directories_that_share_a_folder_for_templates_share_one_template(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTDL_WARM_DIR", str(tmp_path / "shared"))
    places = []
    for name in ("one", "other"):
        monkeypatch.setenv("DISTDL_HOME", str(tmp_path / name))
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / name / "runtime"))
        places.append((warm_start.get_template_files(), warm_start.get_template_files().socket))
    assert places[0] == places[1]
    monkeypatch.delenv("DISTDL_WARM_DIR")
    assert warm_start.get_template_files().folder == tmp_path / "other" / "warm"
    assert (warm_start.get_template_files(), warm_start.get_template_files().socket) != places[0]


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="this kernel has no huge pages")
def test_loaded_data_moves_to_huge_pages_and_keeps_its_values():
    code = """
from pathlib import Path
from distdl_jupyter.core.machine import use_huge_pages
def huge():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("AnonHugePages"))
blocks = [bytearray([number] * 2**20) for number in range(32)]
use_huge_pages()
assert all(block == bytes([number]) * 2**20 for number, block in enumerate(blocks))
print(huge())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(ended.stdout) >= 16, "megabytes in huge pages"
