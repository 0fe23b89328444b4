"""What goes wrong on the way, and what it costs: a cut, a crash, a signature that ends, damage, a change."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from azure.storage.blob import ContentSettings

from distdl_jupyter.node.staging.failure import Failure
from distdl_jupyter.stager import stores
from distdl_jupyter.stager.fetch import Feed, Fetcher
from distdl_jupyter.stager.order import Item
from tests.conftest import wait_for
from tests.node.staging.conftest import noise, reading, source

MB = 2**20
RANGE = 4 * MB


def feed(address, ca=""):
    """Return a feed of Blob at an address, with a signature."""
    access = stores.access("train", "blob", address, ca=ca, ask=lambda timeout: {"sas": "sv=1&sig=secret"})
    return Feed("train", "blob", address, access, lambda size: None, lambda code, text: None)


def settled(count):
    """Return a number that counts no more."""
    before = -1
    while before != (before := count()):
        time.sleep(0.3)
    return before


def only(stage, last):
    files = stage.files(last["paths"]["DISTDL_DATA_TRAIN"])
    assert len(files) == 1
    return next(iter(files.values()))


@pytest.mark.full
def test_after_a_cut_it_goes_on_where_it_was(stage, large, blob_proxy):
    blob_proxy.add("/large", cut=3 * MB, times=2)
    run = stage.run(source(large, address=blob_proxy.endpoint), sas=reading(large), workers=2)
    assert only(stage, run.staged()) == large.data
    # what was on the wire when it was cut is asked again, and no more
    assert 0 <= blob_proxy.sent() - len(large.data) <= 2 * MB // 4
    assert blob_proxy.faults[0].met >= 2
    assert run.of("progress")[-1]["done"] == len(large.data)


def test_a_new_process_goes_on_where_a_killed_one_was(stage, large, blob_proxy):
    slow = blob_proxy.add("/large", rate=8 * MB, times=1000)
    told = source(large, address=blob_proxy.endpoint)
    first = stage.run(told, sas=reading(large), workers=1)
    first.until(lambda message: message["type"] == "progress" and message["done"] > 9 * MB)
    first.kill()
    slow.times = 0
    blob_proxy.cut_all()  # else the proxy counts a piece more that the killed process does not take
    before = settled(blob_proxy.sent)
    assert len(stage.left(".part")) == len(stage.left(".ranges")) == 1
    run = stage.run(told, sas=reading(large))
    last = run.staged()
    assert only(stage, last) == large.data
    assert last["cached"] >= 2 * RANGE
    assert last["cached"] + last["bytes"] == len(large.data)
    assert blob_proxy.sent() - before == last["bytes"]
    assert [note["code"] for note in run.of("note")] == ["resumed"]
    assert stage.left(".part") == []


@pytest.mark.full
def test_what_a_crash_spoiled_on_the_disk_is_fetched_again(stage, large, blob_proxy):
    slow = blob_proxy.add("/large", rate=8 * MB, times=1000)
    told = source(large, address=blob_proxy.endpoint)
    first = stage.run(told, sas=reading(large), workers=1)
    first.until(lambda message: message["type"] == "progress" and message["done"] > 9 * MB)
    first.kill()
    slow.times = 0
    with stage.left(".part")[0].open("r+b") as spoiled:
        spoiled.seek(100)
        spoiled.write(b"spoiled")
    with stage.left(".ranges")[0].open("ab") as torn:
        torn.write(b"4 0123")
    last = stage.run(told, sas=reading(large)).staged()
    assert only(stage, last) == large.data
    assert RANGE <= last["cached"] < 3 * RANGE


@pytest.mark.full
def test_what_was_whole_before_the_machine_was_switched_off_is_looked_at_once(stage, large, blob_proxy):
    told = source(large, address=blob_proxy.endpoint)
    stage.run(told, sas=reading(large)).staged()
    [written], [ranges] = stage.left(""), stage.left(".ranges")
    *lines, run_of_the_machine = ranges.read_text().splitlines(keepends=True)
    assert run_of_the_machine.startswith("boot ")
    for spoiled, fetched in ((b"", 0), (b"spoiled", RANGE), (b"", 0)):
        ranges.write_text("".join([*lines, f"boot {socket.gethostname()}/of-yesterday\n"]))
        changed = written.stat()
        written.chmod(0o600)
        with written.open("r+b") as file:
            file.write(spoiled)
        os.utime(written, ns=(changed.st_atime_ns, changed.st_mtime_ns))
        last = stage.run(told, sas=reading(large)).staged()
        assert only(stage, last) == large.data
        assert (last["bytes"], last["cached"]) == (fetched, len(large.data) - fetched)
    assert blob_proxy.sent() == len(large.data) + RANGE
    # what another machine wrote is seen here because it is on a disk
    ranges.write_text("".join([*lines, "boot another/run\n"]))
    before = ranges.read_text()
    assert stage.run(told, sas=reading(large)).staged()["bytes"] == 0
    assert ranges.read_text() == before


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, None], ids=["TERM", "INT", "end of input"])
def test_it_ends_at_once_when_it_is_told_or_nobody_listens(stage, large, blob_proxy, end):
    blob_proxy.add("/large", delay=20, times=1000)
    run = stage.run(source(large, address=blob_proxy.endpoint), sas=reading(large))
    wait_for(blob_proxy.gets)
    run.process.stdin.close() if end is None else run.process.send_signal(end)
    run.end(10)
    assert run.code == (3 if end is None else -end)


@pytest.mark.full
def test_a_signature_is_renewed_before_it_ends(stage, large, blob_proxy):
    blob_proxy.add("/large", rate=4 * MB, times=1000)
    run = stage.run(source(large, address=blob_proxy.endpoint), sas=reading(large, seconds=4), workers=1)
    assert only(stage, run.staged()) == large.data
    assert run.asked >= 2
    assert {seen.status for seen in blob_proxy.gets()} == {206}


@pytest.mark.full
def test_a_signature_that_is_refused_in_the_middle_is_renewed(stage, large, blob_proxy):
    blob_proxy.add("/large", status=403, code="AuthenticationFailed", after=2)
    run = stage.run(source(large, address=blob_proxy.endpoint), sas=reading(large), workers=1)
    assert only(stage, run.staged()) == large.data
    assert run.asked == 2
    assert blob_proxy.sent() == len(large.data)


@pytest.mark.full
def test_a_signature_that_has_ended_is_renewed(stage, large):
    given = iter([large.sas(seconds=-60, begin=-3600), large.sas()])
    run = stage.run(source(large), sas=lambda _: {"sas": next(given)})
    assert only(stage, run.staged()) == large.data
    assert run.asked == 2


def test_a_right_that_is_missing_is_said_with_the_role_that_gives_it(stage, large, blob_proxy):
    blob_proxy.add("/large", status=403, code="AuthorizationPermissionMismatch", times=1000)
    run = stage.run(source(large, address=blob_proxy.endpoint), sas=reading(large))
    last = run.failed()
    assert last["text"] == "Azure Blob denied access to train (403 AuthorizationPermissionMismatch)."
    assert "Storage Blob Data Reader" in last["remedy"]
    assert run.asked == 3


def test_who_gives_no_signature_says_why(stage, large):
    run = stage.run(source(large), sas=lambda _: {"refused": "Nobody is signed in.", "remedy": "Sign in."})
    assert run.failed() == {"type": "failed", "source": "train", "text": "Nobody is signed in.", "remedy": "Sign in."}


def test_a_blob_that_is_changed_meanwhile_fails_by_its_name(stage, large, blob_proxy):
    blob_proxy.add("/large", after=2, before=lambda _: large.put("large", noise(17 * MB, 5)))
    run = stage.run(source(large, address=blob_proxy.endpoint), sas=reading(large), workers=1)
    last = run.failed()
    assert last["text"] == "'large' of train changed or was deleted during the download."
    assert last["source"] == "train"
    assert list(stage.base.rglob("large")) == []


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (404, "BlobNotFound", "'x' of train no longer exists (BlobNotFound)."),
        (409, "BlobArchived", "'x' of train cannot be read now (BlobArchived)."),
        (400, "InvalidHeaderValue", "Azure Blob answered 400 InvalidHeaderValue for 'x' of train."),
    ],
)
def test_what_cannot_be_tried_again_fails_at_once_by_its_name(stage, container, blob_proxy, status, code, text):
    container.put("x", b"1")
    blob_proxy.add("/x", status=status, code=code)
    assert stage.run(source(container, address=blob_proxy.endpoint), sas=reading(container)).failed()["text"] == text
    assert len(blob_proxy.gets()) == 1


def test_a_blob_that_was_deleted_since_it_was_listed_fails_by_its_name(stage, container):
    container.put("gone", b"1")
    told = source(container)
    container.client.delete_blob("gone")
    last = stage.run(told, sas=reading(container)).failed()
    assert last["text"] == "'gone' of train changed or was deleted during the download."


def test_damage_on_the_way_is_seen_and_the_file_is_fetched_again(stage, container, blob_proxy):
    data = noise(10 * MB)
    container.put("one", data)
    container.put("small", data[:1000])
    blob_proxy.add("/one", corrupt=12345)
    blob_proxy.add("/small", corrupt=12)
    run = stage.run(source(container, address=blob_proxy.endpoint), sas=reading(container), workers=1)
    last = run.staged()
    assert stage.files(last["paths"]["DISTDL_DATA_TRAIN"]) == {"one": data, "small": data[:1000]}
    assert blob_proxy.sent() == 2 * len(data) + 2000
    assert last["bytes"] == len(data) + 1000
    assert [note["code"] for note in run.of("note")] == ["damaged"]


@pytest.mark.parametrize("size", [1000, 9 * MB])
def test_a_blob_whose_content_is_not_what_its_checksum_says_is_refused(stage, container, size):
    container.put("lie", noise(size))
    container.client.get_blob_client("lie").set_http_headers(ContentSettings(content_md5=bytearray(16)))
    last = stage.run(source(container), sas=reading(container)).failed()
    assert last["text"] == "'lie' of train arrived with a wrong checksum several times."
    assert stage.left("") == stage.left(".ranges") == []
    assert sum(path.stat().st_size for path in stage.left(".part")) == 0


def test_throttling_that_lasts_is_waited_for_whatever_short_times_the_service_names(large, blob_proxy):
    blob_proxy.add("/large", status=503, code="ServerBusy", headers={"Retry-After": "1"}, times=1000)
    waits = []
    reading_ = feed(f"{blob_proxy.endpoint}/{large.name}", Path(large.azurite.ca).read_text())
    with pytest.raises(Failure, match=r"The download of 'large' from .* is incomplete \(503 ServerBusy\)"):
        Fetcher(waits.append).fetch(reading_, Item("large", 17 * MB, "1", b""), 0)
    assert min(waits) >= 1
    assert 60 < sum(waits) < 240


@pytest.mark.full
@pytest.mark.parametrize("status", [503, 429])
def test_throttling_is_obeyed(stage, large, blob_proxy, status):
    blob_proxy.add("/large", status=status, code="ServerBusy", headers={"Retry-After": "1"}, times=3)
    run = stage.run(source(large, address=blob_proxy.endpoint), sas=reading(large), workers=1)
    last = run.staged()
    assert only(stage, last) == large.data
    assert last["seconds"] >= 3
    assert [note["code"] for note in run.of("note")] == ["throttled"]


@pytest.mark.parametrize(
    ("host", "why"), [("127.0.0.1:1", "Connection refused"), ("nobody.invalid", "its name cannot be resolved")]
)
def test_a_host_that_does_not_answer_is_named_after_many_attempts(host, why):
    waits = []
    with pytest.raises(Failure) as failure:
        Fetcher(waits.append).fetch(feed(f"https://{host}/account/c"), Item("x", 1, "1", b""), 0)
    assert failure.value.text == f"The download of 'x' from {host} is incomplete ({why})."
    assert len(waits) == 11
    assert 60 < sum(waits) < 240


def test_a_certificate_that_nobody_vouches_for_is_refused(stage, large):
    last = stage.run(source(large), sas=reading(large), ca="").failed()
    assert "is not trusted" in last["text"]
    assert "SSL_CERT_FILE" in last["remedy"]


@pytest.mark.parametrize("address", ["http://127.0.0.1/account/container", "https://u:p@h/c", "https://h/c?sig=abc"])
def test_only_an_https_address_without_a_signature_is_taken(stage, container, address):
    assert "is not a valid https address" in stage.run({**source(container), "address": address}).failed()["text"]
