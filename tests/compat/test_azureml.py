"""Azure ML's estimator, experiment and run by one other import: the same signatures, jobs behind them."""

from types import SimpleNamespace

import pytest

from distdl_jupyter.compat.azureml import Experiment, MpiConfiguration, PyTorch, Run
from distdl_jupyter.core.errors import InvalidSpec, JobFailed
from tests.conftest import wait_for

pytestmark = pytest.mark.timeout(300)

#: As Azure's page on Horovod for PyTorch has it, on data of its own, with one other import.
TRAINS = """
import argparse

import horovod.torch as hvd
import torch

from distdl_jupyter.compat.azureml import Run

run = Run.get_context()
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--no-cuda", action="store_true")
args = parser.parse_args()

hvd.init()
torch.manual_seed(42)
inputs = torch.randn(64, 4)
train_dataset = torch.utils.data.TensorDataset(inputs, inputs @ torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
train_sampler = torch.utils.data.distributed.DistributedSampler(
    train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=8, sampler=train_sampler)
model = torch.nn.Linear(4, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for epoch in range(args.epochs):
    train_sampler.set_epoch(epoch)
    for data, target in train_loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(data), target)
        loss.backward()
        optimizer.step()
    run.log("loss", hvd.allreduce(loss.detach(), name="loss").item())
run.log("ranks", hvd.size())
print("rank", hvd.rank(), "ends")
"""


@pytest.fixture
def project(tmp_path):
    """Make a source directory with one script, train.py."""

    def make(text):
        folder = tmp_path / "project"
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(text)
        return str(folder)

    return make


# runs -------------------------------------------------------------------------------------------


def test_azures_example_trains_horovod_on_two_nodes_of_this_machine(project, capsys):
    made = PyTorch(
        source_directory=project(TRAINS),
        entry_script="train.py",
        script_params={"--epochs": 3, "--lr": 0.05, "--no-cuda": ""},
        node_count=2,
        process_count_per_node=1,
        distributed_backend="mpi",
        use_gpu=True,
    )
    assert made.options["use_gpu"] is None
    run = Experiment(None, name="pytorch-distr-hvd").submit(made)
    details = run.wait_for_completion(show_output=True)
    assert details["status"] == run.get_status() == "Completed"
    assert details["runId"] == run.id
    printed = capsys.readouterr().out
    assert "[0] rank 0 ends" in printed
    assert "[1] rank 1 ends" in printed
    metrics = run.get_metrics()
    assert metrics["ranks"] == 2
    assert len(metrics["loss"]) == 3
    assert metrics["loss"][0] > metrics["loss"][2] > 0
    assert run.get_metrics("ranks") == {"ranks": 2}
    assert run.job.name == "pytorch-distr-hvd"
    assert run.job.spec.distributed_backend == "horovod-mpi"


def test_a_failed_run_is_raised_with_the_scripts_own_error(project):
    run = Experiment(None, "breaks").submit(PyTorch(project("1 / 0"), entry_script="train.py"))
    with pytest.raises(JobFailed, match="division by zero"):
        run.wait_for_completion()
    assert run.wait_for_completion(raise_on_error=False) == {"runId": run.id, "status": "Failed"}


def test_a_run_is_canceled_and_found_again_by_its_id(project):
    script = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    run = Experiment(None, "waits").submit(PyTorch(project(script), entry_script="train.py"))
    attached = Run(run.experiment, run.id)
    wait_for(lambda: any(line.text == "begun" for line in attached.job.logs(0)), 60, "the first line")
    wait_for(lambda: attached.get_status() == "Running", 60, "its state")
    attached.cancel()
    assert run.wait_for_completion()["status"] == "Canceled"


def test_a_run_outside_of_a_job_prints_what_it_logs(capsys, monkeypatch):
    monkeypatch.setattr("distdl_jupyter.worker.report._next_print", 0.0)
    run = Run.get_context()
    run.log("loss", 0.25)
    assert capsys.readouterr().out == "step 0  loss 0.25\n"
    assert run.id.startswith("OfflineRun_")


# arguments of the estimator ----------------------------------------------------------------------


def test_arguments_become_options_of_a_job_and_those_without_meaning_are_named():
    with pytest.warns(UserWarning, match=r"The argument framework_version of PyTorch\(\) is ignored"):
        made = PyTorch(
            ".", entry_script="train.py", compute_target=SimpleNamespace(name="gpucluster"), node_count=2,
            distributed_training=MpiConfiguration(process_count_per_node=4), pip_packages=["einops"],
            conda_packages=["ffmpeg=7"], environment_variables={"OMP_NUM_THREADS": "1"}, framework_version="1.13",
        )  # fmt: skip
    assert made.options == {
        "compute_target": "gpucluster", "node_count": 2, "process_count_per_node": 4, "distributed_backend": "mpi",
        "use_gpu": False, "pip_packages": ["einops"], "conda_packages": ["ffmpeg=7"],
        "environment_variables": {"OMP_NUM_THREADS": "1"}, "data": {},
    }  # fmt: skip


@pytest.mark.parametrize("data", ["datastore", "path"])
def test_a_datastore_becomes_a_data_source_and_a_folder_of_the_command_line(data):
    store = SimpleNamespace(name="workspaceblobstore", datastore_type="AzureBlob", account_name="mine",
                            container_name="cifar")  # fmt: skip
    reference = SimpleNamespace(datastore=store, path_on_datastore="train/", mode="mount")
    value, name, address = {
        "datastore": (store, "workspaceblobstore", "blob://mine/cifar"),
        "path": (reference, "workspaceblobstore_train", "blob://mine/cifar/train"),
    }[data]
    made = PyTorch(".", entry_script="train.py", script_params={"--data-folder": value, "--lr": 0.1})
    assert made.options["data"] == {name: address}
    assert made.script_params == {"--data-folder": f"$DISTDL_DATA_{name.upper()}", "--lr": 0.1}


def test_a_datastore_that_is_not_a_container_is_refused_with_the_remedy():
    share = SimpleNamespace(name="files", datastore_type="AzureFile")
    with pytest.raises(InvalidSpec) as refused:
        PyTorch(".", entry_script="train.py", script_params={"--data": share})
    assert refused.value.code == "datastore-not-blob"
    assert refused.value.hint
