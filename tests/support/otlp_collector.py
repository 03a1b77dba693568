"""A collector of OpenTelemetry on a local port: decodes OTLP over HTTP with the protocol's own messages."""

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Takes what is posted to it, and answers with `status`."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []

    async def take(self, request: web.Request) -> web.Response:
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        body = await request.read()
        body = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        if request.path == "/v1/traces":
            self.traces.append(ExportTraceServiceRequest.FromString(body))
        else:
            assert request.path == "/v1/metrics"
            self.metrics.append(ExportMetricsServiceRequest.FromString(body))
        return web.Response(status=self.status)

    @property
    def spans(self) -> list[dict[str, Any]]:
        """Every span as JSON, its attributes as a plain dictionary and its ids in hexadecimal."""
        return [
            {
                **MessageToDict(span),
                "attributes": {one.key: _plain(one.value) for one in span.attributes},
                "traceId": span.trace_id.hex(),
                "spanId": span.span_id.hex(),
                "parentSpanId": span.parent_span_id.hex(),
            }
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resources(self) -> list[dict[str, Any]]:
        exported = [resource.resource for request in self.traces for resource in request.resource_spans]
        return [{one.key: _plain(one.value) for one in resource.attributes} for resource in exported]

    def sums(self) -> dict[str, int]:
        """What each counter has counted, in deltas."""
        sums: dict[str, int] = {}
        for request in self.metrics:
            for metric in request.resource_metrics[0].scope_metrics[0].metrics:
                assert metric.sum.aggregation_temporality == 1
                for point in metric.sum.data_points:
                    sums[metric.name] = sums.get(metric.name, 0) + point.as_int
        return sums


def _plain(value: Any) -> Any:
    if value.HasField("array_value"):
        return [_plain(item) for item in value.array_value.values]
    return getattr(value, value.WhichOneof("value"))


@asynccontextmanager
async def run_collector(collector: Collector) -> AsyncIterator[str]:
    """Serves the collector; yields its URL."""
    app = web.Application()
    app.router.add_post("/{tail:.*}", collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
