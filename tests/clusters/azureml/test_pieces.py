"""A run's artifacts are fetched piece by piece, and a connection that breaks is tried again a few times."""

from types import SimpleNamespace

import pytest
from azure.core.exceptions import ServiceResponseError

from distdl_jupyter.clusters.azureml import outputs


class Blob:
    """A file whose first requests break off."""

    def __init__(self, content, breaks):
        self.content, self.breaks = content, breaks

    def download_blob(self, offset, length, **_conditions):
        if self.breaks:
            self.breaks -= 1
            raise ServiceResponseError("cut")
        return SimpleNamespace(readall=lambda: self.content[offset : offset + length])


def test_a_file_comes_in_pieces_from_where_it_was(monkeypatch):
    monkeypatch.setattr(outputs, "_PIECE", 4)
    blob = Blob(b"0123456789", breaks=3)
    assert list(outputs._pieces(blob, 2, 10, "etag")) == [b"2345", b"6789"]


def test_what_breaks_off_again_and_again_is_given_up():
    with pytest.raises(ServiceResponseError):
        list(outputs._pieces(Blob(b"0", breaks=4), 0, 1, "etag"))


@pytest.mark.parametrize(
    ("properties", "uri"),
    [
        ({}, ""),
        ({"outputs": None}, ""),
        ({"outputs": {"default": None}}, ""),
        ({"outputs": {"default": {"uri": "azureml://datastores/a/paths/b"}}}, "azureml://datastores/a/paths/b"),
    ],
)
def test_where_artifacts_lie_is_read_from_the_job(properties, uri):
    workspace = SimpleNamespace(job=lambda _name: {"properties": properties})
    assert outputs._default_output(workspace, "x") == uri
