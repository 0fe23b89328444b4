"""The rights that nodes get: little, for a short time, over https."""

import datetime as dt
from urllib.parse import parse_qs

import pytest
from azure.core.exceptions import HttpResponseError

from distdl_jupyter.azure import identity, settings
from distdl_jupyter.azure.identity import open_blob_service
from distdl_jupyter.core.data import parse_source
from distdl_jupyter.core.errors import DataUnavailable, NotSignedIn
from distdl_jupyter.data import sources, stores


@pytest.fixture
def container(blob):
    found = blob.azurite.container()
    found.put("cifar/a.bin", b"hello")
    found.put("other.bin", b"other")
    return found


def signed(place):
    one = parse_source("train", place)
    account = open_blob_service(one.account)
    return sources.sign_source(account, one, is_blob=sources.list_blobs(account, one).is_single)


def read(container, sas, name):
    from azure.storage.blob import BlobServiceClient

    with BlobServiceClient(f"{container.azurite.endpoint}?{sas}") as service:
        return service.get_blob_client(container.name, name).download_blob().readall()


@pytest.mark.full
def test_a_signature_reads_over_https_for_an_hour_and_does_no_more(container):
    sas = signed(container.place("cifar"))
    words = {name: values[0] for name, values in parse_qs(sas).items()}
    assert (words["sp"], words["spr"], words["sr"]) == ("r", "https", "c")
    assert "skoid" in words  # made with a user delegation key, and not with the account's
    begin, end = (dt.datetime.fromisoformat(words[name]) for name in ("st", "se"))
    assert dt.timedelta(hours=1) < end - begin <= dt.timedelta(hours=1, minutes=15, seconds=1)
    assert read(container, sas, "cifar/a.bin") == b"hello"
    from azure.storage.blob import BlobServiceClient

    with BlobServiceClient(f"{container.azurite.endpoint}?{sas}") as service:
        with pytest.raises(HttpResponseError):
            service.get_blob_client(container.name, "cifar/a.bin").delete_blob()
        with pytest.raises(HttpResponseError):
            list(service.get_container_client(container.name).list_blobs())


def test_a_source_of_one_blob_opens_that_blob_alone(container):
    sas = signed(container.place("other.bin"))
    assert "sr=b" in sas
    assert read(container, sas, "other.bin") == b"other"
    with pytest.raises(HttpResponseError):
        read(container, sas, "cifar/a.bin")


def test_a_key_of_the_environment_is_not_used_without_a_sign_in(container, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_KEY", container.azurite.key)
    monkeypatch.delenv("AZURE_CLIENT_SECRET")
    settings.change(credential="")
    identity.clear_cache()
    with pytest.raises(NotSignedIn, match="Not signed in"):
        open_blob_service("devstoreaccount1")


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (403, "AuthorizationPermissionMismatch", "the role Storage Blob Data Reader"),
        (403, "AuthorizationFailure", "blocks requests from this network"),
        (403, "AuthenticationFailed", "rejected the sign-in"),
        (403, "SomethingNew", "Azure responded with 403 SomethingNew"),
    ],
)
def test_a_refusal_is_a_sentence_with_its_remedy(container, blob, blob_proxy, status, code, says):
    blob.blob_at(blob_proxy.template)
    blob_proxy.add("comp=list", status=status, code=code, times=99)
    with pytest.raises(DataUnavailable, match=says) as caught:
        signed(container.place("cifar"))
    assert str(caught.value).startswith(container.place("cifar"))


def test_an_account_that_no_name_service_knows(blob):
    blob.blob_at("https://{account}.blob.invalid")
    one = parse_source("train", "blob://nobody/data")
    account = open_blob_service("nobody")
    account._config.retry_policy.total_retries = 0
    with pytest.raises(DataUnavailable, match="The name of the storage account cannot be resolved"):
        sources.list_blobs(account, one)


def test_an_app_of_the_environment_is_not_asked_where_there_is_a_signature(container, monkeypatch):
    import obstore

    address = f"{container.azurite.endpoint}/{container.name}"
    sas = signed(container.place("cifar"))
    for name in ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"):
        monkeypatch.setenv(name, "11111111-1111-1111-1111-111111111111")
    opened = stores.Reader("train", "blob", address, sign=lambda: sas)
    store = opened.use(lambda store: store)
    assert bytes(obstore.get(store, "cifar/a.bin").bytes()) == b"hello"
    with pytest.raises(stores._get_error_types()):
        obstore.put(store, "cifar/b.bin", b"second", use_multipart=False)
