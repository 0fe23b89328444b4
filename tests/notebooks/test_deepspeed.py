"""The notebook about DeepSpeed, as a user runs it: its config in words, its losses, its checkpoint in parts."""

import importlib.util
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from distdl_jupyter import jobs
from distdl_jupyter.api import files
from distdl_jupyter.core.state import State

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "deepspeed.ipynb"

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
]


@pytest.mark.full
def test_losses_are_picked_up_and_the_checkpoint_is_one_line(distdl_home):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute(cwd=str(NOTEBOOK.parent))
    (job,) = jobs()
    assert job.state is State.COMPLETED
    assert set(job.metrics()) >= {"loss", "lr"}
    listed = files.outputs(job.id).outputs
    assert [(one.path, one.files) for one in listed if "global_step" in one.path] == [("checkpoints/global_step60", 3)]
