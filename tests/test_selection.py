"""Which tests run, in which order, and which belong to a change."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import changed, scheduling, tested

ROOT = Path(__file__).parents[1]
STORY = """
import pytest
from hypothesis import settings

def test_quick():
    assert settings.default.max_examples == {examples}

@pytest.mark.full
def test_long():
    pass

@pytest.mark.full
@pytest.mark.readme("a row")
def test_shown():
    pass

def test_broken():
    assert False
"""


@pytest.mark.parametrize(
    ("files", "folders"),
    [
        (["distdl_jupyter/form/model.py", "tests/form/test_model.py"], ["tests/form"]),
        (["labextension/src/ui/dom.ts"], ["tests/browser", "tests/labextension", "tests/widgets"]),
        (["README.md", "notebooks/images/panel.png"], []),
        (["tests/conftest.py"], ["tests"]),
        (["tests/form/test_model.py", "pyproject.toml"], ["tests"]),
        (["distdl_jupyter/cluster_configs.py"], ["tests"]),
        ([".ci/lint", "notebooks/quickstart.ipynb"], ["tests/commands", "tests/notebooks"]),
    ],
)
def test_folders_of_changed_files(files, folders):
    assert changed.folders(files) == folders


def test_scope_of_the_one_slurm_is_its_folder():
    assert scheduling.scope("tests/clusters/slurm/test_slurm.py::test_a") == "tests/clusters/slurm"
    assert scheduling.scope("tests/core/test_log.py::Class::test_a[b::c]") == "tests/core/test_log.py"


def test_recorded_durations_name_scopes_that_exist():
    assert [name for name in scheduling.recorded() if not (ROOT / name).exists()] == []


def run(folder, *options, examples, **environment):
    (folder / "test_story.py").write_text(STORY.format(examples=examples))
    plugins = ("-p", "tests.selection", "-p", "tests.scheduling", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *plugins, "--rootdir", folder, "-c", "/dev/null", *options]
    return subprocess.run(
        [*map(str, command), "test_story.py"], cwd=folder, capture_output=True, text=True, timeout=120,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **environment},
    )  # fmt: skip


@pytest.mark.full
def test_progress_names_failures_and_counts_the_quick_selection(tmp_path):
    done = run(tmp_path, "-n", "2", "--progress", examples=30)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED test_story.py::test_broken" in done.stdout
    assert "1 failed, 2 passed" in done.stdout
    assert "worker-minutes on 2 workers" in done.stdout


@pytest.mark.full
def test_everything_runs_when_it_is_asked_for(tmp_path):
    done = run(tmp_path, examples=300, DISTDL_TESTS="all")
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr


def test_files_begin_by_their_recorded_durations_and_unknown_ones_between(monkeypatch, tmp_path):
    (tmp_path / "durations.json").write_text(json.dumps({"a.py": 1.0, "b.py": 60.0}))
    monkeypatch.setattr(scheduling, "RECORDED", tmp_path / "durations.json")

    class Item:
        def __init__(self, nodeid):
            self.nodeid = nodeid

    class Config:
        workerinput = True

        def getoption(self, name, default=None):
            return default

    items = [Item(f"{name}.py::test") for name in "abc"]
    scheduling.pytest_collection_modifyitems(Config(), items)
    assert [item.nodeid[0] for item in items] == ["b", "c", "a"]


def test_the_page_of_all_tests_counts_by_folder():
    results = """<testsuites><testsuite>
    <testcase classname="tests.core.test_log" name="a"/>
    <testcase classname="tests.core.test_log.TestMore" name="b"><failure/></testcase>
    <testcase classname="tests.core.test_log" name="b"><error/></testcase>
    <testcase classname="tests.warm.test_life" name="c"><skipped/></testcase>
    <testcase classname="tests.test_studies" name="d"/></testsuite></testsuites>"""
    text = tested.page(tested.counts(results), "0123abcd", "2026-01-02", "Linux.")
    assert "`make test-all` on 2026-01-02, at commit 0123abcd. Linux." in text
    assert "| core | 1 | 2 | 0 |\n| test_studies | 1 | 0 | 0 |\n| warm | 0 | 0 | 1 |\n| **all** | 2 | 2 | 1 |" in text
