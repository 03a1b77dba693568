"""The stable prefix is cached before the first message if the caller asks for it and the provider supports it."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from decimal import Decimal

import msgspec
import pytest

from holdfast.catalog.lookup import find_model, shipped_models
from holdfast.engine.cache.ping import PING_RESPONSE_BYTES_MAX, build_ping_parameters, ping_refusal
from holdfast.engine.cache.single_flight import SingleFlight
from holdfast.errors import ProviderError, UserError
from holdfast.events.payloads.cache import CachePinged
from holdfast.events.payloads.calls import LlmCallStarted
from holdfast.ledger.calls import ping_cost_usd
from holdfast.providers.adapter import Endpoint
from holdfast.providers.wire_request import OnRetry
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.server import serve_simulator
from holdfast.stores.memory import MemoryStore
from holdfast.types.prompt import Layout, Parameters

MODEL = "anthropic:claude-sonnet-5-5"
SYSTEM_PROMPT = "You look after the harbour, its cranes and its lights. " * 200


def lift(crane: int) -> str:
    """Lift what hangs on a crane."""
    return f"{crane} lifted"


class OneOutcomeTransport:
    """A transport that ends every request in the same way."""

    def __init__(self, outcome: ProviderError | bytes | None) -> None:
        self._outcome = outcome
        self.arrived = asyncio.Event()
        self.closed = False

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        self.arrived.set()
        if self._outcome is None:
            await asyncio.Event().wait()
        if isinstance(self._outcome, ProviderError):
            raise self._outcome
        yield self._outcome or b""

    async def aclose(self) -> None:
        self.closed = True


async def test_the_first_message_of_a_prewarmed_session_reads_the_stable_prefix() -> None:
    server, store = await serve_simulator(SimulatedProvider()), MemoryStore()
    try:
        async with Session.create(
            model=MODEL,
            system_prompt=SYSTEM_PROMPT,
            tools=[lift],
            base_url=server.url,
            store=store,
            prewarm=True,
            single_flight=SingleFlight(),
        ) as session:
            prewarm_usage, spent = session.usage, session.cost
            answer = await session.send("Is the harbour open?")
    finally:
        await server.aclose()
    assert prewarm_usage.cache_write > 2_000
    assert (prewarm_usage.output, prewarm_usage.cache_read) == (0, 0)
    assert answer.usage.cache_read == prewarm_usage.cache_write
    assert answer.usage.cache_write < 100
    (pinged,) = (event.payload for event in store.read(session.id) if isinstance(event.payload, CachePinged))
    assert (pinged.kind, pinged.model, pinged.ttl, pinged.usage) == ("prewarm", MODEL, "5m", prewarm_usage)
    assert ping_cost_usd(store.read(session.id)) == pinged.cost_usd == spent > 0
    assert session.cost == pinged.cost_usd + answer.cost_usd


@pytest.mark.parametrize("layout", ["default", "seed"])
async def test_the_prewarm_request_is_the_stable_prefix_of_the_first_request(layout: Layout) -> None:
    provider = SimulatedProvider()
    async with Session.create(
        model=MODEL,
        system_prompt=SYSTEM_PROMPT,
        system_prompt_volatile="It rains.",
        layout=layout,
        tools=[lift],
        transport=provider,
        store=MemoryStore(),
    ) as session:
        result = await session.prewarm()
        await session.send("Is the harbour open?")
    empty, first = (msgspec.json.decode(request.body) for request in provider.requests)
    assert (result.is_sent, result.reason) == (True, "")
    assert (empty["max_tokens"], "stream" in empty, first["stream"]) == (0, False, True)
    assert empty["tools"] == first["tools"]
    assert empty["system"] == first["system"][: len(empty["system"])]
    assert empty["system"][-1]["cache_control"] == {"type": "ephemeral"}
    assert empty["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Wait."}]}]


async def test_sessions_that_prewarm_the_same_prefix_at_once_send_it_once() -> None:
    provider = SimulatedProvider()

    async def enter() -> tuple[bool, str]:
        async with Session.create(
            model=MODEL, system_prompt=SYSTEM_PROMPT, transport=provider, store=MemoryStore(), single_flight=shared
        ) as session:
            result = await session.prewarm()
            return result.is_sent, result.reason

    shared = SingleFlight()
    results = await asyncio.gather(*(enter() for _ in range(5)))
    already = (False, "the prefix is already cached")
    assert sorted(results) == [already] * 4 + [(True, "")]
    assert len(provider.requests) == 1


async def test_without_single_flight_every_prewarm_is_sent() -> None:
    provider = SimulatedProvider()
    async with Session.create(
        model=MODEL, system_prompt=SYSTEM_PROMPT, transport=provider, store=MemoryStore(), single_flight=False
    ) as session:
        first, second = await session.prewarm(), await session.prewarm()
    assert (first.usage.cache_write, first.is_sent, second.is_sent) == (second.usage.cache_read, True, True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2_000}},
            'anthropic refuses a ping with thinking.type "enabled"',
        ),
        ({"system_prompt": "Be brief.", "padding": "never"}, "anthropic:claude-sonnet-5-5 caches nothing below "),
        ({"spend_max_usd": "0.02"}, "too little of the $0.02 budget could be left for a call"),
        ({"model": "openai:gpt-5.4"}, "openai:gpt-5.4 caches automatically, and takes no breakpoints"),
        ({"model": "openai:gpt-6-luna"}, "pings are not supported for openai"),
        (
            {"model": "claude-code:claude-sonnet-5-5", "allow_uncached": True},
            "claude-code:claude-sonnet-5-5 is not known to cache",
        ),
    ],
)
async def test_a_prewarm_that_is_not_possible_says_why_and_sends_nothing(
    options: dict[str, object], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, transport = MemoryStore(), OneOutcomeTransport(ProviderError("other", "nothing may be sent"))
    merged = {
        "model": MODEL,
        "system_prompt": SYSTEM_PROMPT,
        "store": store,
        "transport": transport,
        "prewarm": True,
        **options,
    }
    with caplog.at_level(logging.WARNING):
        async with Session.create(**merged) as session:  # type: ignore[arg-type]
            result = await session.prewarm()
    assert reason in result.reason
    assert (result.is_sent, result.cost_usd, session.cost, transport.arrived.is_set()) == (
        False,
        Decimal(0),
        Decimal(0),
        False,
    )
    assert f"the stable prefix was not prewarmed: {result.reason}" in caplog.text


@pytest.mark.parametrize(
    ("parameters", "conflict"),
    [
        ({"tool_choice_json": '{"type":"any"}'}, "tool_choice.type 'any'"),
        ({"tool_choice_json": '{"type":"tool","name":"x"}'}, "tool_choice.type 'tool'"),
        ({"extra": (("output_config", '{"format":{"type":"json_schema"}}'),)}, "output_config.format"),
        ({"thinking_json": '{"type":"enabled"}'}, 'thinking.type "enabled"'),
    ],
)
def test_parameters_that_prevent_a_ping_are_named(parameters: dict[str, object], conflict: str) -> None:
    request_parameters = msgspec.structs.replace(Parameters("claude-sonnet-5-5", 100, stream=True), **parameters)
    assert ping_refusal(request_parameters, find_model(MODEL)) == f"anthropic refuses a ping with {conflict}"


def test_harmless_parameters_stay_in_a_ping() -> None:
    request_parameters = Parameters(
        "claude-sonnet-5-5",
        100,
        stream=True,
        tool_choice_json='{"type":"auto"}',
        thinking_json='{"type":"adaptive"}',
        betas=("b",),
        extra=(("output_config", '{"effort":"low"}'), ("odd", "[[")),
    )
    assert ping_refusal(request_parameters, find_model(MODEL)) is None
    ping_parameters = msgspec.structs.replace(request_parameters, output_tokens_max=0, stream=False)
    assert build_ping_parameters(request_parameters, find_model(MODEL)) == ping_parameters


def test_exactly_the_anthropic_models_accept_pings() -> None:
    refusals = {row.id: ping_refusal(Parameters(row.name, 100), row) for row in shipped_models().values()}
    pingable = {id for id, reason in refusals.items() if reason is None}
    assert pingable == {row.id for row in shipped_models().values() if row.provider == "anthropic"}


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (ProviderError("server_error", "the harbour is closed"), "the harbour is closed"),
        (b"<html>", ""),
        (b" " * (PING_RESPONSE_BYTES_MAX + 1), f"the provider sent a response of over {PING_RESPONSE_BYTES_MAX} bytes"),
    ],
)
async def test_a_failed_prewarm_does_not_fail_the_session(
    outcome: ProviderError | bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    with caplog.at_level(logging.WARNING):
        async with Session.create(
            model=MODEL, system_prompt=SYSTEM_PROMPT, store=store, transport=OneOutcomeTransport(outcome), prewarm=True
        ) as session:
            result = await session.prewarm()
    assert not result.is_sent
    assert result.reason
    assert reason in result.reason
    assert f"ping (prewarm) failed: {result.reason}" in caplog.text
    assert session.cost == 0
    assert not any(isinstance(event.payload, CachePinged | LlmCallStarted) for event in store.read(session.id))


async def test_a_session_cancelled_while_it_prewarms_is_closed() -> None:
    transport, store = OneOutcomeTransport(None), MemoryStore()
    session = Session.create(model=MODEL, system_prompt=SYSTEM_PROMPT, store=store, transport=transport, prewarm=True)
    entering = asyncio.ensure_future(session.__aenter__())
    await transport.arrived.wait()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    with pytest.raises(UserError, match="the session is not open"):
        await session.prewarm()


async def test_no_prewarm_while_a_turn_is_in_progress() -> None:
    transport = OneOutcomeTransport(None)
    async with Session.create(
        model=MODEL, system_prompt=SYSTEM_PROMPT, store=MemoryStore(), transport=transport
    ) as session:
        turn = asyncio.ensure_future(session.send("Is the harbour open?"))
        await transport.arrived.wait()
        with pytest.raises(
            UserError, match="a turn is in progress in this session, and it writes the stable prefix itself"
        ):
            await session.prewarm()
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)


async def test_the_first_message_waits_for_a_prewarm_in_flight() -> None:
    provider = SimulatedProvider()
    async with Session.create(
        model=MODEL, system_prompt=SYSTEM_PROMPT, transport=provider, store=MemoryStore(), single_flight=SingleFlight()
    ) as session:
        prewarming = asyncio.ensure_future(session.prewarm())
        await asyncio.sleep(0)
        answer = await session.send("Is the harbour open?")
        assert answer.usage.cache_read == (await prewarming).usage.cache_write
