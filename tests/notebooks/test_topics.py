"""The notebooks about single topics of distributed training, as a user runs them; what they claim they assert.

Each runs in a kernel of its own. That their jobs are the ones which are named, and that nothing is left of them, is
looked at from outside.
"""

import os
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from distdl_jupyter import jobs
from distdl_jupyter.core.state import State

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
#: Of each notebook its jobs, in their order.
JOBS = {
    "asynchronous": ["synchronous", "asynchronous"],
    "larger_than_a_node": ["parts", "stream"],
    "learning_rate": ["one", "eight"],
    "model_parallel": ["fsdp", "pipeline", "tensor"],
    "scoring": ["train", "score"],
    "segmentation_detection": ["segmentation", "detection"],
}

pytestmark = [pytest.mark.timeout(600)]


@pytest.mark.full
@pytest.mark.parametrize("name", JOBS)
def test_a_notebook_holds_what_it_claims_and_leaves_nothing_behind(name, distdl_home, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=400, kernel_name="python3").execute(cwd=str(NOTEBOOKS))
    ran = sorted(jobs(), key=lambda job: job.id)
    assert [job.name for job in ran] == JOBS[name]
    assert {job.state for job in ran} == {State.COMPLETED}
    assert [
        one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(one.info["cmdline"] or [])
    ] == []
    assert [one for one in os.listdir(tmp_path) if one.startswith("tmp")] == [], "a folder was left"
    for job in ran:
        assert not [line.text for line in job.logs() if "Warning" in line.text]
