"""Real jobs, the real exporters, and a real endpoint: what arrives, what does not, and that jobs do not wait for it."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from distdl_jupyter import submit
from distdl_jupyter.core import user_settings
from distdl_jupyter.core.data import DataSource
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.events import State
from distdl_jupyter.core.spec import CodeSource, JobSpec
from distdl_jupyter.tracking import telemetry
from tests.conftest import wait_for
from tests.tracking.endpoint import Endpoint

SECRET = "a-secret-that-nobody-sends"


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter-config"))
    for name in (telemetry.CONNECTION_VARIABLE, *telemetry.ENDPOINT_VARIABLES):
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
        if "distdl_jupyter.tracking.telemetry" in line and str(job.folder.path) in line:
            found.append(process)
    return found


def said(job):
    """Wait until the sender has said what it did and is gone."""
    line = wait_for(lambda: [one for one in job.folder.supervisor_log.read_text().splitlines() if "telemetry: " in one])
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
    monkeypatch.setenv(telemetry.CONNECTION_VARIABLE, endpoint.connection_string)
    user_settings.change_settings(enabled=True)
    job = trained(SECRET)
    assert said(job) == ["telemetry: sent"]
    items = endpoint.items()
    spans = {item["data"]["baseData"]["name"]: item for item in items}
    assert set(spans) >= {"job", "queue", "stage", "start", "train", "collect"}
    root = spans["job"]
    assert root["data"]["baseType"] == "RequestData"
    assert root["data"]["baseData"]["success"] is True
    properties = root["data"]["baseData"]["properties"]
    assert properties["distdl.job.id"] == job.id
    assert properties["distdl.backend"] == "plain"
    assert {item["tags"]["ai.operation.id"] for item in spans.values()} == {root["tags"]["ai.operation.id"]}
    everything = "\n".join(f"{path}\n{body.decode()}" for path, _, body in endpoint.posts)
    own = (SECRET, "ann", "print", str(Path.cwd()), str(job.folder.path), os.uname().nodename)
    assert [word for word in own if word in everything] == []
    assert {path for path, _, _ in endpoint.posts} == {"/v2.1/track"}


def test_a_job_arrives_at_an_otlp_endpoint(endpoint, monkeypatch):
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=anns-key")
    user_settings.change_settings(enabled=True)
    job = trained(SECRET)
    assert said(job) == ["telemetry: sent"]
    posts = {path: (headers, body) for path, headers, body in endpoint.posts}
    assert set(posts) == {"/v1/traces"}
    assert posts["/v1/traces"][0]["x-key"] == "anns-key"  # OTLP's own variables are heeded
    (group,) = ExportTraceServiceRequest.FromString(posts["/v1/traces"][1]).resource_spans
    spans = {span.name: span for span in group.scope_spans[0].spans}
    assert [one.value.string_value for one in spans["job"].attributes if one.key == "distdl.job.id"] == [job.id]
    assert all(span.parent_span_id == spans["job"].span_id for name, span in spans.items() if name != "job")
    assert abs(spans["job"].start_time_unix_nano / 1e9 - job.spec.created) < 0.001
    everything = b"\n".join(body for _, body in posts.values())
    own = (SECRET, "ann", str(job.folder.path), os.uname().nodename)
    assert [word for word in own if word.encode() in everything] == []


def test_nothing_is_sent_by_default_even_where_the_environment_names_a_destination(endpoint, monkeypatch):
    monkeypatch.setenv(telemetry.CONNECTION_VARIABLE, endpoint.connection_string)
    job = trained(SECRET)
    user_settings.change_settings(enabled=True)
    monkeypatch.delenv(telemetry.CONNECTION_VARIABLE)
    other = trained(SECRET)
    wait_for(lambda: not senders(other), what="the sender's end")
    assert "telemetry" not in job.folder.supervisor_log.read_text() + other.folder.supervisor_log.read_text()
    assert endpoint.posts == []


def test_a_job_does_not_wait_for_an_endpoint_that_never_answers(endpoint, monkeypatch):
    endpoint.answers.clear()
    monkeypatch.setenv(telemetry.CONNECTION_VARIABLE, endpoint.connection_string)
    user_settings.change_settings(enabled=True)
    job = trained(SECRET)  # it has ended, although nobody has answered
    assert endpoint.arrived.wait(60)
    assert senders(job)
    job.remove()
    endpoint.answers.set()
    wait_for(lambda: not senders(job), what="the sender's end")


def test_an_endpoint_that_never_answers_is_left_alone_in_the_end(endpoint):
    job = trained(SECRET)
    endpoint.answers.clear()
    code = "import sys, distdl_jupyter.tracking.telemetry as m; m.TIMEOUT_SECONDS = 3; sys.argv[:1] = ['']; m.main()"
    environment = {**os.environ, telemetry.CONNECTION_VARIABLE: endpoint.connection_string}
    told = subprocess.run([sys.executable, "-c", code, str(job.folder.path)], env=environment, capture_output=True,
                          text=True, timeout=120)  # fmt: skip
    assert told.stdout == "telemetry: not sent, no response within 3 s\n"
    assert told.stderr == ""
    assert endpoint.arrived.is_set()


@pytest.mark.parametrize("string", ["", "InstrumentationKey=no-uuid-but-secret"])
def test_an_endpoint_that_is_down_or_not_valid_is_one_line_without_its_key(string, endpoint, monkeypatch):
    string = string or endpoint.connection_string
    endpoint.close()
    monkeypatch.setenv(telemetry.CONNECTION_VARIABLE, string)
    user_settings.change_settings(enabled=True)
    job = trained(SECRET)
    (line,) = said(job)
    assert line.startswith("telemetry: not sent, ")
    log = job.folder.supervisor_log.read_text()
    assert "InstrumentationKey" not in log
    assert string not in log
    assert [note for note in job.view().notes if "telemetry" in note["text"]] == []


def test_a_missing_package_is_named_with_its_extra():
    job = trained(SECRET)
    code = (
        "import sys; sys.modules['azure.monitor.opentelemetry.exporter'] = None\n"
        "from distdl_jupyter.tracking import telemetry\n"
        "telemetry.main()\n"
    )
    environment = {**os.environ, telemetry.CONNECTION_VARIABLE: "InstrumentationKey=x"}
    told = subprocess.run([sys.executable, "-c", code, str(job.folder.path)], env=environment, capture_output=True,
                          text=True, timeout=120)  # fmt: skip
    assert "pip install 'distdl-jupyter[azure-monitor]'" in told.stdout


def test_broken_settings_are_said_in_the_log_and_fail_no_job(monkeypatch):
    monkeypatch.setenv(telemetry.CONNECTION_VARIABLE, "InstrumentationKey=x")
    user_settings.SETTINGS.path.parent.mkdir(parents=True)
    user_settings.SETTINGS.path.write_text("[")
    with pytest.raises(DistDLError, match="Correct or delete"):
        user_settings.SETTINGS.read()
    job = trained(SECRET)
    (line,) = said(job)
    assert "Cannot read the settings in" in line
    assert "distdl_monitoring.json" in line


# what is sent ----------------------------------------------------------------------------------

SPEC = JobSpec(
    id="20261121-024912-k3f9x", name="ann's secret plan", node_count=2, process_count_per_node=1,
    distributed_backend="horovod-gloo", compute_target="anns-lab", cluster="ssh", created=100.0,
    working_directory="/home/ann/plan", script_arguments=("--key", "abc"), environment_variables={"WHO": "ann"},
    source=CodeSource(code="ann = 1", filename="/home/ann/x.py", command="%%distributed --name plan"),
    data=(DataSource(name="faces", scheme="path", path="/home/ann/faces"),),
)  # fmt: skip


def event(t, type_, **fields):
    return {"v": 1, "t": t, "type": type_, **fields}


def phase(t, name, **more):
    return event(t, "phase", phase=name, **more)


def test_a_queue_of_the_cluster_is_not_part_of_the_start():
    queued = [
        event(100.0, "state", state="queued"),
        phase(100.5, "stage"),
        phase(101.0, "start", detail="pending: Resources"),
        event(131.0, "state", state="starting"),
        phase(133.0, "train"),
        event(133.0, "state", state="running"),
        event(140.0, "state", state="completed"),
    ]
    spans, attributes = telemetry.summarize(SPEC, queued)
    assert spans == [
        ("job", 100.0, 140.0),
        ("queue", 100.0, 131.0),
        ("stage", 100.5, 101.0),
        ("start", 131.0, 133.0),
        ("train", 133.0, 140.0),
    ]
    assert attributes == {
        "distdl.cluster.kind": "ssh", "distdl.backend": "horovod-gloo", "distdl.world_size": 2, "distdl.node_count": 2,
        "distdl.state": "completed",
    }  # fmt: skip
