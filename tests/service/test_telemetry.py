"""OpenTelemetry export over a real socket: both attribute names, full totals, and no conversation text."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
import time

import msgspec
import pytest
from tests.support.event_examples import event
from tests.support.otlp_collector import Collector, run_collector
from tests.support.simulated_gemini import LONG

from holdfast.clock import CountingIds, ManualClock
from holdfast.errors import ProviderError, UserError
from holdfast.events.payloads.calls import LlmCallFailed, LlmCallStarted
from holdfast.runtime.session import Session
from holdfast.service.live.hub import EventHub
from holdfast.service.telemetry.exporter import LAST_SECONDS_MAX, TelemetryExporter, check_collector_url
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


async def export_session(
    collector: Collector, *, content: bool = False, script: str = SCRIPT
) -> tuple[Session, EventHub]:
    """A session of two turns, exported to a collector from its first event to its last."""
    store, clock = MemoryStore(), ManualClock(1_790_000_000.0)
    hub = EventHub(store.records, clock, poll_seconds=0.0)
    async with run_collector(collector) as url:
        exporter = TelemetryExporter(hub, f"{url}/", content=content, interval_seconds=0.05)
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
    session, _ = await export_session(collector)
    calls = [span for span in collector.spans if span["name"] == "chat claude-sonnet-5-5"]
    assert len(calls) == 3
    spans = [span["attributes"] for span in calls]
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
    assert all(span["kind"] == "SPAN_KIND_CLIENT" and span["status"] == {} for span in calls)
    assert calls[0]["startTimeUnixNano"] == "1790000000000000000"


async def test_counters_add_up_to_the_usage_of_the_session() -> None:
    collector = Collector()
    session, _ = await export_session(collector)
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
    await export_session(collector)
    turns = {span["spanId"]: span for span in collector.spans if span["name"] == "invoke_agent"}
    below = [span for span in collector.spans if span["name"] != "invoke_agent"]
    assert len(turns) == 2
    assert {span["parentSpanId"] for span in below} == turns.keys()
    assert all(span["traceId"] == turns[span["parentSpanId"]]["traceId"] for span in below)
    assert {len(span["traceId"]) for span in below} == {32}
    assert len({span["spanId"] for span in collector.spans}) == len(collector.spans)
    (tool,) = (span for span in collector.spans if span["name"] == "execute_tool read")
    assert tool["attributes"]["gen_ai.tool.name"] == "read"


async def test_no_conversation_text_is_exported_by_default() -> None:
    collector = Collector()
    await export_session(collector)
    everything = f"{collector.traces}{collector.metrics}"
    assert "invoke_agent" in everything
    assert not any(word in everything for word in ("canary", "quick brown", "The text of", "Seen."))


async def test_requested_conversation_text_is_exported_without_credentials() -> None:
    collector = Collector()
    await export_session(collector, content=True)
    spans = [span["attributes"] for span in collector.spans if span["name"].startswith("chat")]
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
    await export_session(collector, script=script)
    failed = {
        span["name"]: span["attributes"]["error.type"]
        for span in collector.spans
        if span["status"] == {"code": "STATUS_CODE_ERROR"}
    }
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
        session, _ = await export_session(collector)
    assert session.turn_count == 2
    complaints = [record.message for record in caplog.records if "collector" in record.message]
    assert len(complaints) == 1
    assert complaints[0].startswith("the telemetry collector does not accept data: Transient error Service Unavailable")


async def test_unreachable_collector_affects_no_session(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    hub = EventHub(store.records, ManualClock(), poll_seconds=0.0)
    exporter = TelemetryExporter(hub, "http://user:canary@127.0.0.1:9", interval_seconds=0.05)
    running = asyncio.ensure_future(exporter.run())
    while hub._task is None:  # noqa: ASYNC110 - the store is looked at in another thread
        await asyncio.sleep(0)
    async with Session.create(
        model="anthropic:claude-sonnet-5-5", system_prompt=LONG, store=store, transport=SimulatedProvider()
    ) as session:
        await session.send("One.")
    async with asyncio.timeout(10):
        complaint = "the telemetry collector does not accept data: Transient error"
        while complaint not in caplog.text:  # noqa: ASYNC110 - the network answers when it likes
            await asyncio.sleep(0.01)
    await hub.close()
    await running
    assert "canary" not in caplog.text


async def test_the_environment_gives_headers_and_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer a=b,x-tenant=t1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    collector = Collector()
    await export_session(collector)
    assert {(headers["x-tenant"], headers["authorization"]) for headers in collector.headers} == {("t1", "Bearer a=b")}
    assert {headers["content-encoding"] for headers in collector.headers} == {"gzip"}
    assert collector.resources[0]["service.name"] == "holdfast"


async def test_a_collector_that_never_answers_is_not_waited_for() -> None:
    server = socket.create_server(("127.0.0.1", 0))  # Connections are made, and never accepted.
    port = server.getsockname()[1]
    store = MemoryStore()
    hub = EventHub(store.records, ManualClock(), poll_seconds=0.0)
    running = asyncio.ensure_future(TelemetryExporter(hub, f"http://127.0.0.1:{port}", interval_seconds=0.05).run())
    while hub._task is None:  # noqa: ASYNC110 - the store is looked at in another thread
        await asyncio.sleep(0)
    started = time.monotonic()
    async with Session.create(
        model="anthropic:claude-sonnet-5-5", system_prompt=LONG, store=store, transport=SimulatedProvider()
    ) as session:
        await session.send("One.")
    sent = time.monotonic() - started
    await asyncio.sleep(0.2)
    await hub.close()
    started = time.monotonic()
    await running
    assert time.monotonic() - started < LAST_SECONDS_MAX + 2
    assert sent < LAST_SECONDS_MAX
    server.close()


def test_a_service_without_telemetry_imports_no_opentelemetry() -> None:
    code = (
        "import sys, holdfast.service.server, holdfast.cli.serve.command, holdfast.service.route_table\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_without_the_extra_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['opentelemetry.sdk'] = None\nfrom holdfast.cli.main import main; main()"
    words = [sys.executable, "-c", code, "serve", "--simulate", "--port", "0", "--otlp", "http://127.0.0.1:4318"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr == "holdfast: --otlp needs extra packages: pip install 'holdfast-context[otel]'\n"


@pytest.mark.parametrize("url", ["", "127.0.0.1:4318", "ftp://x", "http://", "http://x?y=1", "http://[x"])
def test_invalid_collector_address_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="the collector must be a URL"):
        check_collector_url(url)
