"""Scripts as jobs."""

import json

import pytest

from distdl_jupyter.capture import capture_script
from distdl_jupyter.core.errors import InvalidSpec

SCRIPT = """
import argparse
import os
import sys

import shards

print("in", os.getcwd(), sys.argv[1:], shards.X, __name__)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    (folder / "jobs").mkdir(parents=True)
    (folder / "jobs" / "train.py").write_text(SCRIPT)
    (folder / "jobs" / "shards.py").write_text("X = 5\n")
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_script_runs_in_place_with_its_arguments(project, rank):
    draft = capture_script(
        "jobs/train.py", project, {"--epochs": 3, "--amp": "", "--fast": True, "--slow": False, "--sizes": [64, 128]}
    )
    assert draft.payload_json["arguments"] == ["--epochs", "3", "--amp", "--fast", "--sizes", "64", "128"]
    assert draft.name == "train"
    assert {one.name: one.detail for one in draft.captured} == {
        "train.py": "script, run in place",
        "shards.py": "module in the script's folder",
    }
    done = rank(draft)
    assert f"in {project} ['--epochs', '3', '--amp', '--fast', '--sizes', '64', '128'] 5 __main__" in done.out


def test_the_working_directory_is_the_current_one_without_a_source_directory(project, rank, tmp_path):
    draft = capture_script("project/jobs/train.py", None, ["a", "--b"])
    assert f"in {tmp_path} ['a', '--b'] 5 __main__" in rank(draft).out


def test_modules_travel_but_those_in_place_are_imported_where_they_are(project, rank, written):
    (project / "deep.py").write_text("Y = 6\n")
    (project / "jobs" / "shards.py").write_text("import deep\nX = (__file__, deep.__file__)\n")
    draft = capture_script("jobs/train.py", project)
    assert sorted(path.name for path in written(draft).code.iterdir()) == ["deep.py", "shards.py"]
    assert str((str(project / "jobs" / "shards.py"), str(project / "deep.py"))) in rank(draft).out


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"--api-key": "sk-1", "--lr": 1}, ("--api-key", "•••", "--lr", "1")),
        (["--token=abc", "x"], ("•••", "x")),
        ({"--password": ""}, ("--password",)),
    ],
)
def test_secret_arguments_are_masked(project, params, shown):
    draft = capture_script("jobs/train.py", project, params)
    assert draft.script_arguments == shown
    assert "sk-1" not in json.dumps(draft.script_arguments)


@pytest.mark.parametrize(
    ("script", "folder", "params", "words"),
    [
        ("no.py", "jobs", {}, r"Unknown script 'no.py' in .*jobs\. Use one of: shards.py, train.py\."),
        ("train.py", "missing", {}, "source_directory '.*missing' is not a folder"),
        ("train.py", "jobs", "--x 3", "script_params must be a dict, not str"),
        ("bad.py", "jobs", {}, r"Line 2 of bad.py is not valid Python"),
        ("bytes.py", "jobs", {}, r"bytes.py is not valid UTF-8 text"),
    ],
)
def test_mistakes_are_named(project, script, folder, params, words):
    if script in ("bad.py", "bytes.py"):
        (project / "jobs" / script).write_bytes(b"x = 1\ny = =\n" if script == "bad.py" else b"\xff\xfe")
    with pytest.raises(InvalidSpec, match=words):
        capture_script(script, project / folder, params)
