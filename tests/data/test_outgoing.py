"""What a job wrote, back in Blob."""

import hashlib
import tracemalloc

import pytest

from distdl_jupyter.azure.identity import open_blob_service
from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.core.logfile import EventWriter
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.data import outputs

ID = "20261121-120000-aaaaa"
MB = 2**20


@pytest.fixture
def container(blob):
    return blob.azurite.container()


@pytest.fixture
def job(tmp_path, container):
    folder = JobFolder(tmp_path / ID)
    written = {"outputs/model.pt": b"m" * 300_000, "outputs/deep/a b.txt": b"text", "results/rank-0.pkl": b"1"}
    for path, content in {**written, "payload.pkl": b"secret code"}.items():
        (folder.path / path).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / path).write_bytes(content)
    writer = EventWriter(folder.events)
    for number in range(3):
        writer.write("log", rank=0, stream="out", text=f"line {number}")
    writer.close()
    return folder, JobSpec(id=ID, name="x", outputs=container.place("runs"))


def test_outputs_and_values_arrive_below_the_jobs_own_prefix(job, container):
    folder, spec = job
    sent = outputs.upload(folder, spec, open_blob_service, include_log=False)
    assert (sent.file_count, sent.byte_count, sent.existing_count) == (3, 300_005, 0)
    assert container.names() == [f"runs/{ID}/{name}" for name in ("outputs/deep/a b.txt", "outputs/model.pt",
                                                                  "results/rank-0.pkl")]  # fmt: skip
    assert container.read(f"runs/{ID}/outputs/model.pt") == b"m" * 300_000
    kept = container.client.get_blob_client(f"runs/{ID}/outputs/model.pt").get_blob_properties()
    assert bytes(kept.content_settings.content_md5) == hashlib.md5(b"m" * 300_000, usedforsecurity=False).digest()


def test_a_second_delivery_sends_what_differs_alone(job, container):
    folder, spec = job
    outputs.upload(folder, spec, open_blob_service, include_log=True)
    (folder.outputs / "model.pt").write_bytes(b"n" * 300_000)
    sent = outputs.upload(folder, spec, open_blob_service, include_log=True)
    assert (sent.file_count, sent.byte_count, sent.existing_count) == (1, 300_000, 3)
    assert container.read(f"runs/{ID}/outputs/model.pt") == b"n" * 300_000


def test_a_log_that_has_grown_is_sent_again_and_never_held_as_a_whole(job, container):
    folder, spec = job
    outputs.upload(folder, spec, open_blob_service, include_log=True)
    assert container.read(f"runs/{ID}/{outputs.LOG_NAME}").decode().count("\n") == 3
    writer = EventWriter(folder.events)
    line = "step of a long training" * 40
    for _ in range(45):
        writer.write("log", rank=1, stream="out", text="\n".join([line] * 1000))
    writer.close()
    size = folder.log.stat().st_size
    tracemalloc.start()
    sent = outputs.upload(folder, spec, open_blob_service, include_log=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (sent.file_count, sent.existing_count) == (1, 3)
    # The log is read in steps of 8 MiB; the bytes, events and lines of one step are held at once.
    assert peak < 4 * 8 * MB < size
    assert container.read(f"runs/{ID}/{outputs.LOG_NAME}").count(line.encode() + b"\n") == 45_000
    assert outputs.upload(folder, spec, open_blob_service, include_log=True).byte_count == 0


def test_links_out_of_the_folder_stay_here(job, tmp_path, container):
    folder, spec = job
    (tmp_path / "private").write_text("private")
    (folder.outputs / "link").symlink_to(tmp_path / "private")
    outputs.upload(folder, spec, open_blob_service, include_log=False)
    assert not any("link" in name for name in container.names())


def test_a_refused_delivery_names_the_role(job, blob, blob_proxy):
    blob.blob_at(blob_proxy.template)
    blob_proxy.add("outputs", method="PUT", status=403, code="AuthorizationPermissionMismatch", times=99)
    with pytest.raises(DataUnavailable, match="the role Storage Blob Data Contributor"):
        outputs.upload(*job, open_blob_service, include_log=False)


def test_it_ends_when_somebody_wants_it_to(job):
    with pytest.raises(outputs.UploadStopped):
        outputs.upload(*job, open_blob_service, include_log=False, is_stopped=lambda: True)
