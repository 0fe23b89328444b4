"""``make demo`` in the terminal: a real kernel, a real job, its log and curve, and an exit code that can be trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

REPOSITORY = Path(__file__).parents[2]
RUNNER = REPOSITORY / "notebooks" / "run.py"

TRAIN = """
from distdl_jupyter import log, submit

def train(reached):
    for step in range(20):
        log(step=step, loss=1.0 / (step + 1))
        print("step", step)
    log(step=step, test_accuracy=reached)

job = submit(train, args=({reached},), name="tiny")
job.result()
"""


def demo(notebook: Path, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DISTDL_HOME": str(home)}
    return subprocess.run(
        [sys.executable, str(RUNNER), str(notebook)],
        env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def write(path: Path, *cells: str) -> Path:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    nbformat.write(book, path)
    return path


def test_a_good_job_is_shown_and_praised(tmp_path: Path, distdl_home: Path) -> None:
    notebook = write(tmp_path / "tiny.ipynb", TRAIN.format(reached=0.97))
    before = notebook.read_bytes()
    done = demo(notebook, distdl_home)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "  [0] step 0" in lines
    assert "  [0] step 19" in lines
    assert "loss over steps, mean of all ranks" in lines
    assert any(line.lstrip().startswith("1 │•") for line in lines)
    assert "Test accuracy: 0.970 (at least 0.95 is wanted)" in lines
    assert lines[-1].endswith("make lab")
    assert notebook.read_bytes() == before, "the committed notebook stays as it is"
    copy = nbformat.read(Path(sys.prefix) / "demo" / "tiny.ipynb", as_version=4)
    assert copy.cells[0].execution_count == 1


@pytest.mark.full
@pytest.mark.parametrize("reached", ["0.949", "float('nan')"])
def test_a_poor_accuracy_fails(reached: str, tmp_path: Path, distdl_home: Path) -> None:
    done = demo(write(tmp_path / "poor.ipynb", TRAIN.format(reached=reached)), distdl_home)
    assert done.returncode == 1
    assert "The accuracy was not reached" in done.stderr
    assert "make lab" not in done.stdout


@pytest.mark.full
def test_a_failing_cell_is_shown(tmp_path: Path, distdl_home: Path) -> None:
    done = demo(write(tmp_path / "broken.ipynb", "1 / 0", "print('never')"), distdl_home)
    assert done.returncode == 1
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "The notebook stopped at this cell" in done.stderr
    assert "\x1b" not in done.stderr
