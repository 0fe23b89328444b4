"""The notebooks about Spark, as a user runs them: a real Spark beside PySpark's own calls."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from distdl_jupyter import jobs
from distdl_jupyter.core.state import State

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

pytestmark = pytest.mark.timeout(600)


def run(name):
    """Run a notebook, whose own assertions must hold."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=400, kernel_name="python3").execute(cwd=str(NOTEBOOKS))
    return notebook


def printed(notebook, text):
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source]
    return "".join(output.get("text", "") for output in cell.outputs)


@pytest.mark.full
def test_old_calls_on_spark_name_the_first_failure_where_pysparks_do_not(distdl_home):
    notebook = run("spark")
    theirs = printed(notebook, "theirs = str(error)")
    assert "rank 1" not in theirs
    assert theirs.count("step 0 loss") == 2, "lines of both ranks in one stream"
    assert theirs.splitlines()[-1].endswith("and among them the cause: False")
    assert "ValueError: a bad batch, in Cell [2], line 13." in printed(notebook, "ours = str(error)")
    assert [job.state for job in jobs()] == [State.COMPLETED, State.COMPLETED, State.FAILED]
    assert [job.spec.distributed_backend for job in jobs()] == ["horovod-gloo", "torch", "torch"]
