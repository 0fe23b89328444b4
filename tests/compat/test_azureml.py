"""Azure ML's estimator, experiment and run by one other import: the same signatures, jobs behind them."""

import ast
import inspect
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import pytest

from distdl_jupyter import cluster_configs
from distdl_jupyter.compat import azureml
from distdl_jupyter.compat.azureml import Experiment, Gloo, Mpi, MpiConfiguration, Nccl, PyTorch, Run, RunDetails
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


def estimator(**options):
    return PyTorch(".", **{"entry_script": "train.py", **options})


# signatures -------------------------------------------------------------------------------------


def published(source, name, method="__init__"):
    """Return the signature of a method as its file states it: Azure's own dependencies are not needed for that."""
    (made,) = (one for one in ast.parse(source).body if isinstance(one, ast.ClassDef) and one.name == name)
    (defined,) = (one for one in made.body if isinstance(one, ast.FunctionDef) and one.name == method)
    defined.body, defined.decorator_list, defined.returns = [ast.Pass()], [], None
    space = {}
    exec(compile(ast.fix_missing_locations(ast.Module([defined], [])), "signature", "exec"), space)
    return shape(space[method])


def shape(call):
    return [(one.name, one.kind, one.default) for one in inspect.signature(call).parameters.values()]


@pytest.mark.full
def test_the_signatures_are_those_of_azures_sdk(tmp_path):
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path)]
    got = subprocess.run([*command, "azureml-core", "azureml-train-core", "azureml-widgets"], check=False)
    if got.returncode:
        pytest.skip("PyPI is not reached")
    files = {}
    for wheel in tmp_path.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            files |= {name: archive.read(name) for name in archive.namelist() if name.endswith(".py")}
    experiment, run = files["azureml/core/experiment.py"], files["azureml/core/run.py"]
    training = files["azureml/train/_distributed_training.py"]
    assert shape(PyTorch.__init__) == published(files["azureml/train/dnn/_pytorch.py"], "PyTorch")
    assert shape(MpiConfiguration.__init__) == published(files["azureml/core/runconfig.py"], "MpiConfiguration")
    for ours in (Mpi, Gloo, Nccl):
        assert shape(ours.__init__) == published(training, ours.__name__)
    assert shape(RunDetails.show) == published(files["azureml/widgets/run_details.py"], "RunDetails", "show")
    for method in ("__init__", "submit"):
        assert shape(getattr(Experiment, method)) == published(experiment, "Experiment", method)
    own = ("__init__", "wait_for_completion", "get_status", "get_details", "get_metrics", "cancel", "log", "log_list")
    for method in own:
        assert shape(getattr(Run, method)) == published(run, "Run", method), method
    assert shape(Run.get_context.__func__) == published(run, "Run", "get_context")


def test_the_estimators_options_are_as_published():
    """The first and the last of azureml-train-core 1.62, and how they are given."""
    names = [one[0] for one in shape(PyTorch.__init__)]
    assert names[1:5] == ["source_directory", "compute_target", "vm_size", "vm_priority"]
    assert names[-5:-2] == ["framework_version", "_enable_optimized_mode", "_disable_validation"]
    assert {one[1] for one in shape(PyTorch.__init__)[2:]} == {inspect.Parameter.KEYWORD_ONLY}


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


@pytest.mark.full
@pytest.mark.parametrize("given", [{"distributed_backend": "gloo", "process_count_per_node": 2},
                                   {"distributed_training": Gloo(), "process_count_per_node": 2},
                                   {"distributed_training": MpiConfiguration(process_count_per_node=2)}])  # fmt: skip
def test_every_way_to_name_the_ranks_runs_them(project, given):
    """One script for all: each rank says its number to its own run."""
    script = (
        "import os\nfrom distdl_jupyter.compat.azureml import Run\n"
        "rank = os.environ.get('RANK', os.environ.get('OMPI_COMM_WORLD_RANK'))\n"
        "run = Run.get_context(allow_offline=False)\nrun.log_list('number', [int(rank), 5])\nrun.flush()\n"
    )
    run = Experiment(None, "ranks").submit(PyTorch(project(script), entry_script="train.py", **given))
    run.wait_for_completion()
    assert run.get_metrics() == {"number": [0, 5]}
    assert set(run.job.metrics()["number"]) == {0, 1, 5}


def test_a_failed_run_is_raised_with_the_scripts_own_error(project):
    run = Experiment(None, "breaks").submit(PyTorch(project("1 / 0"), entry_script="train.py"))
    with pytest.raises(JobFailed, match="division by zero"):
        run.wait_for_completion()
    details = run.wait_for_completion(raise_on_error=False)
    assert details["status"] == run.status == "Failed"
    assert "ZeroDivisionError: division by zero" in details["error"]


def test_a_run_is_canceled_and_found_again_by_its_id(project):
    script = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    run = Experiment(None, "waits").submit(PyTorch(project(script), entry_script="train.py"))
    again = Run(run.experiment, run.id)
    wait_for(lambda: any(line.text == "begun" for line in again.job.logs(0)), 60, "the first line")
    wait_for(lambda: again.get_status() == "Running", 60, "its state")
    again.cancel()
    assert run.wait_for_completion()["status"] == "Canceled"


def test_a_run_outside_of_a_job_prints_what_it_logs(capsys, monkeypatch):
    monkeypatch.setattr("distdl_jupyter.worker.report._next_print", 0.0)
    run = Run.get_context()
    run.log("loss", 0.25)
    assert capsys.readouterr().out == "step 0  loss 0.25\n"
    assert run.id.startswith("OfflineRun_")
    with pytest.raises(LookupError, match="only inside a job"):
        Run.get_context(allow_offline=False)


# what an estimator's options become -------------------------------------------------------------


def test_options_become_those_of_a_job():
    made = estimator(
        pip_packages=["einops"], conda_packages=["ffmpeg=7"], pip_requirements_file="requirements.txt",
        environment_variables={"OMP_NUM_THREADS": "1"}, max_run_duration_seconds=60, node_count=2,
        distributed_training=MpiConfiguration(process_count_per_node=4), inputs=["train=./cifar10"],
    )  # fmt: skip
    assert made.options == {
        "compute_target": "local", "node_count": 2, "process_count_per_node": 4, "distributed_backend": "mpi",
        "use_gpu": False, "pip_packages": ["einops"], "conda_packages": ["ffmpeg=7"],
        "requirements": "requirements.txt", "environment_variables": {"OMP_NUM_THREADS": "1"},
        "data": {"train": "./cifar10"}, "max_run_duration_seconds": 60,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shm_size": "8g"}, "shm_size of the estimator is ignored: ranks run without a container"),
        ({"custom_docker_image": "mine"}, "custom_docker_image of the estimator is ignored: ranks use the Python"),
        ({"framework_version": "1.4"}, "name another one in pip_packages"),
        ({"vm_priority": "lowpriority"}, "vm_priority of the estimator is ignored"),
    ],
)
def test_what_means_nothing_here_is_told_in_one_sentence(given, said):
    with pytest.warns(UserWarning, match=said):
        estimator(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"entry_script": None}, "An estimator needs entry_script"),
        ({"node_count": 2}, 'Several processes need distributed_backend.* Set distributed_backend="mpi"'),
        ({"distributed_backend": "nccl", "distributed_training": Gloo()}, "backend is nccl, but .*training is gloo"),
        ({"distributed_training": "mpi"}, "must be MpiConfiguration"),
        ({"environment_definition": object()}, "Set pip_packages, conda_packages and environment_variables"),
        ({"conda_dependencies_file": "env.yml"}, "List the packages in conda_packages and pip_packages"),
        ({"compute_target": SimpleNamespace(name="gpucluster")}, r'add_cluster\("gpucluster", "azureml"'),
        ({"inputs": [3]}, "inputs contains 3"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(given, said):
    with pytest.raises(InvalidSpec, match=said):
        estimator(**given)


def test_on_azure_ml_the_image_and_its_memory_are_the_clusters_options(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    cluster_configs.add("gpucluster", "azureml", {"resource_group": "g", "workspace": "lab", "compute": "gpucluster"})
    made = estimator(compute_target="gpucluster", custom_docker_image="mine.azurecr.io/train:1", shm_size="16g")
    assert made.options["environment"] == "mine.azurecr.io/train:1"
    assert made.options["shm_size"] == "16g"


class DataReference:
    """Azure's, as its string and its fields say it: azureml-core is not installed here."""

    def __init__(self, datastore, data_reference_name=None, path_on_datastore=None, mode="mount"):
        self.datastore, self.data_reference_name = datastore, data_reference_name or datastore.name
        self.path_on_datastore, self.mode = path_on_datastore, mode

    def __str__(self):
        return f"$AZUREML_DATAREFERENCE_{self.data_reference_name}"


def test_a_reference_to_a_container_becomes_a_data_source_and_a_folder_of_the_command_line():
    store = SimpleNamespace(name="workspaceblobstore", account_name="mine", container_name="cifar")
    made = estimator(script_params={"--data-folder": DataReference(store, path_on_datastore="train/")},
                     inputs=[DataReference(store, "4f" * 16)])  # fmt: skip
    assert made.options["data"] == {
        "workspaceblobstore": "blob://mine/cifar/train", f"_{'4f' * 16}": "blob://mine/cifar",
    }  # fmt: skip
    assert made.script_params == {"--data-folder": "$AZUREML_DATAREFERENCE_workspaceblobstore"}
    assert made.layout["variables"][0] == (
        "AZUREML_DATAREFERENCE_workspaceblobstore", "$DISTDL_DATA_WORKSPACEBLOBSTORE",
    )  # fmt: skip


def test_a_reference_to_a_file_share_is_refused_with_the_remedy():
    share = SimpleNamespace(name="files", account_name="mine", container_name="s", datastore_type="AzureFile")
    with pytest.raises(
        InvalidSpec, match=r"The data reference files is not in an Azure Blob container. Set its address"
    ):
        estimator(inputs=[DataReference(share)])


def test_a_run_goes_on_from_a_folder_of_an_earlier_one(project, tmp_path):
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "epoch").write_text("7")
    script = (
        "import pathlib, sys\nfrom distdl_jupyter.compat.azureml import Run\n"
        "assert sys.argv[1] == '--resume-from'\n"
        "Run.get_context().log('epoch', int(pathlib.Path(sys.argv[2], 'epoch').read_text()))"
    )
    made = PyTorch(project(script), entry_script="train.py", resume_from=tmp_path / "outputs")
    run = Experiment(None, "goes-on").submit(made)
    run.wait_for_completion()
    assert run.get_metrics() == {"epoch": 7}


def test_only_ranks_log_to_a_run_and_what_is_not_there_says_so(project):
    run = Run(None, "20260101-000000-abcde")
    with pytest.raises(InvalidSpec, match="Only the ranks of a run can log to it"):
        run.log("loss", 1)
    with pytest.raises(AttributeError, match=r"Run\.log_table of azureml-core is not supported by"):
        run.log_table()
    with pytest.raises(TypeError, match=r"Run\.log accepts one number\. Use Run\.log_list"):
        Run.get_context().log("loss", [1, 2])
    with pytest.raises(InvalidSpec, match=r"Experiment\.submit needs an estimator, not dict"):
        azureml.Experiment(None, "x").submit({})
