"""The notebook of Batch AI as a user runs it: a job.json of that time, in a real kernel, with the real Horovod."""

import json
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from distdl_jupyter import jobs
from distdl_jupyter.core.state import State
from tests.selection import everything, few_or_all

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
EPOCHS = few_or_all(3, 12)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("notebooks")
    shutil.copytree(NOTEBOOKS / "batch-ai", folder / "batch-ai")
    job = folder / "batch-ai" / "job.json"
    assert job.read_text().count("--epochs 12") == 1
    job.write_text(job.read_text().replace("--epochs 12", f"--epochs {EPOCHS}"))
    notebook = nbformat.read(NOTEBOOKS / "from-batch-ai.ipynb", as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTDL_HOME", str(home))
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("server")))
        patch.setenv("DISTDL_WARM", "off")  # a temporary folder of its own would end the template of the other tests
        NotebookClient(notebook, timeout=400, kernel_name="python3").execute(cwd=str(folder))
    return notebook, home


def outputs(notebook, text):
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source]
    return [output.get("data", {"text/plain": output.get("text", "")}) for output in cell.outputs]


@pytest.mark.full
def test_the_job_trained_as_its_file_says(executed, monkeypatch):
    _, home = executed
    monkeypatch.setenv("DISTDL_HOME", str(home))
    (job,) = jobs()
    assert job.state is State.COMPLETED
    assert (job.spec.process_count, job.spec.distributed_backend) == (2, "horovod-gloo")
    assert job.spec.environment_variables == {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1"}
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)", "\n".join(str(line) for line in job.logs(rank=0)))
    assert float(accuracy) >= (0.95 if everything() else 0.5)
    assert (job.folder.outputs / "Models" / "digits.pt").stat().st_size > 100_000


@pytest.mark.full
def test_the_saved_output_is_that_of_the_ended_job(executed):
    notebook, _ = executed
    shown = outputs(notebook, "job = batchai.submit(")
    assert any("Not carried over from job.json: containerSettings" in str(output) for output in shown)
    (page,) = [output["text/html"] for output in shown if "text/html" in output]
    assert "Completed" in page
    assert "<script" not in page


def test_it_holds_nothing_of_the_machine_that_it_was_written_on():
    files = [NOTEBOOKS / "from-batch-ai.ipynb", *(NOTEBOOKS / "batch-ai").glob("*.*")]
    assert len(files) == 3
    assert [path.name for path in files if re.search(r"/home/|/root/|/work/|/tmp/", path.read_text())] == []


def test_the_job_file_is_one_of_batch_ai_alone():
    job = json.loads((NOTEBOOKS / "batch-ai" / "job.json").read_text())
    assert job["$schema"].endswith("/2018-05-01/job.json")
    assert "distdl" not in json.dumps(job) + (NOTEBOOKS / "batch-ai" / "train_digits.py").read_text()
