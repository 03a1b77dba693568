"""OpenTelemetry export over a real socket: both attribute names, full totals, and no conversation text."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.support.event_examples import event
from tests.support.simulated_gemini import LONG

from holdfast.clock import CountingIds, ManualClock
from holdfast.errors import ProviderError, UserError
from holdfast.events.payloads.calls import LlmCallFailed, LlmCallStarted
from holdfast.runtime.session import Session
from holdfast.service.live.hub import EventHub
from holdfast.service.telemetry.exporter import TelemetryExporter, check_collector_url, parse_otlp_headers
from holdfast.service.telemetry.spans import OPEN_MAX, SpanBuilder
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import parse_script
from holdfast.stores.memory import MemoryStore

SCRIPT = "\n".join(
    [
        '{"content": [{"type": "text", "text": "I look, sk-ant-canary-12345678."},'
        ' {"type": "tool_use", "name": "read", "input": {"path": "a.txt"}}]}',
        '{"content": "Seen."}',
        '{"content": "Again."}',
    ]
)


def read(path: str) -> str:
    """Reads a file."""
    if path == "fail":
        raise ValueError("no such file")
    return f"The text of {path}."


class Collector:
    """Records what is posted to it and responds with a given status."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []

    async def take(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        self.bodies.append((request.path, json.loads(await request.read())))
        return web.json_response({}, status=self.status)

    @property
    def spans(self) -> list[dict[str, Any]]:
        found = []
        for path, body in self.bodies:
            if path == "/v1/traces":
                (resource,) = body["resourceSpans"]
                (scope,) = resource["scopeSpans"]
                found += scope["spans"]
        return found

    def sums(self) -> dict[str, int]:
        """The sum of each counter."""
        found: dict[str, int] = {}
        for path, body in self.bodies:
            if path == "/v1/metrics":
                for metric in body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]:
                    assert metric["sum"]["aggregationTemporality"] == 1
                    for point in metric["sum"]["dataPoints"]:
                        found[metric["name"]] = found.get(metric["name"], 0) + int(point["asInt"])
        return found


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {attribute["key"]: next(iter(attribute["value"].values())) for attribute in span["attributes"]}


@asynccontextmanager
async def collecting(collector: Collector) -> AsyncIterator[str]:
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


async def exported(collector: Collector, *, content: bool = False, script: str = SCRIPT) -> tuple[Session, EventHub]:
    """A session of two turns, exported to a collector from its first event to its last."""
    store, clock = MemoryStore(), ManualClock(1_790_000_000.0)
    hub = EventHub(store.records, clock, poll_seconds=0.0)
    async with collecting(collector) as url:
        exporter = TelemetryExporter(hub, f"{url}/", headers={"x-tenant": "t1"}, content=content, pause_seconds=0.0)
        running = asyncio.ensure_future(exporter.run())
        while hub._task is None:  # noqa: ASYNC110 - the store is looked at in another thread
            await asyncio.sleep(0)
        session = Session.create(
            model="anthropic:claude-sonnet-5-5",
            system_prompt=LONG,
            tools=[read],
            store=store,
            transport=SimulatedProvider(clock=clock, script=parse_script(script)),
            clock=clock,
            new_id=CountingIds(),
        )
        try:
            async with session:
                await session.send("Look at canary.")
                clock.advance(60)
                await session.send("Once more.")
        except ProviderError:
            assert "fault" in script
        newest = store.records.newest_position()
        async with asyncio.timeout(10):
            while (hub.position or 0) < newest:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0)
        await hub.close()
        await running
    return session, hub


async def test_spans_have_full_totals_and_both_attribute_names_of_cache_writes() -> None:
    collector = Collector()
    session, _ = await exported(collector)
    calls = [span for span in collector.spans if span["name"] == "chat claude-sonnet-5-5"]
    assert len(calls) == 3
    spans = [attributes(span) for span in calls]
    names = "gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_write.input_tokens"
    for one in spans:
        assert one["gen_ai.operation.name"] == "chat"
        assert one["gen_ai.provider.name"] == "anthropic"
        assert one["gen_ai.conversation.id"] == session.id
        assert one[names[0]] == one[names[1]]
        cached = int(one[names[0]]) + int(one["gen_ai.usage.cache_read.input_tokens"])
        assert int(one["gen_ai.usage.input_tokens"]) >= cached > 4_000
    assert sum(int(one["gen_ai.usage.input_tokens"]) for one in spans) == session.usage.tokens_sent
    assert sum(int(one["gen_ai.usage.cache_read.input_tokens"]) for one in spans) == session.usage.cache_read
    assert all(span["kind"] == 3 and span["status"] == {} for span in calls)
    assert calls[0]["startTimeUnixNano"] == "1790000000000000000"


async def test_counters_add_up_to_the_usage_of_the_session() -> None:
    collector = Collector()
    session, _ = await exported(collector)
    sums, prefix = collector.sums(), "gen_ai.client.inference.usage."
    assert sums == {
        f"{prefix}input_tokens": session.usage.tokens_sent,
        f"{prefix}output_tokens": session.usage.output,
        f"{prefix}cache_read.input_tokens": session.usage.cache_read,
        f"{prefix}cache_write.input_tokens": session.usage.cache_write,
        f"{prefix}cache_creation.input_tokens": session.usage.cache_write,
    }


async def test_call_and_tool_spans_are_children_of_their_turn() -> None:
    collector = Collector()
    await exported(collector)
    turns = {span["spanId"]: span for span in collector.spans if span["name"] == "invoke_agent"}
    below = [span for span in collector.spans if span["name"] != "invoke_agent"]
    assert len(turns) == 2
    assert {span["parentSpanId"] for span in below} == turns.keys()
    assert all(span["traceId"] == turns[span["parentSpanId"]]["traceId"] for span in below)
    assert {len(span["traceId"]) for span in below} == {32}
    assert len({span["spanId"] for span in collector.spans}) == len(collector.spans)
    (tool,) = (span for span in collector.spans if span["name"] == "execute_tool read")
    assert attributes(tool)["gen_ai.tool.name"] == "read"


async def test_no_conversation_text_is_exported_by_default() -> None:
    collector = Collector()
    await exported(collector)
    everything = json.dumps(collector.bodies)
    assert not any(word in everything for word in ("canary", "quick brown", "The text of", "Seen."))


async def test_requested_conversation_text_is_exported_without_credentials() -> None:
    collector = Collector()
    await exported(collector, content=True)
    spans = [attributes(span) for span in collector.spans if span["name"].startswith("chat")]
    first = spans[0]
    assert json.loads(first["gen_ai.input.messages"])[-1] == {
        "role": "user",
        "parts": [{"type": "text", "content": "Look at canary."}],
    }
    (reply,) = json.loads(first["gen_ai.output.messages"])
    assert reply == {"role": "assistant", "parts": [{"type": "text", "content": "I look, [redacted]."}]}
    assert "Look at canary." not in spans[1]["gen_ai.input.messages"]
    assert len(spans) == 3


async def test_failed_calls_and_tools_have_error_status() -> None:
    collector = Collector()
    script = "\n".join(
        [
            '{"content": [{"type": "tool_use", "name": "read", "input": {"path": "fail"}}]}',
            '{"content": "So be it."}',
            '{"fault": "400"}',
        ]
    )
    await exported(collector, script=script)
    failed = {span["name"]: attributes(span)["error.type"] for span in collector.spans if span["status"] == {"code": 2}}
    assert failed == {
        "execute_tool read": "execution_error",
        "chat claude-sonnet-5-5": "invalid_request",
        "invoke_agent": "error",
    }


def test_open_spans_are_dropped_after_a_limit() -> None:
    spans = SpanBuilder()
    for number in range(OPEN_MAX + 1):
        started = LlmCallStarted("a:b", "a", 1, f"r{number}")
        assert list(spans.add_event(event(f"e{number}", started, at=1.0))) == []
    failed = LlmCallFailed("a:b", "a", "network", "gone", 0, 2000, "r0")
    (span,) = spans.add_event(event("end", failed, at=9.0))
    assert span.started_at == 7.0
    (span,) = spans.add_event(event("end2", msgspec.structs.replace(failed, request_id="r1"), at=9.0))
    assert span.started_at == 1.0


async def test_refusing_collector_affects_no_session_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    collector = Collector(status=503)
    with caplog.at_level(logging.WARNING):
        session, _ = await exported(collector)
    assert session.turn_count == 2
    complaints = [record.message for record in caplog.records if "collector" in record.message]
    assert complaints == ["the telemetry collector does not accept data: status 503"]


async def test_unreachable_collector_affects_no_session(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    hub = EventHub(store.records, ManualClock(), poll_seconds=0.0)
    exporter = TelemetryExporter(hub, "http://user:canary@127.0.0.1:9", pause_seconds=0.0)
    running = asyncio.ensure_future(exporter.run())
    while hub._task is None:  # noqa: ASYNC110 - the store is looked at in another thread
        await asyncio.sleep(0)
    async with Session.create(
        model="anthropic:claude-sonnet-5-5", system_prompt=LONG, store=store, transport=SimulatedProvider()
    ) as session:
        await session.send("One.")
    async with asyncio.timeout(10):
        while not caplog.records:  # noqa: ASYNC110 - the network answers when it likes
            await asyncio.sleep(0.01)
    await hub.close()
    await running
    assert "ClientConnectorError" in caplog.text
    assert "canary" not in caplog.text


async def test_headers_from_the_environment_are_sent() -> None:
    collector = Collector()
    await exported(collector)
    assert {headers["x-tenant"] for headers in collector.headers} == {"t1"}
    assert parse_otlp_headers("authorization=Bearer a=b, x-b = c ,,nothing") == {
        "authorization": "Bearer a=b",
        "x-b": "c",
    }
    assert parse_otlp_headers("") == {}


@pytest.mark.parametrize("url", ["", "127.0.0.1:4318", "ftp://x", "http://", "http://x?y=1", "http://[x"])
def test_invalid_collector_address_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="the collector must be a URL"):
        check_collector_url(url)
