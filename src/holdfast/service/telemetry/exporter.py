"""Exports telemetry through the OpenTelemetry SDK: spans and token counters, to a collector over OTLP/HTTP.

It listens to the live feed and never delays it: the SDK's own threads batch and send. Only `holdfast serve --otlp`
imports this module, because it needs the packages of the extra `otel`.
"""

import asyncio
import logging
import threading
from contextlib import aclosing
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import Counter, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, set_span_in_context

from holdfast import __version__
from holdfast.errors import StoreError, UserError
from holdfast.events.records import PositionedEvent
from holdfast.redaction import redact_secrets
from holdfast.service.live.hub import EventHub
from holdfast.service.telemetry.spans import SpanBuilder, TraceSpan

EXPORT_INTERVAL_SECONDS = 1.0
BATCH_SPANS = 256

# If the collector is slow, the oldest spans are dropped and memory stays bounded.
QUEUE_SPANS_MAX = 4_096
SEND_SECONDS_MAX = 10.0

# At shutdown; below the server's own limit of CLOSING_SECONDS_MAX.
LAST_SECONDS_MAX = 3.0
REASON_CHARS_MAX = 200
logger = logging.getLogger(__name__)

_COUNTERS = {
    "gen_ai.client.inference.usage.input_tokens": "gen_ai.usage.input_tokens",
    "gen_ai.client.inference.usage.output_tokens": "gen_ai.usage.output_tokens",
    "gen_ai.client.inference.usage.cache_read.input_tokens": "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.client.inference.usage.cache_write.input_tokens": "gen_ai.usage.cache_write.input_tokens",
    "gen_ai.client.inference.usage.cache_creation.input_tokens": "gen_ai.usage.cache_creation.input_tokens",
}
"""Counter name to the span attribute it sums."""

_SERIES = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")


class TelemetryExporter:
    """What the collector does not accept is dropped, with one warning; nothing waits for the collector.

    Headers, certificates and compression come from the environment variables of OpenTelemetry.
    """

    def __init__(
        self, hub: EventHub, url: str, *, content: bool = False, interval_seconds: float = EXPORT_INTERVAL_SECONDS
    ) -> None:
        url = check_collector_url(url)
        self._hub = hub
        self._builder = SpanBuilder(content=content)
        self._ids = _PlannedIds()
        resource = Resource.create({"service.name": "holdfast", "service.version": __version__})
        # Ended by `run`, in bounded time; at exit the SDK would wait for half a minute.
        self._traces = TracerProvider(id_generator=self._ids, resource=resource, shutdown_on_exit=False)
        self._traces.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(f"{url}/v1/traces", timeout=SEND_SECONDS_MAX),
                max_queue_size=QUEUE_SPANS_MAX,
                max_export_batch_size=BATCH_SPANS,
                schedule_delay_millis=interval_seconds * 1000,
            )
        )
        metric_exporter = OTLPMetricExporter(
            f"{url}/v1/metrics",
            timeout=SEND_SECONDS_MAX,
            preferred_temporality={Counter: AggregationTemporality.DELTA},
        )
        reader = PeriodicExportingMetricReader(metric_exporter, export_interval_millis=interval_seconds * 1000)
        self._metrics = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._tracer = self._traces.get_tracer("holdfast", __version__)
        meter = self._metrics.get_meter("holdfast", __version__)
        self._counters = {
            attribute: meter.create_counter(name, unit="{token}") for name, attribute in _COUNTERS.items()
        }

    async def run(self) -> None:
        """Runs until the feed ends; then sends what is left."""
        sdk_logger = logging.getLogger("opentelemetry")
        sdk_logger.handlers, sdk_logger.propagate = [_FirstWarning(logging.WARNING)], False
        try:
            async with aclosing(self._hub.listen(to_the_end=True)) as items:
                async for item in items:
                    if isinstance(item, PositionedEvent) and item.event is not None:
                        for span in self._builder.add_event(item.event):
                            self._emit(span)
        except StoreError as error:
            logger.warning("telemetry stopped: %s", error)
        finally:
            await self._close()

    def _emit(self, span: TraceSpan) -> None:
        self._ids.trace_id, self._ids.span_id = int(span.trace_id, 16), int(span.span_id, 16)
        context = None
        if span.parent_id:
            parent = SpanContext(self._ids.trace_id, int(span.parent_id, 16), False, TraceFlags(TraceFlags.SAMPLED))
            context = set_span_in_context(NonRecordingSpan(parent))
        started = self._tracer.start_span(
            span.name,
            context,
            kind=SpanKind.CLIENT if span.is_client else SpanKind.INTERNAL,
            attributes=span.attributes,
            start_time=_nanoseconds(span.started_at),
        )
        if span.has_failed:
            started.set_status(StatusCode.ERROR)
        started.end(_nanoseconds(span.ended_at))
        if span.is_client:
            series = {name: span.attributes[name] for name in _SERIES}
            for attribute, counter in self._counters.items():
                counter.add(int(str(span.attributes[attribute])), series)

    async def _close(self) -> None:
        # In a daemon thread, which a collector that does not answer cannot make the process wait for.
        closing = threading.Thread(target=self._shut_down, daemon=True)
        closing.start()
        loop = asyncio.get_running_loop()
        until = loop.time() + LAST_SECONDS_MAX
        while closing.is_alive() and loop.time() < until:  # noqa: ASYNC110 - a thread sets no event of the loop
            await asyncio.sleep(0.02)

    def _shut_down(self) -> None:
        self._traces.shutdown()
        self._metrics.shutdown(LAST_SECONDS_MAX * 1000)


class _PlannedIds(IdGenerator):
    """Gives the next span the ids that the events determine, so that every process derives the same ones."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _FirstWarning(logging.Handler):
    """Repeats the first warning of the SDK as one line of ours; a collector that is down would fill the log."""

    has_warned = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.has_warned:
            self.has_warned = True
            reason = redact_secrets(" ".join(record.getMessage().split()))[:REASON_CHARS_MAX]
            logger.warning("the telemetry collector does not accept data: %s", reason)


def check_collector_url(url: str) -> str:
    """The URL without a trailing slash. Raises UserError if it is not usable."""
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
    except ValueError:
        is_plain = False
    if not is_plain:
        raise UserError("the collector must be a URL such as http://127.0.0.1:4318")
    return url.rstrip("/")


def _nanoseconds(at: float) -> int:
    # Through microseconds: a float of seconds since the epoch has no nanosecond precision.
    return round(at * 1_000_000) * 1000
