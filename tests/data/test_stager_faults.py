"""What goes wrong on the way, and what it costs: a cut, a crash, a signature that ends, damage, a change."""

import signal

import pytest
from azure.storage.blob import ContentSettings

from distdl_jupyter.data import stores
from tests.conftest import wait_for
from tests.data.stage import noise, reading, source

MB = 2**20


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


def test_a_new_process_fetches_only_the_files_that_a_killed_one_did_not_complete(stage, large, blob_proxy):
    large.put("first", noise(1000), md5=False)
    blob_proxy.add("/large", rate=8 * MB, times=1000)
    told = source(large, address=blob_proxy.endpoint)
    first = stage.run(told, sas=reading(large), workers=1)
    first.until(lambda message: message["type"] == "progress" and message["done"] > 5 * MB)
    first.kill()
    blob_proxy.faults.clear()
    assert len(stage.left(".part")) == 1
    last = stage.run(told, sas=reading(large)).staged()
    assert stage.files(last["paths"]["DISTDL_DATA_TRAIN"]) == {"first": noise(1000), "large": large.data}
    assert (last["bytes"], last["cached"]) == (len(large.data), 1000)
    assert stage.left(".part") == []


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, None], ids=["TERM", "INT", "end of input"])
def test_it_ends_at_once_when_it_is_told_or_nobody_listens(stage, large, blob_proxy, end):
    blob_proxy.add("/large", delay=20, times=1000)
    run = stage.run(source(large, address=blob_proxy.endpoint), sas=reading(large))
    wait_for(blob_proxy.gets)
    run.process.stdin.close() if end is None else run.process.send_signal(end)
    run.end(10)
    assert run.code == (3 if end is None else -end)


def test_a_right_that_is_missing_is_said_with_the_role_that_gives_it(stage, large, blob_proxy):
    blob_proxy.add("/large", status=403, code="AuthorizationPermissionMismatch", times=1000)
    run = stage.run(source(large, address=blob_proxy.endpoint), sas=reading(large))
    last = run.failed()
    assert last["text"] == "Azure Blob denied access to train (403 AuthorizationPermissionMismatch)."
    assert "Storage Blob Data Reader" in last["remedy"]
    assert run.asked >= 3


def test_a_blob_that_is_changed_meanwhile_fails_by_its_name(stage, large, blob_proxy):
    blob_proxy.add("/large", after=1, before=lambda _: large.put("large", noise(17 * MB, 5)))
    run = stage.run(source(large, address=blob_proxy.endpoint), sas=reading(large), workers=1)
    last = run.failed()
    assert last["text"] == "'large' of train changed or was deleted during the download (412 ConditionNotMet)."
    assert last["source"] == "train"
    assert list(stage.base.rglob("large")) == []


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (404, "BlobNotFound", "'x' of train no longer exists (404 BlobNotFound)."),
        (409, "BlobArchived", "'x' of train cannot be read now (409 BlobArchived)."),
        (400, "InvalidHeaderValue", "'x' of train cannot be read (400 InvalidHeaderValue)."),
    ],
)
def test_what_cannot_be_tried_again_fails_at_once_by_its_name(stage, container, blob_proxy, status, code, text):
    container.put("x", b"1")
    blob_proxy.add("/x", status=status, code=code)
    assert stage.run(source(container, address=blob_proxy.endpoint), sas=reading(container)).failed()["text"] == text
    assert len(blob_proxy.gets()) == 1


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
    assert stage.left("") == stage.left(".part") == []


@pytest.mark.full
def test_throttling_is_waited_for(stage, large, blob_proxy):
    blob_proxy.add("/large", status=503, code="ServerBusy", headers={"Retry-After": "1"}, times=3)
    run = stage.run(source(large, address=blob_proxy.endpoint), sas=reading(large), workers=1)
    assert only(stage, run.staged()) == large.data


@pytest.mark.parametrize(
    ("host", "why"), [("127.0.0.1:1", "Connection refused"), ("nobody.invalid", "its name cannot be resolved")]
)
def test_a_host_that_does_not_answer_is_named(host, why):
    import obstore

    address = f"https://{host}/account/c"
    access = stores.Reader("train", "blob", address, sign=lambda: "sv=1&sig=secret", retries=1)
    with pytest.raises(stores.StoreError) as error:
        access.use(lambda store: obstore.get(store, "x"))
    text = stores.make_read_error("train", address, "x", error.value).text
    assert text == f"The download of 'x' from {host} is incomplete ({why})."


def test_a_certificate_that_nobody_vouches_for_is_refused(stage, large):
    last = stage.run(source(large), sas=reading(large), ca="").failed()
    assert "its certificate is not trusted: UnknownIssuer" in last["text"]
    assert "SSL_CERT_FILE" in last["remedy"]
