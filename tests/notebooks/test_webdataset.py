"""The notebook about WebDataset, as a user runs it: two ranks that read archives of their own."""

import importlib.util
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from distdl_jupyter import jobs
from distdl_jupyter.core.state import State

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "webdataset.ipynb"

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("webdataset") is None, reason="WebDataset is not installed"),
]


@pytest.mark.full
def test_two_ranks_read_each_sample_once(distdl_home):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute(cwd=str(NOTEBOOK.parent))
    (job,) = jobs()
    assert job.state is State.COMPLETED
    assert job.metrics()["loss"].count() == 4 * 15 * 2
    assert not Path(job.spec.data[0].path).exists()
