"""Sends ended jobs as OpenTelemetry spans to Application Insights and OTLP endpoints.

``python -m distdl_jupyter.tracking.telemetry JOB_FOLDER`` sends one ended job and exits within ``TIMEOUT_SECONDS``. It
sends the job's id, type of cluster, backend, counts, state and durations. It never sends code, arguments, paths,
names of people, machines, jobs, data or metrics, log lines or error messages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter._version import __version__
from distdl_jupyter.core.events import Event, State, read_batches
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.view import JobView
from distdl_jupyter.tracking import run_reporter

#: Seconds after which the process exits even if the endpoint has not responded.
TIMEOUT_SECONDS = 20
# Environment variables that set a destination: Application Insights, and OTLP's standard variables.
CONNECTION_VARIABLE = "APPLICATIONINSIGHTS_CONNECTION_STRING"
ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
#: Variables that disable the statistics that Azure's exporter sends to Microsoft.
QUIET_VARIABLES = {
    "APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL": "true",
    "APPLICATIONINSIGHTS_SDKSTATS_DISABLED": "true",
    "APPLICATIONINSIGHTS_CONTROLPLANE_DISABLED": "true",
    "APPLICATIONINSIGHTS_OPENTELEMETRY_RESOURCE_METRIC_DISABLED": "true",
}
_PHASES = ("stage", "start", "rendezvous", "train", "collect")
_SERVICE_NAME = "distdl_jupyter"
Span = tuple[str, float, float]  #: A phase of a job: its name, and its begin and end in epoch seconds.


def list_destinations() -> list[str]:
    """Return the names of the environment variables that set a destination."""
    return [name for name in (CONNECTION_VARIABLE, *ENDPOINT_VARIABLES) if os.environ.get(name)]


def summarize(spec: JobSpec, events: Iterable[Event]) -> tuple[list[Span], dict[str, str | int]]:
    """Return the spans of a job, the whole job first, and their attributes."""
    view, dequeued = JobView.from_spec(spec), None
    for event in events:
        if event["type"] not in ("metric", "progress"):
            view.apply(event)
            if dequeued is None and view.state is not State.QUEUED:
                dequeued = float(event["t"])
    end = max(view.ended or view.last_sign, view.created)
    dequeued = dequeued or end
    spans = [("job", view.created, end), ("queue", view.created, dequeued)]
    for phase in view.phases:
        if phase.phase in _PHASES and phase.started is not None:
            # The time in the queue of a cluster is not part of the start.
            begin = max(phase.started, dequeued) if phase.phase == "start" else phase.started
            finish = end if phase.seconds is None else phase.started + phase.seconds
            spans.append((phase.phase, begin, max(begin, finish)))
    return spans, {
        "distdl.cluster.kind": spec.cluster,
        "distdl.backend": spec.distributed_backend,
        "distdl.world_size": spec.process_count,
        "distdl.node_count": spec.node_count,
        "distdl.state": view.state.value,
    }


def send(id_: str, job_spans: Sequence[Span], attributes: Mapping[str, str | int]) -> bool:
    """Send the spans of a job to all destinations; return whether all accepted them."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

    os.environ.update(QUIET_VARIABLES)
    exporters: list[Any] = []
    if os.environ.get(CONNECTION_VARIABLE):
        from azure.monitor.opentelemetry.exporter import AzureMonitorTraceExporter

        exporters.append(AzureMonitorTraceExporter(disable_offline_storage=True))
    if any(os.environ.get(name) for name in ENDPOINT_VARIABLES):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporters.append(OTLPSpanExporter())
    # Without a device.id, Azure's exporter sends the name of this machine.
    service = {"service.name": os.environ.get("OTEL_SERVICE_NAME") or _SERVICE_NAME, "service.version": __version__}
    resource = Resource.create({**service, "service.instance.id": id_, "device.id": _SERVICE_NAME})
    tracer = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False).get_tracer(_SERVICE_NAME)
    status = Status(StatusCode.ERROR if attributes["distdl.state"] in ("failed", "lost") else StatusCode.OK)
    spans: list[Any] = []
    for name, begin, end in job_spans:
        # Application Insights shows a consumer span as a request, with its child spans below it.
        context, span_kind = (set_span_in_context(spans[0]), SpanKind.INTERNAL) if spans else (None, SpanKind.CONSUMER)
        spans.append(tracer.start_span(name, context, span_kind, attributes, start_time=int(begin * 1e9)))
        spans[-1].set_attribute("distdl.job.id", id_)
        spans[-1].set_status(status)
        spans[-1].end(int(end * 1e9))
    return {exporter.export(spans).name for exporter in exporters} == {"SUCCESS"}


def report(folder: JobFolder) -> str:
    """Send the job of a folder and return the result as a sentence."""
    try:
        events = (event for batch, _ in read_batches(folder.events) for event in batch)
        is_sent = send(folder.id, *summarize(folder.read_spec(), events))
    except ImportError:
        extra = "azure-monitor" if os.environ.get(CONNECTION_VARIABLE) else "otlp"
        return f"not sent, a package is missing. Run: pip install 'distdl-jupyter[{extra}]'"
    return "sent" if is_sent else "not sent, the endpoint rejected it"


def main() -> None:
    """Send the job of a folder, if the environment names a destination."""
    if list_destinations():
        run_reporter("telemetry", lambda: report(JobFolder(Path(sys.argv[1]))), TIMEOUT_SECONDS)


if __name__ == "__main__":
    main()
