"""The frame itself: marks are checked, the quick selection leaves out what is long, the table counts what held."""

import subprocess
import sys
from pathlib import Path

import pytest

STORY = """
import pytest

@pytest.mark.fault("rank", "it is named")
@pytest.mark.parametrize("at", [1, 2])
def test_a_rank_that_dies(at, injected):
    injected(3)
    assert at == 1

@pytest.mark.fault("log", "shown as text")
@pytest.mark.full
def test_a_long_line():
    pass

@pytest.mark.fault("disk", "said")
def test_a_full_disk():
    pytest.skip("no disk here")
"""


def run(folder, story, *arguments, **environment):
    (folder / "test_story.py").write_text(story)
    options = (
        "-q",
        "-p",
        "tests.faults.frame",
        "-p",
        "tests.selection",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        "-c",
        "/dev/null",
    )
    command = [sys.executable, "-m", "pytest", *options, "--strict-markers", *arguments, "test_story.py"]
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": root, "PATH": "/usr/bin:/bin", **environment}, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("side_by_side", [(), ("-n", "2")])
def test_the_table_tells_what_held_what_not_and_what_did_not_run(tmp_path, side_by_side):
    page = tmp_path / "page.md"
    done = run(tmp_path, STORY, "--faults-page", str(page), *side_by_side, DISTDL_TESTS="all")
    assert done.returncode == 1, done.stdout + done.stderr
    text = page.read_text()
    assert "| a rank that dies | it is named | 6 of 7 |" in text
    assert "| a long line | shown as text | 1 of 1 |" in text
    assert "| a full disk | said | not run: Skipped: no disk here |" in text
    assert "1 of 2 faults held in all injections." in text
    # A part leaves the other lines as they are.
    part = "--faults-part", "-k", "dies", *side_by_side
    run(tmp_path, STORY.replace("at == 1", "at"), "--faults-page", str(page), *part, DISTDL_TESTS="all")
    assert page.read_text() == text.replace("6 of 7", "6 of 6").replace("1 of 2 faults", "2 of 2 faults")


@pytest.mark.full
def test_what_is_long_runs_only_when_everything_is_asked_for(tmp_path):
    assert "1 deselected" in run(tmp_path, STORY).stdout
    assert "deselected" not in run(tmp_path, STORY, DISTDL_TESTS="all").stdout


def test_an_unknown_row_is_refused(tmp_path):
    done = run(tmp_path, STORY.replace('"rank"', '"rang"'))
    assert done.returncode == 4
    assert "takes a row of viewers, supervisor" in done.stderr
