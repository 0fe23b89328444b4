"""What Azure ML starts on its nodes: which rank a process is."""

import json
import subprocess
import sys

import pytest

from distdl_jupyter.clusters.azureml import bootstrap
from distdl_jupyter.clusters.azureml.bootstrap import identify

TF_CONFIG = {"cluster": {"worker": ["10.0.0.4:2222", "10.0.0.5:2222"]}, "task": {"type": "worker", "index": 1}}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, "")),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "RANK": "9",
            },
            (3, 4, "1"),
        ),
        ({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, (2, 4, "0")),
        ({"TF_CONFIG": json.dumps(TF_CONFIG)}, (1, 2, "")),
    ],
)
def test_each_distribution_of_azure_tells_a_process_its_rank(environment, expected):
    assert identify(environment) == expected


def test_a_wrong_number_of_processes_is_reported(tmp_path):
    (tmp_path / "plan.json").write_text('{"ranks": 2}')
    ended = subprocess.run([sys.executable, bootstrap.__file__], cwd=tmp_path, env={}, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "Azure ML set the number of processes to 1, but the job needs 2" in ended.stderr
