"""A Batch AI job on SSH hosts that share no disk with this machine: script, data and outputs travel."""

import json
from pathlib import Path

import pytest

from tests.clusters.ssh.conftest import lab_of  # noqa: F401
from tests.compat.test_batchai import check, folder, submit  # noqa: F401
from tests.hosts import needs_hosts

pytestmark = [needs_hosts, pytest.mark.timeout(200), pytest.mark.full]
DISK = "/opt/distdl-test-disk"


@pytest.fixture
def lab(lab_of, folder, tmp_path, monkeypatch):  # noqa: F811
    Path(DISK).mkdir(exist_ok=True)
    yield lab_of(2, private={name: [DISK, str(folder)] for name in ("node-a", "node-b")}, directory=DISK)
    Path(DISK).rmdir()


def test_it_runs_where_no_folder_is_shared(lab, folder):  # noqa: F811
    job = submit(folder, compute_target="lab").wait(120)
    assert [rank.host for rank in job.view().ranks] == ["node-a", "node-b"]
    (values, *_) = job.folder.outputs.rglob("rank-0.json")
    read = json.loads(values.read_text())["same"]
    assert read.startswith(DISK)  # a disk of the host, not of this machine
    check(job, folder, data=read)
