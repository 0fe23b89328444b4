"""Every error is told as message, type and hint, with the status of one table."""

import json

import pytest

from distdl_jupyter.core import errors
from distdl_jupyter.server.handler import STATUS_CODES, get_status_code, to_api_error
from tests.server.running import API, serve


def every_error():
    pending, found = [errors.DistDLError], []
    while pending:
        kind = pending.pop()
        found.append(kind)
        pending.extend(kind.__subclasses__())
    return [kind for kind in found if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", every_error())
def test_every_error_of_the_package_has_a_status(kind):
    status = get_status_code(kind("It went wrong.", hint="Mend it."))
    assert status == STATUS_CODES.get(kind, 500)
    if kind not in (errors.DistDLError, errors.JobFailed):  # nobody raises the last over HTTP: it is a result
        assert kind in STATUS_CODES


def test_what_the_table_says_is_what_users_were_promised():
    promised = {
        "InvalidSpec": 400, "JobNotFound": 404, "ClusterNotFound": 404, "JobNotRunning": 409, "JobStillRunning": 409,
        "ClusterRefused": 409, "ResultUnavailable": 410, "PluginUnavailable": 424, "NotSignedIn": 424,
        "AzureRefused": 502, "DataUnavailable": 502, "LaunchFailed": 502, "MessageNotSent": 502, "DiskRefused": 507,
    }  # fmt: skip
    assert {kind.__name__: status for kind, status in STATUS_CODES.items()} == {**promised, "DistDLError": 500}


def test_an_error_is_told_with_its_field_and_its_launchers_words():
    invalid = to_api_error(errors.InvalidSpec("node_count is 0.", field="node_count", hint="Take 1."), 400)
    assert (invalid.message, invalid.type, invalid.hint, invalid.field) == (
        "node_count is 0.", "InvalidSpec", "Take 1.", "node_count",
    )  # fmt: skip
    assert to_api_error(errors.LaunchFailed("No.", output="ssh: refused"), 502).message == "No.\nssh: refused"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"code": "\\ud800"}', "The request body is not valid JSON."),
        (b'{"options": ' * 100_000, "The request body is not valid JSON."),
        (b'{"code": "  "}', "There is no code to run."),
        (b'{"code": "1 +"}', "Line 1 is not valid Python: invalid syntax."),
        (b'{"code": "a\\u0000b"}', "Line 1 is not valid Python: source code string cannot contain null bytes."),
        (b'{"code": "!ls"}', "Line 1 of the cell, `!ls`, is a shell command, but the ranks run plain Python."),
        (b'{"code": "1", "options": {"node_count": 0}}', "node_count must be an integer from 1 to 100,000, not 0."),
        (b'{"code": "1", "options": {"nodes": 2}}', None),
        (b'{"code": "1", "options": {"environment_variables": {"A": "x\\u0000y"}}}', None),
    ],
)  # fmt: skip
def test_a_wrong_request_is_answered_with_one_sentence(server, body, message):
    answer = server.ask("POST", "/jobs", content=body)
    assert answer.status_code == 400, answer.text
    found = answer.json()
    assert found["type"] == "InvalidSpec"
    if message is not None:
        assert found["message"] == message
    assert server.get("/jobs") == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"limit": "100001"}, "limit must be a number from 1 to 100,000."),
        ({"limit": "0"}, "limit must be a number from 1 to 100,000."),
        ({"limit": "9" * 5000}, "limit must be a smaller number."),
        ({"state": "asleep"}, None),
    ],
)
def test_a_wrong_query_is_answered_with_one_sentence(server, query, message):
    found = server.get("/jobs", status=400, **query)
    assert message in (None, found["message"])
    assert found["field"] == next(iter(query))


def test_a_query_that_is_no_text_is_refused(server):
    answer = server.client.get(f"{API}/compare?metric=%ff%fe")
    assert answer.status_code == 400
    assert answer.json()["message"] == "The query string is not valid UTF-8."


def test_a_verb_that_an_address_does_not_have_names_those_that_it_has(server):
    answer = server.ask("PUT", "/jobs", json={})
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "GET, POST, OPTIONS"
    assert answer.json()["type"] == "MethodNotAllowed"


def test_what_breaks_inside_is_logged_and_not_told(server, monkeypatch, caplog):
    def broken():
        raise ZeroDivisionError("hunter2")

    monkeypatch.setattr(server.extension.context.job_index, "read_all", broken)
    answer = server.ask("GET", "/jobs")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    assert json.loads(answer.text)["message"] == "The server failed to handle this request."
    assert "hunter2" in caplog.text


@pytest.mark.parametrize(
    ("address", "told"),
    [("https://docs.example/distdl/", "https://docs.example/distdl/"), ("javascript:alert(1)", ""), ("/docs", "")],
)
def test_pages_are_told_where_the_documentation_is(root, monkeypatch, address, told):
    monkeypatch.setenv("DISTDL_DOCS", address)
    with serve(root) as server:
        assert server.app.web_app.settings["page_config_data"]["distdlDocs"] == told
