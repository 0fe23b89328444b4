"""A Batch AI job, run: real ranks, the folders and variables that its script knows, its outputs in the job's folder."""

import json
import shutil

import pytest

from distdl_jupyter.compat import batchai
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.events import State

SCRIPT = """
import argparse, json, os, pathlib
import horovod.torch as hvd
import torch
parser = argparse.ArgumentParser()
for name in ("--data", "--out", "--same"):
    parser.add_argument(name, type=pathlib.Path)
arguments = parser.parse_args()
hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
values = {
    "size": hvd.size(), "local": hvd.local_size(), "sum": total, "data": (arguments.data / "numbers.txt").read_text(),
    "same": str((arguments.same / "numbers.txt").resolve()), "script": os.environ["AZ_BATCHAI_INPUT_SCRIPTS"],
    "work": os.getcwd(), "task": os.environ["AZ_BATCHAI_TASK_INDEX"],
    "flag": os.environ["NCCL_DEBUG"], "list": os.environ["LIST"], "threads": os.environ["OMP_NUM_THREADS"],
}
(arguments.out / f"rank-{hvd.rank()}.json").write_text(json.dumps(values))
"""
JOB = {
    "properties": {
        "nodeCount": 2,
        "customToolkitSettings": {
            "commandLine": "source /opt/intel/mpivars.sh; echo $AZ_BATCH_HOST_LIST; mpirun -n 2 -ppn 1 -hosts "
            "$AZ_BATCH_HOST_LIST -env I_MPI_FABRICS dapl -env NCCL_DEBUG=WARN python -u "
            "$AZ_BATCHAI_INPUT_SCRIPTS/ranks.py --data $AZ_BATCHAI_INPUT_DIGITS --out $AZ_BATCHAI_OUTPUT_MODEL "
            "--same $AZ_BATCHAI_MOUNT_ROOT/nfs/digits"
        },
        "stdOutErrPathPrefix": "$AZ_BATCHAI_MOUNT_ROOT/extfs",
        "inputDirectories": [
            {"id": "SCRIPTS", "path": "$AZ_BATCHAI_MOUNT_ROOT/extfs/scripts"},
            {"id": "DIGITS", "path": "$AZ_BATCHAI_MOUNT_ROOT/nfs/digits"},
        ],
        "outputDirectories": [{"id": "MODEL", "pathPrefix": "$AZ_BATCHAI_MOUNT_ROOT/extfs", "pathSuffix": "Models"}],
        "environmentVariables": [
            {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "LIST", "value": "$AZ_BATCHAI_OUTPUT_MODEL/list.txt"},
        ],
        "containerSettings": {"imageSourceRegistry": {"image": "tensorflow/tensorflow:1.8.0-gpu"}},
    }
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "ranks.py").write_text(SCRIPT)
    (tmp_path / "files" / "digits").mkdir(parents=True)
    (tmp_path / "files" / "digits" / "numbers.txt").write_text("1 2 3")
    return tmp_path


def test_a_job_of_the_reference_architecture_runs(folder):
    with pytest.warns(UserWarning, match=r"Not carried over from job\.json: containerSettings, stdOutErrPathPrefix\."):
        job = batchai.submit(folder / "job.json", mounts={"nfs": str(folder / "files")}, name="again",
                             environment_variables={"MORE": "yes"}).wait(180)  # fmt: skip
    assert job.state is State.COMPLETED, job.view().reason
    assert (job.name, job.spec.node_count, job.spec.distributed_backend) == ("again", 2, "horovod-gloo")
    assert job.spec.environment_variables == {
        "I_MPI_FABRICS": "dapl", "NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1", "MORE": "yes",
    }  # fmt: skip
    for rank in range(2):
        values = json.loads((job.folder.outputs / "Models" / f"rank-{rank}.json").read_text())
        assert values.pop("list").endswith("outputs/Models/list.txt")
        assert values == {
            "size": 2, "local": 1, "sum": 3.0, "data": "1 2 3", "task": str(rank), "flag": "WARN",
            "same": str((folder / "files" / "digits" / "numbers.txt").resolve()), "threads": "1",
            "script": str(folder / "scripts"), "work": str(folder),
        }  # fmt: skip


TORCH = """
import argparse
import torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--dist-url")
for name in ("--rank", "--world-size"):
    parser.add_argument(name, type=int)
arguments = parser.parse_args()
dist.init_process_group(
    "gloo", init_method=arguments.dist_url, rank=arguments.rank, world_size=arguments.world_size)
total = torch.ones(1)
dist.all_reduce(total)
print("total", total.item(), "of rank", dist.get_rank())
dist.destroy_process_group()
"""


def test_a_script_of_pytorch_meets_by_the_variables_of_batch_ai(tmp_path):
    (tmp_path / "meet.py").write_text(TORCH)
    settings = {
        "pythonScriptFilePath": "$AZ_BATCHAI_JOB_MOUNT_ROOT/scripts/pytorch/meet.py",
        "commandLineArgs": "--world-size 2 --dist-url $AZ_BATCHAI_PYTORCH_INIT_METHOD --rank $AZ_BATCHAI_TASK_INDEX",
        "communicationBackend": "gloo",
    }
    (tmp_path / "job.json").write_text(json.dumps({"nodeCount": 2, "pyTorchSettings": settings}))
    job = batchai.submit(tmp_path / "job.json").wait(120)
    assert job.state is State.COMPLETED, job.view().reason
    lines = sorted(str(line) for line in job.logs() if "total" in str(line))
    assert lines == ["total 2.0 of rank 0", "total 2.0 of rank 1"]


# what a file becomes ----------------------------------------------------------------------------


def read(folder, mounts=None, **fields):
    return batchai._ImportedJob({**JOB["properties"], **fields}, folder, mounts or {"nfs": "shared:/mnt/nfs"})


def test_mounts_and_containers_become_data_sources(folder):
    container = {"accountName": "acct", "containerName": "train", "relativeMountPath": "blob/",
                 "credentials": {"accountKey": "S3CRET=="}}  # fmt: skip
    imported = read(
        folder,
        mountVolumes={"azureBlobFileSystems": [container]},
        inputDirectories=[*JOB["properties"]["inputDirectories"],
                          {"id": "TRAIN", "path": "$AZ_BATCHAI_JOB_MOUNT_ROOT/blob/cifar10"}],
        outputDirectories=[{"id": "MODEL", "pathPrefix": "$AZ_BATCHAI_JOB_MOUNT_ROOT/blob/runs"}],
    )  # fmt: skip
    assert imported.options["data"] == {
        "nfs_digits": "shared:/mnt/nfs/digits",
        "blob_cifar10": "blob://acct/train/cifar10",
    }
    assert imported.options["outputs"] == "blob://acct/train/runs"
    assert imported.variables["AZ_BATCHAI_INPUT_TRAIN"] == "$DISTDL_DATA_BLOB_CIFAR10"
    assert imported.arguments == [
        "--data", "$AZ_BATCHAI_INPUT_DIGITS", "--out", "$AZ_BATCHAI_OUTPUT_MODEL", "--same", "$DISTDL_DATA_NFS_DIGITS",
    ]  # fmt: skip
    assert "S3CRET" not in str(vars(imported))


def test_a_folder_beside_the_file_needs_no_mount(folder):
    shutil.move(folder / "files" / "digits", folder / "digits")
    assert read(folder, mounts={"other": "/x"}).options["data"] == {"nfs_digits": str(folder / "digits")}


@pytest.mark.parametrize(
    ("line", "nodes", "total", "backend", "arguments"),
    [
        ("mpirun -np 8 --hostfile $H -bind-to none -mca btl ^openib --allow-run-as-root python t.py -n 3", 2, 8,
         "horovod-gloo", ["-n", "3"]),
        ("echo $H; \\\n mpirun -ppn 4 -hosts a,b python -u t.py", 2, 8, "horovod-gloo", []),
        ("mpirun python t.py --name 'two words'", 2, 2, "horovod-gloo", ["--name", "two words"]),
        ("horovodrun -np 1 /opt/conda/bin/python3.6 t.py", 1, 1, "horovod-gloo", []),
        ("pip install keras && python t.py", 1, 1, "plain", []),
    ],
)  # fmt: skip
def test_a_command_line_becomes_counts_a_backend_and_arguments(folder, line, nodes, total, backend, arguments):
    (folder / "t.py").write_text("")
    imported = read(folder, customToolkitSettings={"commandLine": line}, inputDirectories=[])
    assert imported.script == folder / "t.py"
    assert imported.arguments == arguments
    options = imported.options
    assert (options["node_count"], options["np"], options["distributed_backend"]) == (nodes, total, backend)


@pytest.mark.parametrize(
    "line",
    [
        "bash run.sh", "./train --fast", "python -m package.train", "python -c 'import a' b.py", "python train", "",
        "python a.py; python b.py", "for i in 1 2; do python a.py; done", "python $(ls *.py)", "python 'train.py",
        "mpirun -np 1 python a.py : -np 1 python b.py", "mpirun -np 2 bash -c 'python train.py'",
        "python t.py | tee log.txt", "python t.py > log.txt", "nvprof python t.py",
    ],
)  # fmt: skip
def test_a_command_line_that_needs_a_shell_is_refused(folder, line):
    with pytest.raises(InvalidSpec) as refused:
        read(folder, customToolkitSettings={"commandLine": line, "pythonScriptFilePath": "train"})
    assert refused.value.code == "batchai-command-unsupported"
    assert "python SCRIPT.py ARGUMENTS" in refused.value.hint


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"inputDirectories": [{"id": "TRAIN", "path": "$AZ_BATCHAI_MOUNT_ROOT/gone/x"}]}, "batchai-path-missing"),
        ({"environmentVariables": [{"name": "A", "value": "$AZ_BATCHAI_MOUNT_ROOT/gone"}]}, "batchai-path-missing"),
        ({"customToolkitSettings": {"commandLine": "python absent.py"}}, "batchai-path-missing"),
        ({"customToolkitSettings": None, "tensorFlowSettings": {"workerCount": 2}}, "batchai-command-unsupported"),
        ({"nodeCount": "two"}, "batchai-not-a-job"),
        ({"customToolkitSettings": {"commandLine": "mpirun -np $N python t.py"}}, "batchai-not-a-job"),
        ({"inputDirectories": {"id": "A"}}, "batchai-not-a-job"),
        ({"environmentVariables": ["A=1"]}, "batchai-not-a-job"),
    ],
)
def test_what_is_missing_or_wrong_is_named_before_the_start(folder, changes, code):
    (folder / "job.json").write_text(json.dumps({**JOB["properties"], **changes}))
    with pytest.raises(InvalidSpec) as refused:
        batchai.submit(folder / "job.json", mounts={"nfs": "shared:/mnt/nfs"})
    assert refused.value.code == code
    assert refused.value.hint


@pytest.mark.parametrize("text", ["[1]", "{}", "nothing", None])
def test_a_file_that_is_not_a_job_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "job.json").write_text(text)
    with pytest.raises(InvalidSpec):
        batchai.submit(tmp_path / "job.json")
