"""The notebook about training that hangs, as a user runs it: a real deadlock, real stacks, a real restart."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from distdl_jupyter import jobs
from tests.selection import few_or_all

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "when_training_hangs.ipynb"
LIMIT = "--hang-timeout-seconds 30"

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (training,) = [cell for cell in notebook.cells if cell.cell_type == "code" and LIMIT in cell.source]
    training.source = training.source.replace(LIMIT, f"--hang-timeout-seconds {few_or_all(5, 30)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTDL_HOME", str(home))
        NotebookClient(notebook, timeout=400, kernel_name="python3").execute(cwd=str(NOTEBOOK.parent))
    return notebook, home


def told(notebook, text):
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source]
    return cell.outputs[-1].data["text/plain"]


def test_the_rank_that_left_the_all_reduce_out_is_named_and_its_stack_is_kept(executed):
    (reason,) = eval(told(executed[0], "restart.reason"))
    assert "rank 1 is in" in reason
    assert "rank 0 waits for it in hvd." in reason
    stacks = told(executed[0], "job.stacks")
    assert stacks.index("Rank 1:") < stacks.index("Rank 0:")
    assert "time.sleep(3600)" in stacks


def test_the_second_attempt_goes_on_from_the_checkpoint_and_the_curve_with_it(executed, monkeypatch):
    monkeypatch.setenv("DISTDL_HOME", str(executed[1]))
    (job,) = jobs()
    assert told(executed[0], "job.logs") == "['begins at step 0', 'begins at step 30']"
    steps = job.metrics().query("rank == 0")["step"].tolist()
    assert steps == sorted(steps)
    assert steps[-1] == 59
    assert len(steps) == len(set(steps)) == 60
