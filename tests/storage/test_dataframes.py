"""Spark DataFrames as data of jobs: written by a real Spark, read by ranks, deleted with the last job."""

import base64
import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from distdl_jupyter import jobs
from distdl_jupyter.core.data import DataSource
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.storage import dataframes
from distdl_jupyter.supervisor import messages
from distdl_jupyter.worker.shard import MANIFEST
from tests.clusters.spark.conftest import CONF, spark_hosts  # noqa: F401 - fixture
from tests.clusters.spark.test_session import own_address
from tests.hosts import needs_hosts
from tests.storage.test_jobs import assert_no_secret
from tests.storage.test_stores import SECRET, bucket, home, moto  # noqa: F401 - fixtures

FOLDER = "Use a folder that Spark, this machine and the nodes share"
pytestmark = pytest.mark.timeout(1000)


def run(place, settings, **target):
    """Run ``dataframe_jobs`` and return what it saw."""
    words = [sys.executable, "-m", "tests.storage.dataframe_jobs", str(place), json.dumps(settings), json.dumps(target)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr[-9000:]
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def check(found):
    """Each row of the DataFrame was read once in each epoch, and nothing of it is left."""
    assert found["exact"] == [True, True]
    assert found["rows"] == found["again"] == 104
    assert found["steps"] == [7, 7]
    assert found["log"][0].startswith("train: 104 rows of a DataFrame in ")
    assert found["log"][-1] == "train: 2 ranks read 52 rows each, 104 rows in total, each row once."
    assert found["folders"] == [1, True, []], "kept for the job that reads it too, then deleted"
    assert found["after"] == []


@pytest.mark.full
def test_each_row_of_a_dataframe_is_read_once_by_one_rank(distdl_home):
    settings = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    found = run("", settings, process_count_per_node=2)
    check(found)
    assert " in 5 files, " in found["log"][0]
    assert f"The folder /nowhere for the DataFrame train does not exist on this machine. {FOLDER}" in found["no folder"]
    assert "The DataFrame train cannot be written to https://host/prefix" in found["store"]
    assert (
        found["few"]
        == "train has 1 row, but the job has 2 processes. Use fewer processes, because each needs at least one row."
    )
    assert found["none"].startswith("train has 0 rows, but the job has 2 processes.")
    assert not jobs(), "refused ones leave nothing"


#: Executors that are processes of their own, on this machine.
EXECUTORS = {**CONF, "spark.master": "local-cluster[2,1,1024]", "spark.ui.enabled": "false", "spark.log.level": "ERROR",
             "spark.pyspark.python": sys.executable}  # fmt: skip


@pytest.mark.full
def test_dataframe_goes_through_blob_by_signatures_alone(blob, home):  # noqa: F811
    container = blob.azurite.container()
    found = run(container.place("frames"), EXECUTORS, node_count=2, distributed_backend="torch")
    check(found)
    assert f"in {container.place('frames')}/distdl-" in found["log"][0]
    assert container.names() == []
    assert_no_secret(home)


@pytest.mark.full
def test_dataframe_goes_through_s3_with_what_each_machine_has(bucket):  # noqa: F811
    found = run(f"s3://{bucket.name}/frames", EXECUTORS, process_count_per_node=2)
    check(found)
    assert f"in s3://{bucket.name}/frames/distdl-" in found["log"][0]


@pytest.mark.full
def test_store_that_refuses_is_named_with_its_answer(home, monkeypatch):  # noqa: F811
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    found = run("s3://bucket/frames", {**EXECUTORS, "spark.master": "local[2]"}, process_count_per_node=2)
    assert found["refused"].startswith("Spark cannot write train to s3://bucket/frames/distdl-")
    assert "s3://bucket responded with Connection refused" in found["refused"]
    assert SECRET not in found["refused"]


@needs_hosts
@pytest.mark.full
def test_dataframe_goes_through_a_folder_that_executors_share(distdl_home, spark_hosts, tmp_path):  # noqa: F811
    address = own_address(spark_hosts.address)
    settings = {**CONF, "spark.master": spark_hosts.address, "spark.driver.host": address, "spark.ui.enabled": "false",
                "spark.driver.bindAddress": address, "spark.pyspark.python": sys.executable, "spark.cores.max": "4",
                "spark.executor.cores": "2", "spark.log.level": "ERROR"}  # fmt: skip
    shared = tmp_path / "shared"
    shared.mkdir()
    found = run(f"shared:{shared}", settings, compute_target="spark", node_count=2, distributed_backend="torch")
    check(found)
    assert found["none named"].startswith("Spark writes the DataFrame train on other machines")
    assert 'data={"train": (dataframe, "shared:/mnt/data")}' in found["none named"]
    assert "DISTDL_DATAFRAMES=shared:/mnt/data" in found["none named"]


def test_only_folders_of_dataframes_are_deleted(distdl_home, tmp_path):
    named = tmp_path / "distdl-0123456789abcdef0123456789abcdef"
    marked = tmp_path / "data"
    linked = tmp_path / "distdl-00000000000000000000000000000000"
    for folder in (named, marked):
        folder.mkdir()
    (marked / MANIFEST).write_text("{}")
    linked.symlink_to(marked)

    def release(folder, rows=3):
        dataframes.release(JobStore(), [DataSource(name="train", scheme="path", path=str(folder), rows=rows)])

    for folder in (named, marked, linked, tmp_path / "gone"):
        release(folder)
    assert sorted(path.name for path in tmp_path.iterdir() if path != distdl_home) >= sorted(
        path.name for path in (named, marked, linked))  # fmt: skip
    (named / MANIFEST).write_text("{}")
    release(named, rows=None)
    assert named.exists(), "what a user has named"
    release(named)
    assert not named.exists()


ALONE = """
import base64, json, sys
sys.modules["distdl_jupyter"] = None  # as where it is not installed
import pyarrow as pa
from pyspark import cloudpickle
write = cloudpickle.loads(base64.b64decode(sys.stdin.read()))
batch = pa.RecordBatch.from_pydict({"id": list(range(10))})
try:
    print(json.dumps([row for one in write(iter([batch, batch.slice(0, 0), batch])) for row in one.to_pylist()]))
except Exception as error:
    print(type(error).__name__, error)
"""


def alone(write):
    """Run what executors do in a process without this package, and return what it printed."""
    from pyspark import cloudpickle

    from distdl_jupyter.node.staging import failure
    from distdl_jupyter.stager import stores

    with dataframes._travelling(dataframes, stores, failure):
        travels = base64.b64encode(cloudpickle.dumps(write))
    done = subprocess.run([sys.executable, "-c", ALONE], input=travels, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def test_executors_need_nothing_of_this_package(tmp_path):
    source = DataSource(name="train", scheme="path", path=str(tmp_path / "frame"), rows=0)
    (row,) = json.loads(alone(dataframes._writer(dataframes._putting(source))))
    (file,) = (tmp_path / "frame").iterdir()
    assert (row["name"], row["groups"], row["bytes"]) == (file.name, [20], file.stat().st_size)
    assert pq.read_table(file).column("id").to_pylist() == [*range(10), *range(10)]
    sas = "sv=2024&sig=abcdefgh1234567890"
    put = dataframes._storing("train", "blob", "https://127.0.0.1:9/account/container", "frames", "", {}, sas)
    said = alone(dataframes._writer(put))
    assert said.startswith("RuntimeError https://127.0.0.1:9/account/container responded with ")
    assert "sig=" not in said


def report(first, rows):
    return {"first": first, "rows": rows, "total": 10, "size": 2}


@pytest.mark.parametrize(
    ("reports", "text", "complete"),
    [
        ([(5, 5), (0, 5)], "train: 2 ranks read 5 rows each, 10 rows in total, each row once.", True),
        ([(0, 4), (4, 6)], "train: 2 ranks read 4 or 6 rows each, 10 rows in total, each row once.", True),
        ([(0, 5), (0, 5)], "train: 2 ranks read 5 rows each, which does not cover each of the 10 rows once.", False),
        (
            [(0, 5), (5, 4)],
            "train: 2 ranks read 4 or 5 rows each, which does not cover each of the 10 rows once.",
            False,
        ),
    ],
)
def test_log_says_whether_all_rows_were_read_once(reports, text, complete):
    assert messages.shards("train", 10, [report(*one) for one in reports]) == (text, complete)
