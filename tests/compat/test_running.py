"""A Batch AI job, run: real ranks, the folders and variables that its script knows, its outputs in the job's folder."""

import json
from pathlib import Path

import pytest

from distdl_jupyter import cli, submit
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.state import State

SCRIPT = """
import argparse, json, os, pathlib
import horovod.torch as hvd
import torch
parser = argparse.ArgumentParser()
for name in ("--data", "--out", "--log"):
    parser.add_argument(name, type=pathlib.Path)
chosen = parser.parse_args()
hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
told = {
    "rank": hvd.rank(), "local": hvd.local_size(), "size": hvd.size(), "sum": total,
    "data": (chosen.data / "numbers.txt").read_text(),
    "same": str((pathlib.Path(os.environ["AZ_BATCHAI_MOUNT_ROOT"]) / "nfs/digits/numbers.txt").resolve()),
    "script": os.environ["AZ_BATCHAI_INPUT_SCRIPTS"], "work": os.environ["AZ_BATCHAI_JOB_WORK_DIR"],
    "task": os.environ["AZ_BATCHAI_TASK_INDEX"], "pin": len(os.environ["PIN"]), "flag": os.environ["NCCL_DEBUG"],
}
(chosen.out / f"rank-{hvd.rank()}.json").write_text(json.dumps(told))
(chosen.log / f"log-{hvd.rank()}.txt").write_text("x")
"""
JOB = {
    "properties": {
        "nodeCount": 2,
        "customToolkitSettings": {
            "commandLine": "mpirun -np 2 --hostfile $AZ_BATCHAI_MPI_HOST_FILE -x NCCL_DEBUG=WARN python -u "
            "$AZ_BATCHAI_INPUT_SCRIPTS/ranks.py --data $AZ_BATCHAI_INPUT_DIGITS --out $AZ_BATCHAI_OUTPUT_MODEL "
            "--log $AZ_BATCHAI_MOUNT_ROOT/extfs/logs"
        },
        "inputDirectories": [
            {"id": "SCRIPTS", "path": "$AZ_BATCHAI_MOUNT_ROOT/extfs/scripts"},
            {"id": "DIGITS", "path": "$AZ_BATCHAI_MOUNT_ROOT/nfs/digits"},
        ],
        "outputDirectories": [{"id": "MODEL", "pathPrefix": "$AZ_BATCHAI_MOUNT_ROOT/extfs", "pathSuffix": "Models"}],
        "secrets": [{"name": "PIN", "value": "in-the-file-only"}],
    }
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "ranks.py").write_text(SCRIPT)
    (tmp_path / "files" / "digits").mkdir(parents=True)
    (tmp_path / "files" / "digits" / "numbers.txt").write_text("1 2 3")
    monkeypatch.setenv("PIN", "7319-and-more")
    return tmp_path


def check(job, folder, *, nodes=2, data=None):
    """``data`` is the file that ranks read, None where it is the one that lies here."""
    assert job.state is State.COMPLETED, job.view().reason
    assert (job.spec.node_count, job.spec.distributed_backend) == (nodes, "horovod-gloo")
    for rank in range(2):
        told = json.loads((job.folder.outputs / "Models" / f"rank-{rank}.json").read_text())
        assert told == {
            "rank": rank, "local": 2 // nodes, "size": 2, "sum": 3.0, "data": "1 2 3", "flag": "WARN",
            "same": data or str((folder / "files" / "digits" / "numbers.txt").resolve()), "task": str(rank),
            "script": str(folder / "scripts"), "work": str(folder), "pin": len("7319-and-more"),
        }  # fmt: skip
        assert (job.folder.outputs / "extfs" / "logs" / f"log-{rank}.txt").read_text() == "x"


def nowhere(folder, *words):
    """Assert that no file below a job's folder holds one of the words."""
    for path in Path(folder).rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert [word for word in words if word.encode() in data] == [], path


def test_a_job_json_runs_as_it_said(folder):
    job = submit(batchai_job=str(folder / "job.json"), batchai_mounts={"nfs": str(folder / "files")}, name="again",
                 environment_variables={"MORE": "yes"})  # fmt: skip
    job.wait(180)
    check(job, folder)
    assert job.name == "again"
    assert job.spec.environment_variables == {"NCCL_DEBUG": "WARN", "MORE": "yes"}
    assert job.spec.secret_variables == ("PIN",)
    nowhere(job.folder.path, "7319-and-more", "in-the-file-only")


def test_options_beside_it_win_and_the_command_line_runs_it_too(folder, capsys):
    arguments = ["submit", "--batchai-job", str(folder / "job.json"), "--batchai-mount", f"nfs={folder / 'files'}"]
    assert cli.main([*arguments, "--explain"]) == 0
    assert "Nothing is missing" in capsys.readouterr().out
    assert cli.main([*arguments, "-N", "1", "-p", "2", "-f"]) == 0
    from distdl_jupyter import jobs

    (job,) = jobs()
    check(job, folder, nodes=1)


def test_what_is_missing_is_said_before_anything_starts(folder, capsys):
    arguments = ["submit", "--batchai-job", str(folder / "job.json")]
    assert cli.main(arguments) == 2
    assert 'batchai_mounts={"nfs": "shared:/PATH"}' in capsys.readouterr().err
    assert cli.main([*arguments, "--explain"]) == 1
    assert "MISSING" in capsys.readouterr().out
    assert cli.main(["submit"]) == 2
    assert "distdl submit needs either a script or" in capsys.readouterr().err


def test_one_thing_is_submitted_at_a_time():
    with pytest.raises(InvalidSpec, match=r"batchai_job='job\.json'"):
        submit(print, batchai_job="job.json")


TORCH = """
import argparse
import torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--dist-url")
for name in ("--rank", "--world-size"):
    parser.add_argument(name, type=int)
chosen = parser.parse_args()
dist.init_process_group("gloo", init_method=chosen.dist_url, rank=chosen.rank, world_size=chosen.world_size)
total = torch.ones(1)
dist.all_reduce(total)
print("total", total.item(), "of rank", dist.get_rank())
dist.destroy_process_group()
"""


def test_a_script_of_pytorch_meets_by_batch_ai_s_own_variables(tmp_path):
    (tmp_path / "meet.py").write_text(TORCH)
    settings = {
        "pythonScriptFilePath": "$AZ_BATCHAI_JOB_MOUNT_ROOT/scripts/pytorch/meet.py",
        "commandLineArgs": "--world-size 2 --dist-url $AZ_BATCHAI_PYTORCH_INIT_METHOD --rank $AZ_BATCHAI_TASK_INDEX",
        "communicationBackend": "gloo",
    }
    (tmp_path / "job.json").write_text(json.dumps({"nodeCount": 2, "pyTorchSettings": settings}))
    job = submit(batchai_job=str(tmp_path / "job.json")).wait(120)
    assert job.state is State.COMPLETED, job.view().reason
    said = sorted(str(line) for line in job.logs() if "total" in str(line))
    assert said == ["total 2.0 of rank 0", "total 2.0 of rank 1"]
