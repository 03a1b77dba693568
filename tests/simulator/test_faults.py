"""Faulty deliveries on demand: each ends in a typed error, in time, and leaves a session that can continue."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from tests.support.agents import MakeAgent

from holdfast import SimulatedProvider
from holdfast.errors import ProviderError, UserError
from holdfast.events.payloads.calls import LlmCallFailed
from holdfast.providers.connection_pool import Timeouts
from holdfast.providers.registry import get_adapter
from holdfast.providers.transport import HttpTransport
from holdfast.simulator.exchange import ConnectionCut, Pause
from holdfast.simulator.faults import DeliveryFault, RefusalFault, StatusFault, parse_fault
from holdfast.simulator.server import RunningSimulator, serve_simulator
from holdfast.types.blocks import Text
from holdfast.types.transcript import validate_transcript

ANTHROPIC = get_adapter("anthropic")
SHORT = Timeouts(connect_seconds=5.0, first_byte_seconds=0.15, idle_seconds=0.15)
BODY = b'{"model":"claude-sonnet-5-5","max_tokens":9,%b"messages":[{"role":"user","content":"hi"}]}'


def ask(fault: str, *, stream: bool = True) -> list[object]:
    """The parts of a response that a requested fault delivers."""
    headers = {"x-api-key": "k", "x-holdfast-fault": fault}
    body = BODY % (b'"stream":true,' if stream else b"")
    return list(SimulatedProvider().handle("POST", "/v1/messages", headers=headers, body=body).chunks)


@pytest.mark.parametrize(
    ("specification", "fault"),
    [
        ("slow", DeliveryFault("slow", seconds=1.0)),
        ("slow; seconds=0.5", DeliveryFault("slow", seconds=0.5)),
        ("slow;seconds=9999999", DeliveryFault("slow", seconds=3600.0)),
        ("drip;seconds=0.5", DeliveryFault("drip", seconds=0.5)),
        ("stall", DeliveryFault("stall", after_chunks=1)),
        ("stall;after=3", DeliveryFault("stall", after_chunks=3)),
        ("cut;after=0", DeliveryFault("cut", after_chunks=0)),
        ("malformed;after=2", DeliveryFault("malformed", after_chunks=2)),
        ("content-type", DeliveryFault("content-type")),
        ("window;tokens=1000", RefusalFault("window", 1000)),
        ("breakpoints", RefusalFault("breakpoints", 0)),
        ("breakpoints;max=2", RefusalFault("breakpoints", 2)),
        ("ttl", RefusalFault("ttl")),
        ("thinking", RefusalFault("thinking")),
        ("unpaired", RefusalFault("unpaired")),
        ("429;retry-after=2", StatusFault(429, 2.0)),
        ("400", StatusFault(400)),
        ("599", StatusFault(599)),
    ],
)
def test_a_fault_is_a_word_with_its_numbers(specification: str, fault: object) -> None:
    assert parse_fault(specification) == fault


@pytest.mark.parametrize(
    "specification",
    [
        "",
        "399",
        "600",
        "flood",
        "cut;after=1.5",
        "cut;after=-1",
        "cut;after=x",
        "cut;seconds=1",
        "slow;after=1",
        "slow;seconds=nan",
        "content-type;after=1",
        "429;after=1",
        "window;max=1",
        "window;tokens=1.5",
        "window;tokens=99999999999",
        "breakpoints;tokens=1",
        "thinking;max=1",
        "429;retry-after",
        "stall;after=1;seconds=2",
    ],
)
def test_any_other_fault_is_refused_with_a_list_of_the_known_ones(specification: str) -> None:
    with pytest.raises(
        UserError, match=r"unknown fault .*; known: an HTTP status .*slow;seconds=1; drip;seconds=1; stall;after=1; cut"
    ):
        parse_fault(specification)


@pytest.mark.parametrize(
    ("fault", "words"),
    [("window;tokens=1", b"prompt is too long: "), ("unpaired", b"without `tool_result` blocks")],
)
def test_a_conditional_refusal_is_in_the_providers_format(fault: str, words: bytes) -> None:
    (refused,) = ask(fault)
    assert isinstance(refused, bytes)
    assert words in refused
    assert b"invalid_request_error" in refused


@pytest.mark.parametrize("fault", ["window;tokens=100000", "breakpoints", "ttl", "thinking"])
def test_a_conditional_refusal_lets_a_valid_request_pass(fault: str) -> None:
    assert b"message_stop" in b"".join(part for part in ask(fault) if isinstance(part, bytes))


def test_a_slow_reply_is_complete_after_a_pause() -> None:
    pause, *rest = ask("slow;seconds=7")
    assert pause == Pause(7.0)
    assert rest[0] == ask("slow")[1]
    assert b"message_stop" in rest[-1]  # type: ignore[operator]


def test_a_dripping_reply_is_complete_with_a_pause_before_each_part() -> None:
    dripped = ask("drip;seconds=0.5")
    assert dripped[::2] == [Pause(0.5)] * (len(dripped) // 2)
    assert dripped[1::2] == ask("slow")[1:]


def test_a_stalled_reply_stops_after_some_parts() -> None:
    first, second, pause, cut_off = ask("stall;after=2")
    assert isinstance(first, bytes)
    assert isinstance(second, bytes)
    assert (pause, cut_off) == (Pause(3600.0), ConnectionCut())


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_cut_reply_breaks_off_after_some_parts(after: int) -> None:
    *parts, cut_off = ask(f"cut;after={after}")
    assert len(parts) == after
    assert cut_off == ConnectionCut()


def test_a_malformed_reply_has_one_undecodable_event() -> None:
    parts = ask("malformed;after=2")
    complete = [part for part in ask("slow") if isinstance(part, bytes)]
    assert [received == other for received, other in zip(parts, complete, strict=True)] == [
        number != 2 for number in range(len(complete))
    ]
    broken = parts[2]
    assert isinstance(broken, bytes)
    assert broken.startswith(b"event: content_block_delta\ndata: {")
    assert broken.endswith(b"\n\n")
    assert len(broken) < len(complete[2])


def test_non_streamed_replies_are_cut_in_the_middle() -> None:
    half, cut_off = ask("cut;after=1", stream=False)
    (malformed,) = ask("malformed", stream=False)
    assert cut_off == ConnectionCut()
    assert isinstance(half, bytes)
    assert half == malformed
    assert half.startswith(b'{"id":')
    assert not half.endswith(b"}")


def test_a_reply_of_the_wrong_type_is_an_html_page() -> None:
    headers = {"x-api-key": "k", "x-holdfast-fault": "content-type"}
    answer = SimulatedProvider().handle("POST", "/v1/messages", headers=headers, body=BODY % b"")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html")
    assert answer.read_body() == b"<html><body>Please sign in.</body></html>"


def test_a_started_reply_writes_the_cache_whatever_happens_to_its_delivery() -> None:
    for fault in ("cut;after=1", "content-type", "malformed"):
        provider = SimulatedProvider()
        system = b'"system":[{"type":"text","text":"%b","cache_control":{"type":"ephemeral"}}],' % (b"word " * 800)
        headers = {"x-api-key": "k", "x-holdfast-fault": fault}
        provider.handle("POST", "/v1/messages", headers=headers, body=BODY % system).read_body()
        assert len(provider.cache) == 1, fault


@pytest.fixture
async def server() -> AsyncIterator[RunningSimulator]:
    running = await serve_simulator(SimulatedProvider(script='{"fault": "slow;seconds=0.02"}\n{"content": "ok"}'))
    yield running
    await running.aclose()


async def over_http(url: str, fault: str, timeouts: Timeouts) -> bytes:
    transport = HttpTransport(ANTHROPIC, url, "k", timeouts=timeouts, attempts_max=1)
    endpoint = ANTHROPIC.endpoint(ANTHROPIC.decode_request(BODY % b"").parameters)
    ordered = type(endpoint)(endpoint.path, (*endpoint.headers, ("x-holdfast-fault", fault)))
    try:
        chunks = [chunk async for chunk in transport.send(ordered, BODY % b'"stream":true,')]
    finally:
        await transport.aclose()
    return b"".join(chunks)


@pytest.mark.parametrize("fault", ["slow;seconds=30", "stall;after=0", "stall;after=2", "cut;after=0", "cut;after=2"])
async def test_over_http_every_broken_delivery_is_a_network_failure_in_time(
    server: RunningSimulator, fault: str
) -> None:
    async with asyncio.timeout(5):
        with pytest.raises(ProviderError) as error:
            await over_http(server.url, fault, SHORT)
    assert error.value.kind == "network"


async def test_over_http_a_slow_reply_arrives_within_a_longer_timeout(server: RunningSimulator) -> None:
    body = await over_http(server.url, "slow;seconds=0.05", Timeouts())
    assert b"message_stop" in body


async def test_a_simulator_with_stalled_replies_stops_at_once() -> None:
    running = await serve_simulator(SimulatedProvider())
    stalled = asyncio.ensure_future(over_http(running.url, "stall;after=1", Timeouts()))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(5):
        await running.aclose()
        with pytest.raises(ProviderError):
            await stalled


@pytest.mark.parametrize(
    ("fault", "kind", "expected"),
    [
        ("cut;after=0", "network", None),
        ("cut;after=4", "network", None),
        ("malformed;after=3", "server_error", None),
        ("content-type", "network", None),
    ],
)
async def test_a_session_continues_after_a_broken_delivery(
    agent: MakeAgent, fault: str, kind: str, expected: object
) -> None:
    script = f'{{"content": "a long answer", "fault": "{fault}"}}\n{{"content": "second"}}'
    made_agent = agent(transport=SimulatedProvider(script=script))
    async with made_agent.session as session:
        with pytest.raises(ProviderError) as error:
            await session.send("hello")
        assert error.value.kind == kind
        failed = next(payload for payload in made_agent.payloads if isinstance(payload, LlmCallFailed))
        assert failed.error_class == kind
        answer = await session.send("go on")
        assert answer.content == (Text("a long answer"),)
        assert validate_transcript(session.history) == ()


async def test_a_slow_reply_is_an_ordinary_one_for_a_session(agent: MakeAgent) -> None:
    provider = SimulatedProvider(script='{"content": "late", "fault": "slow;seconds=0.01"}')
    async with agent(transport=provider).session as session:
        assert (await session.send("hello")).text == "late"


def status(provider: SimulatedProvider, *texts: str) -> int:
    content = [{"type": "text", "text": text} for text in texts]
    body = {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}
    return provider.handle("POST", "/v1/messages", headers={"x-api-key": "k"}, body=json.dumps(body).encode()).status


def test_a_conversation_whose_first_message_grew_after_a_failure_is_still_the_same() -> None:
    provider = SimulatedProvider(script='{"fault": "400"}\n{"fault": "400"}\n{"content": "ok"}')
    assert [status(provider, "hi"), status(provider, "hi", "again"), status(provider, "hi", "again", "and again")] == [
        400,
        400,
        200,
    ]


def test_conversations_with_a_common_start_fail_separately() -> None:
    provider = SimulatedProvider(script='{"fault": "400"}\n{"content": "ok"}')
    assert [status(provider, "Monday", ask) for ask in ("one", "two", "one", "two")] == [400, 400, 200, 200]
