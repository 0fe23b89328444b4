"""The notebooks of other machines: the quickstart's own training cell, run on real hosts, Slurm, and a stand-in."""

import os

import pytest

from distdl_jupyter import jobs
from distdl_jupyter.core.events import State
from tests.azurite.fixtures import azurite  # noqa: F401 - fixture
from tests.clusters.azureml.conftest import ml  # noqa: F401 - fixture
from tests.hosts import needs_hosts
from tests.notebooks import book
from tests.notebooks.book import cell_with, read, shown
from tests.selection import few_or_all
from tests.slurm import needs_slurm, slurm, two_nodes  # noqa: F401 - fixtures

#: How long the training takes; less than 30 reach a lower accuracy.
EPOCHS = few_or_all(4, 30)
TARGETS = {"ssh": "lab", "slurm": "farm", "azureml": "cloud"}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def jupyter_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter-config"))


def code(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("name", TARGETS)
def test_only_compute_target_differs_from_the_quickstart(name):
    here, quickstart = read(name), read("quickstart")
    training = cell_with(here, "--name digits").source
    assert training.count(f" --target {TARGETS[name]}") == 1
    assert training.replace(f" --target {TARGETS[name]}", "") == cell_with(quickstart, "--name digits").source
    shared = [source for source in code(quickstart) if "load_digits" in source or "class DigitsCNN" in source]
    assert len(shared) == 2
    assert [source for source in code(here) if "load_digits" in source or "class DigitsCNN" in source] == shared


def executed(name, written, options, epochs=30):
    """Run the notebook with the options of these machines in place of the ones that stand there."""
    training = "epochs, batch_size = 30, 32"
    return book.executed(name, {training: training.replace("30", str(epochs)), written: f"**{options!r}"})


def trained(notebook, names, epochs=30):
    who, digits = sorted(jobs(), key=lambda job: job.spec.created)
    assert (who.state, digits.state) == (State.COMPLETED, State.COMPLETED)
    for rank, name in enumerate(names):
        assert f"rank {rank} of 2 runs on {name}, the sum of all ranks is 1" in shown(notebook, "who.results()")
    assert all(value["test_accuracy"] >= (0.95 if epochs == 30 else 0.5) for value in digits.results())
    assert digits.metrics()["loss"].count() == epochs * 22 * 2
    assert shown(notebook, "job.view().ranks") == f"[(0, '{names[0]}'), (1, '{names[0]}')]"


@needs_hosts
@pytest.mark.full
def test_the_notebook_of_ssh_trains_on_real_hosts(three_hosts):
    options = {**three_hosts.options(), "hosts": "node-a, node-b"}
    notebook = executed("ssh", 'hosts="gpu1, gpu2"', options, EPOCHS)
    assert "node-b" in shown(notebook, ".check(")
    assert "error" not in shown(notebook, ".check(").lower()
    trained(notebook, ["node-a", "node-b"], EPOCHS)


@needs_slurm
@pytest.mark.full
def test_the_notebook_of_slurm_trains_on_a_real_slurm(slurm):  # noqa: F811
    notebook = executed("slurm", 'partition="gpu"', slurm.options())
    assert shown(notebook, ".check(")
    trained(notebook, ["node-a", "node-b"])


@pytest.mark.full
def test_the_notebook_of_azure_ml_trains_on_a_stand_in(ml):  # noqa: F811
    notebook = executed("azureml", 'resource_group="vision", workspace="ws1", compute="gpu"', ml.options, epochs=4)
    assert "error" not in shown(notebook, ".check(").lower()
    trained(notebook, [os.uname().nodename] * 2, epochs=4)
    assert {job.properties["distribution"]["distributionType"] for job in ml.jobs.values()} == {"Mpi"}
