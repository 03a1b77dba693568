"""Exports telemetry: encodes spans and token counters as OTLP/HTTP JSON and sends them to a collector.

It listens to the live feed and never delays it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from urllib.parse import urlsplit

import aiohttp
import msgspec

from holdfast import __version__
from holdfast.errors import StoreError, UserError
from holdfast.events.records import PositionedEvent
from holdfast.service.live.hub import EventHub
from holdfast.service.telemetry.spans import FAILED, AttributeValue, SpanBuilder, TraceSpan

EXPORT_INTERVAL_SECONDS = 1.0
BATCH_SPANS = 256

# A deque with this maxlen: if the collector is slow, the oldest spans are dropped and memory stays bounded.
QUEUE_SPANS_MAX = 4_096
SEND_SECONDS_MAX = 10.0

# At shutdown; below the server's own limit of CLOSING_SECONDS_MAX.
LAST_SECONDS_MAX = 3.0
logger = logging.getLogger(__name__)
Json = dict[str, object]

# AGGREGATION_TEMPORALITY_DELTA of the OTLP metrics protocol.
_DELTA = 1

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
    """Spans that the collector does not accept are dropped, with one warning; nothing waits for the collector."""

    def __init__(
        self,
        hub: EventHub,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bool = False,
        pause_seconds: float = EXPORT_INTERVAL_SECONDS,
    ) -> None:
        self._hub = hub
        self._url = check_collector_url(url)
        self._headers = {**(headers or {}), "content-type": "application/json"}
        self._spans = SpanBuilder(content=content)
        self._queue: deque[TraceSpan] = deque(maxlen=QUEUE_SPANS_MAX)
        self._pause_seconds = pause_seconds
        self._has_warned = False

    async def run(self) -> None:
        """Runs until the feed ends; then sends what is left."""
        timeout = aiohttp.ClientTimeout(total=SEND_SECONDS_MAX)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as http:
            sending = asyncio.ensure_future(self._send_repeatedly(http))
            try:
                await self._listen()
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_SECONDS_MAX):
                        await self._send(http)

    async def _listen(self) -> None:
        try:
            async with aclosing(self._hub.listen(to_the_end=True)) as items:
                async for item in items:
                    if isinstance(item, PositionedEvent) and item.event is not None:
                        self._queue.extend(self._spans.add_event(item.event))
        except StoreError as error:
            logger.warning("telemetry stopped: %s", error)

    async def _send_repeatedly(self, http: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(self._pause_seconds)
            await self._send(http)

    async def _send(self, http: aiohttp.ClientSession) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_SPANS))]
            await self._post(http, TRACES, encode_traces(batch))
            if any(span.usage is not None for span in batch):
                await self._post(http, METRICS, encode_metrics(batch))

    async def _post(self, http: aiohttp.ClientSession, path: str, body: bytes) -> None:
        try:
            async with http.post(self._url + path, data=body) as response:
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._warn_once(type(error).__name__)
        else:
            if status >= 300:
                self._warn_once(f"status {status}")

    def _warn_once(self, what: str) -> None:
        if not self._has_warned:
            # Log neither the URL, which may contain a password, nor the response.
            logger.warning("the telemetry collector does not accept data: %s", what)
        self._has_warned = True


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


def parse_otlp_headers(text: str) -> dict[str, str]:
    """Parses headers in the format of OTEL_EXPORTER_OTLP_HEADERS: `name=value`, separated by commas."""
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip()}


TRACES, METRICS = "/v1/traces", "/v1/metrics"


def encode_traces(spans: Sequence[TraceSpan]) -> bytes:
    scope = {"scope": _scope(), "spans": [_span(span) for span in spans]}
    return msgspec.json.encode({"resourceSpans": [{"resource": _resource(), "scopeSpans": [scope]}]})


def encode_metrics(spans: Sequence[TraceSpan]) -> bytes:
    """Token sums of these calls by provider and model, as deltas: each call must be in exactly one message."""
    calls = [span for span in spans if span.usage is not None]
    counters = [_counter(name, attribute, calls) for name, attribute in _COUNTERS.items()]
    scope = {"scope": _scope(), "metrics": counters if calls else []}
    return msgspec.json.encode({"resourceMetrics": [{"resource": _resource(), "scopeMetrics": [scope]}]})


def _counter(name: str, attribute: str, calls: Sequence[TraceSpan]) -> Json:
    groups: dict[tuple[str, ...], list[TraceSpan]] = {}
    for call in calls:
        groups.setdefault(tuple(str(call.attributes[key]) for key in _SERIES), []).append(call)
    points = [
        {
            "attributes": _attributes(dict(zip(_SERIES, series, strict=True))),
            "startTimeUnixNano": _nanoseconds(min(call.started_at for call in group)),
            "timeUnixNano": _nanoseconds(max(call.ended_at for call in group)),
            "asInt": str(sum(int(str(call.attributes[attribute])) for call in group)),
        }
        for series, group in sorted(groups.items())
    ]
    counter = {"aggregationTemporality": _DELTA, "isMonotonic": True, "dataPoints": points}
    return {"name": name, "unit": "{token}", "sum": counter}


def _span(span: TraceSpan) -> Json:
    encoded: Json = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": _nanoseconds(span.started_at),
        "endTimeUnixNano": _nanoseconds(span.ended_at),
        "attributes": _attributes(span.attributes),
        "status": {"code": FAILED} if span.failed else {},
    }
    return {**encoded, "parentSpanId": span.parent_id} if span.parent_id else encoded


def _attributes(values: Mapping[str, AttributeValue]) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: AttributeValue) -> Json:
    match value:
        case str():
            return {"stringValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case tuple():
            return {"arrayValue": {"values": [{"stringValue": item} for item in value]}}


def _nanoseconds(at: float) -> str:
    # Through microseconds: a float of seconds since the epoch has no nanosecond precision.
    return str(round(at * 1_000_000) * 1000)


def _resource() -> Json:
    return {"attributes": _attributes({"service.name": "holdfast", "service.version": __version__})}


def _scope() -> Json:
    return {"name": "holdfast", "version": __version__}
