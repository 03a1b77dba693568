"""Encodes spans and token counters as OTLP/HTTP JSON."""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast import __version__
from holdfast.service.telemetry import FAILED, Span, Value

TRACES, METRICS = "/v1/traces", "/v1/metrics"

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


def traces(spans: Sequence[Span]) -> bytes:
    scope = {"scope": _scope(), "spans": [_span(span) for span in spans]}
    return msgspec.json.encode({"resourceSpans": [{"resource": _resource(), "scopeSpans": [scope]}]})


def metrics(spans: Sequence[Span]) -> bytes:
    """Token sums of these calls by provider and model, as deltas: each call must be in exactly one message."""
    calls = [span for span in spans if span.usage is not None]
    counters = [_counter(name, attribute, calls) for name, attribute in _COUNTERS.items()]
    scope = {"scope": _scope(), "metrics": counters if calls else []}
    return msgspec.json.encode({"resourceMetrics": [{"resource": _resource(), "scopeMetrics": [scope]}]})


def _counter(name: str, attribute: str, calls: Sequence[Span]) -> Json:
    groups: dict[tuple[str, ...], list[Span]] = {}
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


def _span(span: Span) -> Json:
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


def _attributes(values: Mapping[str, Value]) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Value) -> Json:
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
