"""The notebook about a rank that fails, as a user runs it: four real ranks, of which one meets a bad batch."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "when_a_rank_fails.ipynb"

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


def test_the_rank_that_failed_first_is_shown_and_raised(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTDL_HOME", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=200, kernel_name="python3").execute(cwd=str(NOTEBOOK.parent))
    told = ["".join(output.get("text", "") or output["data"]["text/plain"] for output in cell.outputs)
            for cell in notebook.cells if cell.cell_type == "code"]  # fmt: skip
    assert "Rank 2 of 4 failed first" in told[1]
    assert "FAILED" in told[2]
    assert told[3] == "2 KeyError('label')\n"
    assert [line.split() for line in told[4].splitlines()[1:5]] == [["0", "11"], ["1", "11"], ["2", "11"], ["3", "11"]]
