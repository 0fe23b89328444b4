"""The quickstart as a user runs it: in a real kernel, cell by cell, with the real Horovod."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from distdl_jupyter import jobs
from distdl_jupyter.core.state import State

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"
EPOCHS, STEPS, RANKS = 30, 22, 2

pytestmark = [pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTDL_HOME", str(home))
        NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(NOTEBOOK.parent))
    return notebook, home


def cell_with(notebook, text):
    return next(cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source)


def bundle_of(cell):
    return next(output.data for output in cell.outputs if "application/vnd.distdl.job+json" in output.get("data", {}))


def test_the_job_reached_the_accuracy_and_reported_every_step(executed, monkeypatch):
    _notebook, home = executed
    monkeypatch.setenv("DISTDL_HOME", str(home))
    (job,) = jobs()
    assert job.state is State.COMPLETED
    assert job.spec.distributed_backend == "horovod-gloo"
    assert [value["test_accuracy"] >= 0.95 for value in job.results()] == [True] * RANKS
    metrics = job.metrics()
    assert metrics["loss"].count() == EPOCHS * STEPS * RANKS
    assert sorted(metrics["rank"].unique()) == [0, 1]
    assert metrics["test_accuracy"].dropna().min() >= 0.95


def test_the_result_stands_in_the_notebook(executed):
    notebook, _ = executed
    (output,) = cell_with(notebook, "job.result()").outputs
    assert "test_accuracy" in output.data["text/plain"]


def test_the_saved_cell_reads_well_where_nothing_runs(executed):
    notebook, _home = executed
    bundle = bundle_of(cell_with(notebook, "%%distributed"))
    html, text = bundle["text/html"], bundle["text/plain"]
    assert len(html) < 60_000
    assert "Completed" in html
    assert "data:image/svg+xml" in html
    assert "test_accuracy" in html
    assert "<script" not in html
    assert "%dist_attach" in html
    assert "Completed" in text
    assert bundle["application/vnd.distdl.job+json"]["id"] in text
