"""Ended jobs as OpenTelemetry spans and metrics, sent to Application Insights and to OTLP endpoints.

``python -m distdl_jupyter.tracking.telemetry JOB_FOLDER`` sends one ended job and exits within ``TIMEOUT`` seconds. It
sends the job's id, type of cluster, backend, counts, state and durations. It never sends code, arguments, paths,
names of people, machines, jobs, data or metrics, log lines or error messages.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter._version import __version__
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.events import batches
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.view import JobView
from distdl_jupyter.tracking import settings

if TYPE_CHECKING:
    from distdl_jupyter.core.events import Event
    from distdl_jupyter.core.spec import JobSpec

#: Seconds after which an endpoint that does not respond is abandoned.
TIMEOUT = 20
#: What each exporter reads its destination from; the first is Application Insights, the others are OTLP's standard.
CONNECTION_STRING = "APPLICATIONINSIGHTS_CONNECTION_STRING"
ENDPOINTS = tuple(f"OTEL_EXPORTER_OTLP_{name}ENDPOINT" for name in ("", "TRACES_", "METRICS_"))
#: Variables that keep Azure's exporter from sending anything to Microsoft's own statistics.
SILENCE = {
    "APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL": "true",
    "APPLICATIONINSIGHTS_SDKSTATS_DISABLED": "true",
    "APPLICATIONINSIGHTS_CONTROLPLANE_DISABLED": "true",
    "APPLICATIONINSIGHTS_OPENTELEMETRY_RESOURCE_METRIC_DISABLED": "true",
}
_PARTS = ("stage", "start", "rendezvous", "train", "collect")
_NAME = "distdl_jupyter"


class Span(NamedTuple):
    """A part of a job, in epoch seconds; the first one is the whole job."""

    name: str
    begin: float
    end: float
    failed: bool = False


def destinations() -> list[str]:
    """Return the variables of the environment that name a destination."""
    return [name for name in (CONNECTION_STRING, *ENDPOINTS) if os.environ.get(name)]


def start(folder: JobFolder) -> bool:
    """Send an ended job, if the user wants that and the environment names a destination; return whether it began."""
    with contextlib.suppress(OSError), folder.supervisor_log.open("a", encoding="utf-8") as log:
        try:
            if destinations() and settings.read().enabled:
                settings.start_process("telemetry", str(folder.path), log=log.fileno())
                return True
        except DistDLError as error:
            log.write(f"telemetry: not sent, {error}\n")
    return False


def summarize(spec: JobSpec, events: Iterable[Event]) -> tuple[list[Span], dict[str, str | int]]:
    """Return the spans of a job, the whole job first, and their attributes."""
    view, left_queue = JobView.of(spec), None
    for event in events:
        if event["type"] not in ("metric", "progress"):
            view.apply(event)
            if left_queue is None and view.state is not State.QUEUED:
                left_queue = float(event["t"])
    end = max(view.ended or view.last_sign, view.created)
    left_queue = left_queue or end
    spans = [Span("job", view.created, end), Span("queue", view.created, left_queue)]
    for phase in view.phases:
        if phase.phase in _PARTS and phase.begun is not None:
            # The queue of a cluster is not part of the start.
            begin = max(phase.begun, left_queue) if phase.phase == "start" else phase.begun
            stop = end if phase.seconds is None else phase.begun + phase.seconds
            spans.append(Span(phase.phase, begin, max(begin, stop)))
    attributes: dict[str, str | int] = {
        "distdl.cluster.kind": spec.cluster,
        "distdl.backend": spec.distributed_backend,
        "distdl.world_size": spec.process_count,
        "distdl.node_count": spec.node_count,
        "distdl.state": view.state.value,
    }
    if view.state in (State.FAILED, State.LOST):
        for index in (0, max(index for index, span in enumerate(spans) if span.name != "collect")):
            spans[index] = spans[index]._replace(failed=True)
        if view.failure is not None:
            attributes["distdl.failed_rank"] = view.failure.rank
    return spans, attributes


def _exporters() -> Iterator[tuple[Any, Any]]:
    """Yield an exporter of spans and one of metrics for each destination."""
    if os.environ.get(CONNECTION_STRING):
        from azure.monitor.opentelemetry.exporter import AzureMonitorMetricExporter, AzureMonitorTraceExporter

        off = {"disable_offline_storage": True}
        yield AzureMonitorTraceExporter(**off), AzureMonitorMetricExporter(**off)
    if any(os.environ.get(name) for name in ENDPOINTS):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        yield OTLPSpanExporter(), OTLPMetricExporter()


def send(id_: str, parts: Sequence[Span], attributes: Mapping[str, str | int]) -> bool:
    """Send the spans of a job, and metrics of them, to all destinations; return whether all accepted the spans."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

    os.environ.update(SILENCE)
    # Without a device.id Azure's exporter sends the name of this machine.
    service = {"service.name": os.environ.get("OTEL_SERVICE_NAME") or _NAME, "service.version": __version__}
    resource = Resource.create({**service, "service.instance.id": id_, "device.id": _NAME})
    tracer = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False).get_tracer(_NAME)
    results = []
    for span_exporter, metric_exporter in _exporters():
        # Application Insights shows a consumer as a request, and its parts below it.
        root = tracer.start_span("job", None, SpanKind.CONSUMER, attributes, start_time=int(parts[0].begin * 1e9))
        root.set_attribute("distdl.job.id", id_)
        context, spans = set_span_in_context(root), [root]
        for part in parts[1:]:
            start_time = int(part.begin * 1e9)
            spans.append(tracer.start_span(part.name, context, attributes=attributes, start_time=start_time))
        for part, span in zip(parts, spans, strict=True):
            span.set_status(Status(StatusCode.ERROR if part.failed else StatusCode.OK))
            span.end(int(part.end * 1e9))
        results.append(span_exporter.export(spans).name)
        # Sends only on force_flush, as the exporter prefers to aggregate.
        reader = PeriodicExportingMetricReader(metric_exporter, export_interval_millis=math.inf)
        meter = MeterProvider([reader], resource, shutdown_on_exit=False).get_meter(_NAME)
        meter.create_counter("distdl.jobs.submitted", unit="{job}").add(1, attributes)
        meter.create_counter("distdl.jobs.failed", unit="{job}").add(int(parts[0].failed), attributes)
        for part in parts:
            name = "distdl.job.duration" if part is parts[0] else f"distdl.job.{part.name}.duration"
            meter.create_histogram(name, unit="s").record(part.end - part.begin, attributes)
        reader.force_flush()
    return set(results) == {"SUCCESS"}


def main() -> None:
    """Send the job of a folder and write one line about it."""
    log, folder = settings.private_log(), JobFolder(Path(sys.argv[1]))
    late = f"telemetry: not sent, no response within {TIMEOUT} s"
    signal.signal(signal.SIGALRM, lambda *_: settings.finish(log, late))
    signal.alarm(TIMEOUT)
    try:
        events = (event for batch, _ in batches(folder.events) for event in batch)
        text = "sent" if send(folder.id, *summarize(folder.spec(), events)) else "not sent, the endpoint rejected it"
    except ImportError:
        extra = "azure-monitor" if os.environ.get(CONNECTION_STRING) else "otlp"
        text = f"not sent, a package is missing. Run: pip install 'distdl-jupyter[{extra}]'"
    except Exception as error:  # noqa: BLE001 - its text may hold what is secret
        text = f"not sent, {type(error).__name__}"
    settings.finish(log, f"telemetry: {text}")


if __name__ == "__main__":
    main()
