"""Real jobs, the real exporters, and a real endpoint: what arrives, what does not, and that jobs do not wait for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from distdl_jupyter import monitoring, submit
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.state import State
from distdl_jupyter.monitoring import settings
from tests.conftest import wait_for
from tests.monitoring.endpoint import Endpoint

SECRET = "a-secret-that-nobody-sends"


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter-config"))
    for name in (settings.CONNECTION_STRING, *settings.ENDPOINTS):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def endpoint():
    made = Endpoint()
    yield made
    made.close()


def senders(job):
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "distdl_jupyter.monitoring" in line and str(job.folder.path) in line:
            found.append(process)
    return found


def said(job):
    """Wait until the sender has said what it did and is gone."""
    line = wait_for(lambda: [one for one in job.folder.supervisor_log.read_text().splitlines() if "monitoring" in one])
    wait_for(lambda: not senders(job), what="the sender's end")
    return line


def trained(passphrase, name="anns-plan"):
    def train(phrase):
        from distdl_jupyter import log

        log(step=1, anns_loss=0.5)
        print("anns words", phrase)
        return phrase

    job = submit(train, (passphrase,), name=name, environment_variables={"ANNS_TOKEN": passphrase, "WHO": "ann"})
    job.wait(120)
    assert job.state is State.COMPLETED
    return job


def test_a_job_arrives_at_application_insights_and_nothing_else(endpoint, monkeypatch):
    monkeypatch.setenv(settings.CONNECTION_STRING, endpoint.connection_string)
    monitoring.change(enabled=True)
    job = trained(SECRET)
    assert said(job) == ["monitoring: sent 6 spans and 5 measures"]
    items = endpoint.items()
    spans = {item["data"]["baseData"]["name"]: item for item in items if item["data"]["baseType"] != "MetricData"}
    assert set(spans) >= {"job", "queue", "stage", "start", "train", "collect"}
    root = spans["job"]
    assert root["data"]["baseType"] == "RequestData"
    assert root["data"]["baseData"]["success"] is True
    properties = root["data"]["baseData"]["properties"]
    assert properties["distdl.job.id"] == job.id
    assert properties["distdl.backend"] == "plain"
    assert {item["tags"]["ai.operation.id"] for item in spans.values()} == {root["tags"]["ai.operation.id"]}
    measured = {
        metric["name"]: metric["value"]
        for item in items
        if item["data"]["baseType"] == "MetricData"
        for metric in item["data"]["baseData"]["metrics"]
    }
    assert measured["distdl.jobs.submitted"] == 1
    assert measured["distdl.jobs.failed"] == 0
    assert measured["distdl.job.duration"] > 0
    everything = "\n".join(f"{path}\n{body.decode()}" for path, _, body in endpoint.posts)
    own = (SECRET, "ann", "print", str(Path.cwd()), str(job.folder.path), os.uname().nodename)
    assert [word for word in own if word in everything] == []
    assert {path for path, _, _ in endpoint.posts} == {"/v2.1/track"}


def test_a_job_arrives_at_an_otlp_endpoint(endpoint, monkeypatch):
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=anns-key")
    monitoring.change(enabled=True)
    job = trained(SECRET)
    assert said(job) == ["monitoring: sent 6 spans and 5 measures"]
    posts = {path: (headers, body) for path, headers, body in endpoint.posts}
    assert set(posts) == {"/v1/traces", "/v1/metrics"}
    assert posts["/v1/traces"][0]["x-key"] == "anns-key"  # OTLP's own variables are heeded
    (group,) = ExportTraceServiceRequest.FromString(posts["/v1/traces"][1]).resource_spans
    spans = {span.name: span for span in group.scope_spans[0].spans}
    assert [one.value.string_value for one in spans["job"].attributes if one.key == "distdl.job.id"] == [job.id]
    assert all(span.parent_span_id == spans["job"].span_id for name, span in spans.items() if name != "job")
    assert abs(spans["job"].start_time_unix_nano / 1e9 - job.spec.created) < 0.001
    (group,) = ExportMetricsServiceRequest.FromString(posts["/v1/metrics"][1]).resource_metrics
    names = {metric.name for metric in group.scope_metrics[0].metrics}
    assert "distdl.job.train.duration" in names
    everything = b"\n".join(body for _, body in posts.values())
    own = (SECRET, "ann", str(job.folder.path), os.uname().nodename)
    assert [word for word in own if word.encode() in everything] == []


def test_nothing_is_sent_by_default_even_where_the_environment_names_a_destination(endpoint, monkeypatch):
    monkeypatch.setenv(settings.CONNECTION_STRING, endpoint.connection_string)
    job = trained(SECRET)
    assert "monitoring" not in job.folder.supervisor_log.read_text()
    assert not monitoring.start(job.folder)
    assert endpoint.posts == []


def test_nothing_is_started_without_a_destination():
    monitoring.change(enabled=True)
    job = trained(SECRET)
    assert not monitoring.start(job.folder)


def test_a_job_does_not_wait_for_an_endpoint_that_never_answers(endpoint, monkeypatch):
    endpoint.answers.clear()
    monkeypatch.setenv(settings.CONNECTION_STRING, endpoint.connection_string)
    monitoring.change(enabled=True)
    job = trained(SECRET)  # it has ended, although nobody has answered
    assert endpoint.arrived.wait(60)
    assert senders(job)
    job.remove()
    endpoint.answers.set()
    wait_for(lambda: not senders(job), what="the sender's end")


def test_an_endpoint_that_never_answers_is_left_alone_in_the_end(endpoint):
    job = trained(SECRET)
    endpoint.answers.clear()
    code = "import sys, distdl_jupyter.monitoring.__main__ as m; m.TIMEOUT = 3; sys.argv = ['', sys.argv[1]]; m.main()"
    environment = {**os.environ, settings.CONNECTION_STRING: endpoint.connection_string}
    told = subprocess.run([sys.executable, "-c", code, str(job.folder.path)], env=environment, capture_output=True,
                          text=True, timeout=120)  # fmt: skip
    assert told.stdout == "monitoring: not sent, no response within 3 s\n"
    assert told.stderr == ""
    assert endpoint.arrived.is_set()


def test_an_endpoint_that_is_down_is_one_line_in_the_supervisor_s_log(endpoint, monkeypatch):
    string = endpoint.connection_string
    endpoint.close()
    monkeypatch.setenv(settings.CONNECTION_STRING, string)
    monitoring.change(enabled=True)
    job = trained(SECRET)
    (line,) = said(job)
    assert line.startswith("monitoring: not sent, ")
    assert "InstrumentationKey" not in job.folder.supervisor_log.read_text()
    assert [note for note in job.view().notes if "monitoring" in note["text"]] == []


@pytest.mark.parametrize("string", ["nonsense", "InstrumentationKey=no-uuid-but-secret"])
def test_a_broken_connection_string_is_not_repeated(string, monkeypatch):
    monkeypatch.setenv(settings.CONNECTION_STRING, string)
    monitoring.change(enabled=True)
    job = trained(SECRET)
    (line,) = said(job)
    assert line.startswith("monitoring: not sent, ")
    assert string not in job.folder.supervisor_log.read_text()


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
    (tmp_path / "job").mkdir()
    code = (
        "import sys; sys.modules['azure.monitor.opentelemetry.exporter'] = None\n"
        "from distdl_jupyter.monitoring.exporting import CannotSend, exporters\n"
        "try:\n    list(exporters())\nexcept CannotSend as error:\n    print(error)\n"
    )
    environment = {**os.environ, settings.CONNECTION_STRING: "InstrumentationKey=x"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert "pip install 'distdl-jupyter[azure-monitor]'" in told.stdout


def test_settings_keep_no_secret_and_name_what_there_is():
    assert not monitoring.read().enabled
    assert monitoring.change(enabled="yes").enabled
    assert json.loads(settings.file().read_text()) == {"enabled": True}
    assert settings.file().stat().st_mode & 0o077 == 0
    assert not monitoring.change(enabled="").enabled
    with pytest.raises(InvalidSpec, match="environment of Jupyter"):
        monitoring.change(connection_string="InstrumentationKey=x")
    with pytest.raises(InvalidSpec, match="must be true or false"):
        monitoring.change(enabled="perhaps")


def test_broken_settings_are_said_in_the_log_and_fail_no_job(monkeypatch):
    monkeypatch.setenv(settings.CONNECTION_STRING, "InstrumentationKey=x")
    settings.file().parent.mkdir(parents=True)
    settings.file().write_text("[")
    with pytest.raises(DistDLError, match="Correct or delete"):
        monitoring.read()
    job = trained(SECRET)
    (line,) = said(job)
    assert "Cannot read the settings in" in line
    assert "distdl_monitoring.json" in line


def test_a_supervisor_imports_no_exporter():
    code = "import sys, distdl_jupyter.supervisor.run, distdl_jupyter.monitoring as m\n" \
           "print([name for name in sys.modules if name.startswith(('opentelemetry', 'azure.'))])"  # fmt: skip
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert told.stdout.strip() == "[]"
