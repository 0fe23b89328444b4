"""The emulator and the proxy keep what the tests build on."""

import base64
import hashlib
import http.client
import ssl
import urllib.error
import urllib.request

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import ContainerClient

from tests.azurite.server import Bearer


@pytest.fixture
def container(azurite):
    return azurite.container()


def fetch(url, ca, **headers):
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=ca), timeout=60) as answer:
        return answer.read()


def test_a_blob_is_read_with_a_user_delegation_sas_and_with_nothing_else(container):
    etag = container.put("a b/ü%.txt", b"content")
    assert container.items() == [["a b/ü%.txt", 7, etag, base64.b64encode(hashlib.md5(b"content").digest()).decode()]]
    url = f"{container.address}/a%20b/%C3%BC%25.txt"
    assert fetch(f"{url}?{container.sas()}", container.azurite.ca) == b"content"
    for bad in (url, f"{url}?{container.sas(seconds=-60)}", f"{url}?{container.sas().replace('sp=rl', 'sp=rwl')}"):
        with pytest.raises(urllib.error.HTTPError, match=r"403|404"):
            fetch(bad, container.azurite.ca)


def test_a_sas_that_reads_does_not_write(container):
    container.put("x", b"1")
    with (
        ContainerClient.from_container_url(
            f"{container.address}?{container.sas()}", connection_verify=container.azurite.ca
        ) as client,
        pytest.raises(HttpResponseError) as refusal,
    ):
        client.upload_blob("y", b"2")
    assert refusal.value.status_code == 403


def test_a_token_opens_the_account(azurite, container):
    container.put("x", b"1")
    with azurite.client(Bearer()) as service:
        assert [blob.name for blob in service.get_container_client(container.name).list_blobs()] == ["x"]


def test_the_proxy_does_what_it_is_told(container, blob_proxy):
    container.put("x", bytes(1000))
    url = f"{blob_proxy.endpoint}/{container.name}/x?{container.sas()}"
    ca = container.azurite.ca
    assert fetch(url, ca) == bytes(1000)
    blob_proxy.add("/x", cut=100)
    with pytest.raises((http.client.IncompleteRead, OSError)):
        fetch(url, ca)
    blob_proxy.add("/x", corrupt=5)
    assert fetch(url, ca)[:7] == b"\0\0\0\0\0\xff\0"
    blob_proxy.add("/x", status=503, code="ServerBusy")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        fetch(url, ca)
    assert fetch(url, ca, **{"x-ms-range": "bytes=10-19"}) == bytes(10)
    assert [seen.sent for seen in blob_proxy.gets("/x$")] == [1000, 100, 1000, 0, 10]
    assert blob_proxy.sent() == 2110
