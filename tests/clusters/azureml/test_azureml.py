"""Jobs on Azure ML from a notebook's cell to its values, through supervisors, against a workspace on this machine."""

import re
import textwrap

import pytest

from distdl_jupyter import attach
from distdl_jupyter.api.submit_process import submit_source
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.events import State
from distdl_jupyter.core.store import JobStore
from tests.conftest import wait_for
from tests.faults.jobs import found_supervisor_of
from tests.frameworks import TENSORFLOW
from tests.written import all_written

pytestmark = [pytest.mark.timeout(600)]

HOROVOD = """
    import os
    import horovod.torch as hvd
    import torch
    from distdl_jupyter import log
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(4, 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        log(step=step, loss=loss)
    with open(os.path.join(os.environ["DISTDL_JOB_DIR"], "outputs", f"model-{hvd.rank()}.txt"), "w") as file:
        file.write(str(model.weight.tolist()))
    {"rank": hvd.rank(), "size": hvd.size(), "weights": model.weight.flatten().tolist(),
     "mpi": "OMPI_COMM_WORLD_RANK" in os.environ, "controller": os.environ["HOROVOD_CONTROLLER"]}
"""
COUNT = """
    import time
    for number in range(120):
        print("line", number, flush=True)
        time.sleep(0.05)
    "counted"
"""


def submit(ml, code, nodes=2, backend="torch", options=None, **more):
    if "lab" not in cluster_configs.list_names():
        cluster_configs.add("lab", "azureml", {**ml.options, **(options or {})})
    wanted = {
        "node_count": nodes,
        "process_count_per_node": 1,
        "distributed_backend": backend,
        "compute_target": "lab",
        **more,
    }
    return submit_source(textwrap.dedent(code).strip(), options=wanted)


def events(job):
    return all_written(JobStore().find(job.id))


def lines(job, rank=0):
    """Return what a rank printed (None: what no rank said), line by line."""
    found = []
    for event in events(job):
        if event["type"] == "log" and event["rank"] == rank and event["stream"] in ("out", "sys"):
            found += event["text"].splitlines()
    return found


@pytest.mark.readme("Azure ML")
@pytest.mark.parametrize("backend", ["horovod-mpi", pytest.param("horovod-gloo", marks=pytest.mark.full)])
def test_horovod_trains_under_azures_own_mpirun_and_everything_comes_back(ml, backend):
    job = submit(ml, HOROVOD, backend=backend).wait(240)
    results = job.results()
    assert [one["rank"] for one in results] == [0, 1]
    assert {one["size"] for one in results} == {2}
    assert results[0]["weights"] == results[1]["weights"]
    assert all(one["mpi"] and one["controller"] == "mpi" for one in results)
    outputs = JobStore().find(job.id).outputs
    assert sorted(path.name for path in outputs.rglob("*.txt")) == ["model-0.txt", "model-1.txt"]
    metrics = [(event["rank"], event["step"]) for event in events(job) if event["type"] == "metric"]
    assert sorted(metrics) == [(rank, step) for rank in range(2) for step in range(5)]
    asked = next(one for one in ml.jobs.values()).properties
    assert asked["distribution"] == {"distributionType": "Mpi", "processCountPerInstance": 1}
    assert (asked["resources"]["instanceCount"], asked["resources"]["shmSize"]) == (2, "8g")
    assert asked["environmentVariables"] in ({}, None)
    assert asked["tags"] == {"distdl_job": job.id}
    assert not any(name.startswith("mlflow.source.git") for name in asked["properties"])
    assert "mpirun" not in asked["command"]


@pytest.mark.full
def test_tensorflow_trains_as_workers_of_azure(ml):
    results = submit(ml, TENSORFLOW, backend="tensorflow").wait(240).results()
    asked = next(iter(ml.jobs.values())).properties["distribution"]
    assert asked == {"distributionType": "TensorFlow", "parameterServerCount": 0, "workerCount": 2}
    assert [(result["rank"], result["total"]) for result in results] == [(0, 3.0), (1, 3.0)]


@pytest.mark.full
@pytest.mark.fault("supervisor", "on Azure ML it is found again and continues; no line is lost or duplicated")
def test_a_job_goes_on_without_its_supervisor_and_no_line_is_lost_or_twice(ml):
    ml.build_log = "Step 1/2 : FROM image\nStep 2/2 : RUN pip install horovod\n"
    job = submit(ml, COUNT)
    wait_for(lambda: len(lines(job)) > 20, 120)
    # Whoever signs addresses has changed its key, and the supervisor is killed: nobody here knows the job any more.
    found_supervisor_of(job).kill()
    ml.expire()
    found = attach(job.id).wait(240)
    assert found.state is State.COMPLETED
    for rank in range(2):
        assert [line for line in lines(job, rank) if line.startswith("line")] == [f"line {n}" for n in range(120)]
    assert sum("Step 1/2" in line for line in lines(job, None)) == 1
    assert found.results() == ["counted", "counted"]


def test_secrets_and_paths_of_this_machine_are_refused_before_anything_is_sent(ml, tmp_path):
    for more in (
        {"environment_variables": {"API_TOKEN": "x-very-secret"}},
        {"data": {"train": str(tmp_path)}},
        {"data": {"train": "blob://account/data/train?shard"}},
    ):
        with pytest.raises(InvalidSpec) as refused:
            submit(ml, "1", nodes=1, backend="plain", **more)
        assert "x-very-secret" not in str(refused.value)
        assert refused.value.hint
    assert not ml.jobs


@pytest.mark.full
def test_data_in_blob_is_azures_own_input_and_outputs_reach_the_blob(ml, azurite, signed_in, distdl_home):
    ml.finalizing = 1.0
    container = azurite.container()
    container.put("train/a.txt", b"1")
    code = """
        import os, pathlib
        pathlib.Path(os.environ["DISTDL_JOB_DIR"], "outputs", "weights.txt").write_text("0.5")
        os.environ["DISTDL_DATA_TRAIN"]
    """
    job = submit(
        ml,
        code,
        nodes=1,
        backend="plain",
        outputs=container.place("run"),
        data={"train": container.place("train"), "more": container.place() + "?mode=mount"},
    )
    (where,) = job.results(120)
    (asked,) = ml.jobs.values()
    assert where == str(asked.folder / "inputs" / "train")
    inputs = asked.properties["inputs"]
    assert (inputs["train"]["mode"], inputs["more"]["mode"]) == ("Download", "ReadOnlyMount")
    assert inputs["train"]["uri"] == f"{container.address}/train/"
    assert container.read(f"run/{job.id}/outputs/weights.txt") == b"0.5"
    assert any(event.get("code") == "mounted" for event in events(job))
    assert not any(event.get("code") == "left-behind" for event in events(job))
    for path in JobStore().find(job.id).path.rglob("*"):
        if path.is_file():
            content = path.read_text(errors="replace")
            assert not re.search(r"sig=[\w%]", content), path
            assert not [one for one in signed_in.login.given if one in content], path
