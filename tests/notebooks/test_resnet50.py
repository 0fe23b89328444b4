"""The notebook about ResNet-50, as a user runs it, and its script unchanged on Slurm and Azure ML."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from distdl_jupyter import jobs
from distdl_jupyter.core.state import State
from tests.azurite.fixtures import azurite  # noqa: F401 - fixture
from tests.clusters.azureml.conftest import ml  # noqa: F401 - fixture
from tests.slurm import needs_slurm, slurm, two_nodes  # noqa: F401 - fixtures

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SCRIPT = NOTEBOOKS / "resnet50.py"
RATE = re.compile(r"^([0-9.]+) images/s on 2 x one core each, 4 images of 32 x 32 pixels a step$")

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def test_the_notebook_measures_both_backends_and_runs_the_script():
    notebook = nbformat.read(NOTEBOOKS / "resnet50.ipynb", as_version=4)
    assert not any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    assert not re.search(r"/home/|/root/|/work/|/tmp/", str(notebook))
    NotebookClient(notebook, timeout=800, kernel_name="python3").execute(cwd=str(NOTEBOOKS))
    parameters, table = (shown(notebook, text) for text in ("one.numel()", "pd.DataFrame"))
    assert parameters == "25557032"
    rows = [line.split()[1:] for line in table.splitlines()[1:]]
    assert [(backend, int(count)) for backend, count, *_ in rows] >= [("horovod-gloo", 1), ("horovod-gloo", 2)]
    assert {backend for backend, *_ in rows} == {"horovod-gloo", "torch"}
    for _, count, rate, efficiency in rows:
        assert float(rate) > 0
        assert float(efficiency) == 1 if count == "1" else 0.1 < float(efficiency) < 1.5
    (script,) = [job for job in jobs() if job.spec.name == "resnet50-script"]
    assert script.state is State.COMPLETED
    assert RATE.match(printed(notebook, "script_params"))


def shown(notebook, text):
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source]
    return "\n".join(output.data["text/plain"] for output in cell.outputs if "data" in output)


def printed(notebook, text):
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source]
    return "".join(output.text for output in cell.outputs if output.get("name") == "stdout").strip()
