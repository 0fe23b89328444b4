"""An account of a job as OpenTelemetry spans and metrics, and the exporters that carry them away.

Azure's exporter is quiet by default settings only in part: its own statistics, its remote settings and its retries
from disk are off here (``SILENCE``), and the device's name, which it would take from the machine, is the package's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from distdl_jupyter._version import __version__
from distdl_jupyter.monitoring.settings import CONNECTION_STRING, ENDPOINTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distdl_jupyter.monitoring.account import Account

#: Variables that keep Azure's exporter from talking to anybody but the user's own resource.
SILENCE = {
    "APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL": "true",
    "APPLICATIONINSIGHTS_SDKSTATS_DISABLED": "true",
    "APPLICATIONINSIGHTS_CONTROLPLANE_DISABLED": "true",
    "APPLICATIONINSIGHTS_OPENTELEMETRY_RESOURCE_METRIC_DISABLED": "true",
}
_NAME = "distdl_jupyter"
_EXTRA = {"azure": "distdl-jupyter[azure-monitor]", "otlp": "distdl-jupyter[otlp]"}


class CannotSend(Exception):
    """Nothing can be sent; the message says what is missing."""


def send(account: Account) -> None:
    """Send an account with every exporter that the environment describes. Raises CannotSend."""
    os.environ.update(SILENCE)
    failed = [
        why for spans, metrics in exporters() for why in (_send_spans(account, spans), _send_measures(account, metrics))
    ]
    if any(failed):
        raise CannotSend("; ".join(sorted({why for why in failed if why})))


def exporters() -> Iterator[tuple[Any, Any]]:
    """Yield an exporter of spans and one of metrics for each destination. Raises CannotSend without its package."""
    if os.environ.get(CONNECTION_STRING):
        yield _azure()
    if any(os.environ.get(name) for name in ENDPOINTS):
        yield _otlp()


def _azure() -> tuple[Any, Any]:
    try:
        from azure.monitor.opentelemetry.exporter import AzureMonitorMetricExporter, AzureMonitorTraceExporter
    except ImportError:
        raise CannotSend(f"Application Insights needs a package. Run: pip install '{_EXTRA['azure']}'") from None
    return (
        AzureMonitorTraceExporter(disable_offline_storage=True),
        AzureMonitorMetricExporter(disable_offline_storage=True),
    )


def _otlp() -> tuple[Any, Any]:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise CannotSend(f"OTLP needs a package. Run: pip install '{_EXTRA['otlp']}'") from None
    return OTLPSpanExporter(), OTLPMetricExporter()


def _resource(account: Account) -> Any:
    from opentelemetry.sdk.resources import Resource

    id_ = str(account.spans[0].attributes["distdl.job.id"])
    return Resource.create({
        "service.name": os.environ.get("OTEL_SERVICE_NAME") or _NAME,
        "service.version": __version__,
        "service.instance.id": id_,
        "device.id": _NAME,
    })  # fmt: skip


def _send_spans(account: Account, exporter: Any) -> str:
    """Send the spans at once; return why they did not arrive, "" when they did."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExportResult
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

    tracer = TracerProvider(sampler=ALWAYS_ON, resource=_resource(account), shutdown_on_exit=False).get_tracer(_NAME)
    made: list[Any] = []
    for one in account.spans:
        # A job is something that was taken from a queue; Application Insights shows it as a request with its parts.
        kind = SpanKind.INTERNAL if made else SpanKind.CONSUMER
        context = set_span_in_context(made[0]) if made else None
        span = tracer.start_span(
            one.name, context=context, kind=kind, attributes=one.attributes, start_time=_nanoseconds(one.begin)
        )
        span.set_status(Status(StatusCode.ERROR if one.failed else StatusCode.OK))
        made.append(span)
    for one, span in zip(account.spans, made, strict=True):
        span.end(_nanoseconds(one.end))
    result = exporter.export(made)
    exporter.shutdown()
    return "" if result is SpanExportResult.SUCCESS else "spans were rejected"


def _send_measures(account: Account, exporter: Any) -> str:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult

    # What the exporter asks for (sums since the last time, in Azure's case) is what is collected.
    reader = InMemoryMetricReader(exporter._preferred_temporality, exporter._preferred_aggregation)  # noqa: SLF001
    provider = MeterProvider([reader], resource=_resource(account), shutdown_on_exit=False)
    meter = provider.get_meter(_NAME)
    for one in account.measures:
        if one.kind == "count":
            meter.create_counter(one.name, unit=one.unit).add(one.number, account.shared)
        else:
            meter.create_histogram(one.name, unit=one.unit).record(one.number, account.shared)
    result = exporter.export(reader.get_metrics_data())
    exporter.shutdown()
    provider.shutdown()
    return "" if result is MetricExportResult.SUCCESS else "metrics were rejected"


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
