"""The notebook about ranks that stay, as a user runs it: a real kernel, real Horovod, real interrupts."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from distdl_jupyter import jobs
from distdl_jupyter.core.state import State

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "ranks.ipynb"
RANKS = 4

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTDL_HOME", str(home))
        NotebookClient(notebook, timeout=400, kernel_name="python3").execute(cwd=str(NOTEBOOK.parent))
    return notebook, home


def outputs(notebook, text):
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source]
    return cell.outputs


def plain(notebook, text):
    return "\n".join(output.get("text") or output["data"]["text/plain"] for output in outputs(notebook, text))


@pytest.mark.full
def test_ranks_differ_in_their_data_and_agree_in_what_they_average(executed):
    told = plain(executed[0], "hvd.allreduce(")
    assert "[0] 450 images" in told
    assert "[3] 449 images" in told
    assert told.splitlines()[-1].startswith("[0-3] tensor(0.305")
    assert 0.3 < float(plain(executed[0], "float(_[0])")) < 0.31


@pytest.mark.full
def test_training_folds_what_is_equal(executed):
    lines = plain(executed[0], "train(60)").splitlines()
    assert [line for line in lines if "step" in line] == ["[0-3] step 20", "[0-3] step 40", "[0-3] step 60"]
    assert sum("own loss" in line for line in lines) == 3 * RANKS
    assert lines[-1].startswith("[0-3] "), "the weights are the same on all ranks"


@pytest.mark.full
def test_one_rank_can_be_spoiled_and_healed(executed):
    spoiled, healed = (cell.outputs for cell in executed[0].cells if cell.source.endswith("model.weight.norm().item()")
                       and "train(" not in cell.source)  # fmt: skip
    assert [line[:5] for line in spoiled[0].data["text/plain"].splitlines()] == ["[0,2-", "[1]  "]
    assert healed[0].data["text/plain"].startswith("[0-3] ")


@pytest.mark.full
def test_a_failure_names_the_rank_and_the_line_and_an_interrupt_costs_no_names(executed):
    shown, raised = outputs(executed[0], "batch = {")
    assert "Rank 2 of 4 failed first: KeyError: 'label'" in shown.data["text/plain"]
    assert "line 3" in raised.traceback[0]
    assert "[0-3] waiting 0\n" in plain_of(outputs(executed[0], "waiting")[0])
    assert outputs(executed[0], "waiting")[-1].traceback[0].startswith("KeyboardInterrupt: The cell was interrupted")
    assert "450)" in plain(executed[0], "seconds, len(x)")


def plain_of(output):
    return output.data["text/plain"]


@pytest.mark.full
def test_it_was_one_job_with_a_curve_and_nothing_is_left(executed, monkeypatch):
    monkeypatch.setenv("DISTDL_HOME", str(executed[1]))
    (job,) = jobs()
    assert job.state is State.COMPLETED
    assert job.metrics()["loss"].count() == 60 * RANKS
    assert "4 ranks stopped" in plain(executed[0], "%dist_ranks stop")
