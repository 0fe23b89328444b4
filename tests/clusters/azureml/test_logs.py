"""The log files of a run are read on by ranges; what no rank said is kept, and whole lines go on."""

import os
from types import SimpleNamespace

import pytest

from distdl_jupyter.clusters.azureml.logs import Logs
from distdl_jupyter.core.errors import AzureRefused


class Workspace:
    """Files by their addresses, sent from the byte that is asked for."""

    def __init__(self):
        self.files = {}

    def plain(self, _url):
        return self

    def send(self, _method, url, headers):
        begin = int(headers["Range"].removeprefix("bytes=").split("-")[0])
        content = self.files[url]
        if isinstance(content, int):
            raise AzureRefused("refused", status=content)
        if begin >= len(content):
            raise AzureRefused("nothing new", status=416)
        return SimpleNamespace(content=content[begin:], status_code=206)


@pytest.fixture
def workspace():
    return Workspace()


@pytest.fixture
def logs(workspace, tmp_path):
    logs = Logs(workspace, "nonce", 1, tmp_path / "kept.jsonl", {})
    yield logs
    logs.close()
    logs.discard_rest()


def said(logs):
    """Return what no rank said, so far."""
    try:
        return os.read(logs.streams[0].fd, 65_536).decode()
    except BlockingIOError:
        return ""


def test_whole_lines_go_on_and_the_rest_at_the_end(workspace, logs):
    logs.learn({"azureml-logs/20_image_build_log.txt": "a"})
    workspace.files["a"] = b"step 1\nste"
    assert logs.advance()
    assert said(logs) == "[azureml-logs/20_image_build_log.txt]\nstep 1\n"
    assert not logs.advance()
    workspace.files["a"] += b"p 2"
    assert logs.advance()
    assert said(logs) == ""
    assert not logs.advance(last=True)
    assert said(logs) == "step 2\n"


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_address_that_is_refused_is_asked_for_anew_and_read_on(workspace, logs, status):
    logs.learn({"a.txt": "old"})
    assert not logs.stale
    workspace.files["old"] = b"one\n"
    logs.advance()
    workspace.files["old"] = status
    assert not logs.advance()
    assert logs.stale
    logs.learn({"a.txt": "new"})
    assert not logs.stale
    workspace.files["new"] = b"one\ntwo\n"
    assert logs.advance()
    assert said(logs) == "[a.txt]\none\ntwo\n"


def test_what_azure_refuses_otherwise_is_raised(workspace, logs):
    logs.learn({"a.txt": "a"})
    workspace.files["a"] = 500
    with pytest.raises(AzureRefused):
        logs.advance()
    assert not logs.stale
