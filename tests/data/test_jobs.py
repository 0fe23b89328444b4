"""Jobs with data sources and outputs on this machine: real ranks, Azurite over TLS, nothing faked."""

import os
import time
from pathlib import Path

import pytest

import distdl_jupyter
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.events import State
from tests.conftest import wait_for
from tests.data.places import no_signature_in


@pytest.fixture
def home(blob, tmp_path, monkeypatch):
    monkeypatch.setenv("DISTDL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def cifar(blob):
    container = blob.azurite.container()
    for number in range(6):
        container.put(f"cifar/part-{number}.bin", bytes([number]) * (100_000 + number))
    return container


def seen():
    folder = distdl_jupyter.data_path("train")
    return os.environ["DISTDL_DATA_TRAIN"], {path.name: path.stat().st_size for path in folder.iterdir()}


def submit(function=seen, **options):
    options.setdefault("distributed_backend", "plain")
    return distdl_jupyter.submit(function, **options).wait(120)


def result(job):
    view = job.view()
    assert view.state is State.COMPLETED, f"{view.reason} {view.notes} {job.folder.supervisor_log.read_text()}"
    return job.results()


@pytest.mark.readme("data from Blob")
def test_two_nodes_take_their_shards_and_the_next_job_takes_all_from_the_cache(home, cifar):
    job = submit(data=f"train={cifar.place('cifar')}?shard", node_count=2, distributed_backend="horovod-gloo")
    (one, first), (two, second) = result(job)
    assert one != two
    assert first.keys().isdisjoint(second)
    assert len(first | second) == 6
    again = submit(data={"train": cifar.place("cifar")})
    assert len(result(again)[0][1]) == 6
    assert [bar.cached for bar in again.view().staging] == [600_015]


def write():
    from distdl_jupyter import data_path

    folder = Path(os.environ["DISTDL_JOB_DIR"]) / "outputs"
    (folder / "model.bin").write_bytes(b"trained on " + data_path("train").name.encode())


def test_outputs_go_back_to_blob_and_a_local_folder_is_used_in_place(home, cifar, tmp_path):
    (tmp_path / "labels").mkdir()
    job = submit(write, data={"train": str(tmp_path / "labels")}, outputs=cifar.place("runs"))
    result(job)
    assert cifar.read(f"runs/{job.id}/outputs/model.bin") == b"trained on labels"
    assert f"runs/{job.id}/log.txt" not in cifar.names()
    assert "Sent 2 files" in "\n".join(map(str, job.logs()))


def fail():
    raise ValueError("on purpose")


def test_the_log_of_a_job_that_failed_goes_to_blob_too(home, cifar):
    job = submit(fail, outputs=cifar.place("runs"))
    assert job.state is State.FAILED
    assert "ValueError: on purpose" in cifar.read(f"runs/{job.id}/log.txt").decode()


def test_a_source_that_is_not_there_ends_the_job_before_any_rank(home, cifar):
    view = submit(data={"train": "blob://devstoreaccount1/not-there/x"}).view()
    assert view.state is State.FAILED
    assert "The container does not exist" in view.reason
    assert not any(rank.pid for rank in view.ranks)


def test_a_source_that_cannot_be_split_is_refused_before_anything_starts(home):
    with pytest.raises(InvalidSpec, match="which works only with object storage"):
        submit(data={"train": "shared:/data?shard"})
    assert not list(home.glob("home/jobs/*"))


def test_a_refused_download_ends_the_job_and_names_the_node(home, cifar, blob, blob_proxy):
    blob.blob_at(blob_proxy.template)
    blob_proxy.add("part-3", status=404, code="BlobNotFound", times=99)
    job = submit(data={"train": cifar.place("cifar")})
    assert job.state is State.FAILED
    assert "part-3" in job.view().reason
    no_signature_in(home)


def test_a_job_is_canceled_while_its_data_is_on_the_way(home, cifar, blob, blob_proxy):
    blob.blob_at(blob_proxy.template)
    blob_proxy.add("part-", rate=2_000, times=999)
    job = distdl_jupyter.submit(seen, distributed_backend="plain", data={"train": cifar.place("cifar")})
    wait_for(lambda: job.view().staging)
    begin = time.monotonic()
    job.cancel()
    job.wait(60)
    assert job.state is State.CANCELED
    assert time.monotonic() - begin < 10
    assert not any(home.glob("cache/staged/*"))


def test_an_expired_signature_is_renewed_on_the_way(home, cifar, blob, blob_proxy):
    blob.blob_at(blob_proxy.template)
    expired = blob_proxy.add("part-", status=403, code="AuthenticationFailed", times=1, after=1)
    job = submit(data={"train": cifar.place("cifar")})
    assert len(result(job)[0][1]) == 6
    assert expired.met > 1
