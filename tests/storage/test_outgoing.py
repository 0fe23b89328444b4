"""What a job wrote, back in Blob."""

import contextlib
import dataclasses
import hashlib
import tracemalloc

import pytest

from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.core.events import EventWriter
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.storage import outgoing

ID = "20261121-120000-aaaaa"


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
    sent = outgoing.deliver(folder, spec, with_log=False)
    assert (sent.files, sent.bytes, sent.there) == (3, 300_005, 0)
    assert container.names() == [f"runs/{ID}/{name}" for name in ("outputs/deep/a b.txt", "outputs/model.pt",
                                                                  "results/rank-0.pkl")]  # fmt: skip
    assert container.read(f"runs/{ID}/outputs/model.pt") == b"m" * 300_000
    kept = container.client.get_blob_client(f"runs/{ID}/outputs/model.pt").get_blob_properties()
    assert bytes(kept.content_settings.content_md5) == hashlib.md5(b"m" * 300_000, usedforsecurity=False).digest()


def test_a_second_delivery_sends_what_differs_alone(job, container):
    folder, spec = job
    outgoing.deliver(folder, spec, with_log=True)
    (folder.outputs / "model.pt").write_bytes(b"n" * 300_000)
    sent = outgoing.deliver(folder, spec, with_log=True)
    assert (sent.files, sent.bytes, sent.there) == (1, 300_000, 2)
    assert container.read(f"runs/{ID}/outputs/model.pt") == b"n" * 300_000


def test_a_log_is_appended_once_also_when_the_answer_is_lost(job, container, blob, blob_proxy):
    folder, spec = job
    blob.blob_at(blob_proxy.template)
    # The append arrives and its answer does not, so that the client sends it again.
    lost = blob_proxy.add(
        "comp=appendblock", method="PUT", cut=0, before=lambda _: _appended_before(folder, spec, blob)
    )
    outgoing.deliver(folder, spec, with_log=True)
    assert lost.met
    text = container.read(f"runs/{ID}/{outgoing.LOG}").decode()
    assert [line.partition("] ")[2] for line in text.splitlines()] == ["line 0", "line 1", "line 2"]
    assert outgoing.deliver(folder, spec, with_log=True).bytes == 0
    assert container.read(f"runs/{ID}/{outgoing.LOG}").decode() == text


def _appended_before(folder, spec, blob):
    """Do behind the client's back what its own lost request did."""
    place = outgoing.target(spec)
    service = blob.azurite.service
    outgoing.append(service.get_blob_client(place.container, f"{place.prefix}/{outgoing.LOG}"), outgoing._log(folder))


def test_a_log_that_has_grown_is_continued(job, container):
    folder, spec = job
    outgoing.deliver(folder, spec, with_log=True)
    writer = EventWriter(folder.events)
    writer.write("log", rank=None, stream="sys", text="later")
    writer.close()
    outgoing.deliver(folder, spec, with_log=True)
    assert container.read(f"runs/{ID}/{outgoing.LOG}").decode().count("\n") == 4


def test_a_long_log_goes_in_several_appends_and_is_never_held_as_a_whole(job, container, monkeypatch):
    monkeypatch.setattr(outgoing, "_APPEND", outgoing._APPEND // 4)
    folder, spec = job
    writer = EventWriter(folder.events)
    line = "step of a long training" * 40
    for _ in range(15):
        writer.write("log", rank=1, stream="out", text="\n".join([line] * 1000))
    writer.close()
    size = folder.log.stat().st_size
    assert size > 10 * outgoing._APPEND
    with peak_of_memory() as peak:
        sent = outgoing.deliver(folder, spec, with_log=True)
    assert sent.bytes > size
    assert peak() < size / 2
    text = container.read(f"runs/{ID}/{outgoing.LOG}")
    assert text.count(line.encode() + b"\n") == 15_000
    assert outgoing.deliver(folder, spec, with_log=True).bytes == 0


@contextlib.contextmanager
def peak_of_memory():
    """Give a function that tells how many bytes Python's objects took at most within the block."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_links_out_of_the_folder_stay_here(job, tmp_path, container):
    folder, spec = job
    (tmp_path / "private").write_text("private")
    (folder.outputs / "link").symlink_to(tmp_path / "private")
    outgoing.deliver(folder, spec, with_log=False)
    assert not any("link" in name for name in container.names())


def test_a_refused_delivery_names_the_role(job, blob, blob_proxy):
    blob.blob_at(blob_proxy.template)
    blob_proxy.add("outputs", method="PUT", status=403, code="AuthorizationPermissionMismatch", times=99)
    with pytest.raises(DataUnavailable, match="the role Storage Blob Data Contributor"):
        outgoing.deliver(*job, with_log=False)


def test_it_ends_when_somebody_wants_it_to(job):
    with pytest.raises(outgoing.Stopped):
        outgoing.deliver(*job, with_log=False, stopped=lambda: True)


def test_a_container_that_is_not_there(job):
    folder, spec = job
    spec = dataclasses.replace(spec, outputs="blob://devstoreaccount1/not-there")
    with pytest.raises(DataUnavailable, match="The container does not exist"):
        outgoing.deliver(folder, spec, with_log=True)
