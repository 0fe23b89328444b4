"""A Batch AI job that mounted a container: its files are brought to the nodes and its outputs go back to it."""

import json
from pathlib import Path

import pytest

from distdl_jupyter.compat import batchai
from distdl_jupyter.core.state import State

SCRIPT = """
import argparse, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--data", type=pathlib.Path)
arguments = parser.parse_args()
files = sorted(arguments.data.rglob("*.bin"))
print("files", len(files), sum(len(file.read_bytes()) for file in files), arguments.data)
pathlib.Path(os.environ["AZ_BATCHAI_OUTPUT_MODEL"], "model.txt").write_text("trained")
"""


@pytest.fixture
def folder(blob, tmp_path, monkeypatch):
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))
    container = blob.azurite.container()
    for number in range(3):
        container.put(f"cifar/batch-{number}.bin", bytes(10_000 + number))
    account, name = container.place("cifar").removeprefix("blob://").split("/")[:2]
    mount = {"accountName": account, "containerName": name, "relativeMountPath": "data",
             "credentials": {"accountKey": "a-key-of-that-time"}}  # fmt: skip
    properties = {
        "nodeCount": 2,
        "pyTorchSettings": {
            "pythonScriptFilePath": "$AZ_BATCHAI_JOB_MOUNT_ROOT/scripts/count.py",
            "commandLineArgs": "--data $AZ_BATCHAI_JOB_MOUNT_ROOT/data/cifar",
        },
        "mountVolumes": {"azureBlobFileSystems": [mount]},
        "outputDirectories": [{"id": "MODEL", "pathPrefix": "$AZ_BATCHAI_JOB_MOUNT_ROOT/data/runs"}],
    }
    (tmp_path / "count.py").write_text(SCRIPT)
    (tmp_path / "job.json").write_text(json.dumps({"properties": properties}))
    return tmp_path, container


@pytest.mark.full
def test_a_mounted_container_is_staged_and_gets_the_outputs(folder):
    path, container = folder
    job = batchai.submit(path / "job.json").wait(120)
    assert job.state is State.COMPLETED, f"{job.view().reason} {job.folder.supervisor_log.read_text()}"
    lines = [str(line) for line in job.logs() if "files" in str(line) and line.rank is not None]
    assert [line.split()[:3] for line in lines] == [["files", "3", "30003"]] * 2
    assert container.read(f"runs/{job.id}/outputs/MODEL/model.txt") == b"trained"
    assert {(bar.done, bar.total) for bar in job.view().staging} == {(30_003, 30_003)}
    for file in Path(job.folder.path).rglob("*"):
        if file.is_file():
            assert b"a-key-of-that-time" not in file.read_bytes()
