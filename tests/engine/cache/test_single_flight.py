"""Several sessions with the same stable prefix at once: one writes it, the others read it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Unpack

import pytest
from tests.support.settling import use_one_thread, wait_until_settled

from holdfast.catalog.lookup import find_model
from holdfast.clock import ManualClock
from holdfast.engine.cache.single_flight import SingleFlight
from holdfast.errors import ProviderError
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed, LlmCallStarted
from holdfast.events.payloads.session import TurnCancelled
from holdfast.providers.adapter import Endpoint
from holdfast.providers.wire_request import OnRetry
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.server import serve_simulator
from holdfast.stores.memory import MemoryStore
from holdfast.types.usage import Usage

MODEL = "anthropic:claude-sonnet-5-5"
MODEL_WITH_A_HIGH_MINIMUM = "anthropic:claude-opus-4-5"
SYSTEM_PROMPT = "You look after the harbour, its cranes and its lights. " * 200
SLOW = '{"fault": "slow;seconds=0.2"}\n{"content": "well"}\n'


@asynccontextmanager
async def open_sessions(
    system_prompts: Sequence[str], log: MemoryStore, **options: Unpack[Options]
) -> AsyncIterator[list[Session]]:
    use_one_thread()
    common: Options = {"model": MODEL, "store": log}
    session_options = [common | options | Options(system_prompt=system_prompt) for system_prompt in system_prompts]
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Session.create(**each)) for each in session_options]


@asynccontextmanager
async def serve(provider: SimulatedProvider) -> AsyncIterator[str]:
    server = await serve_simulator(provider)
    try:
        yield server.url
    finally:
        await server.aclose()


async def ask_all(sessions: Sequence[Session]) -> list[Usage]:
    """Send each session its own question, all at once; return the usage of each call."""
    asks = (session.send(f"What about crane {number}?") for number, session in enumerate(sessions))
    return [answer.usage for answer in await asyncio.gather(*asks)]


def count_writers(usages: Sequence[Usage]) -> int:
    """How many calls wrote the stable prefix; a question is only a few tokens."""
    return sum(usage.cache_write > 1_000 for usage in usages)


def count_readers(usages: Sequence[Usage]) -> int:
    return sum(usage.cache_read > 1_000 for usage in usages)


def wait_seconds(store: MemoryStore) -> list[float]:
    """How long each call of each session has waited."""
    payloads = (event.payload for row in store.sessions() for event in store.read(row.id))
    return [payload.waited_seconds for payload in payloads if isinstance(payload, LlmCallStarted)]


class BlockingTransport:
    """A transport to the simulator that blocks its first requests until `open` is set, or fails them."""

    def __init__(self, *first: ProviderError | None) -> None:
        self._wire = SimulatedProvider().create_transport()
        self._first = list(first)
        self.sent = 0
        self.arrived = asyncio.Event()
        self.open = asyncio.Event()

    def hold(self, count: int) -> None:
        self._first = [None] * count

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        self.sent += 1
        held, failure = bool(self._first), self._first.pop(0) if self._first else None
        self.arrived.set()
        if held:
            await self.open.wait()
        if failure is not None:
            raise failure
        async for chunk in self._wire.send(endpoint, body, on_retry=on_retry):
            yield chunk

    async def aclose(self) -> None:
        await self._wire.aclose()


async def test_of_eight_sessions_with_the_same_prefix_one_writes_it_and_seven_read_it() -> None:
    store = MemoryStore()
    async with (
        serve(SimulatedProvider(script=SLOW)) as url,
        open_sessions([SYSTEM_PROMPT] * 8, store, base_url=url, single_flight=SingleFlight()) as sessions,
    ):
        usages = await ask_all(sessions)
    assert (count_writers(usages), count_readers(usages)) == (1, 7)
    assert sum(seconds > 0.1 for seconds in wait_seconds(store)) == 7


async def test_without_single_flight_every_session_writes_the_prefix() -> None:
    store = MemoryStore()
    async with (
        serve(SimulatedProvider(script=SLOW)) as url,
        open_sessions([SYSTEM_PROMPT] * 8, store, base_url=url, single_flight=False) as sessions,
    ):
        usages = await ask_all(sessions)
    assert (count_writers(usages), count_readers(usages)) == (8, 0)
    assert wait_seconds(store) == [0.0] * 8


async def test_sessions_share_single_flight_if_they_share_an_account() -> None:
    async with (
        serve(SimulatedProvider(script=SLOW)) as url,
        open_sessions([SYSTEM_PROMPT] * 3, MemoryStore(), base_url=url, api_key="account one") as ones,
        open_sessions([SYSTEM_PROMPT] * 3, MemoryStore(), base_url=url, api_key="account two") as others,
    ):
        usages = await ask_all([*ones, *others])
    assert [count_writers(usages[:3]), count_writers(usages[3:])] == [1, 1]


async def test_transports_to_one_simulator_share_single_flight_and_those_to_two_do_not() -> None:
    one, other = SimulatedProvider(script=SLOW), SimulatedProvider(script=SLOW)
    async with (
        open_sessions([SYSTEM_PROMPT] * 2, MemoryStore(), transport=one) as ones,
        open_sessions([SYSTEM_PROMPT] * 2, MemoryStore(), transport=other) as others,
    ):
        usages = await ask_all([*ones, *others])
    assert [count_writers(usages[:2]), count_writers(usages[2:])] == [1, 1]


async def test_different_prefixes_do_not_wait_for_each_other() -> None:
    store, transport = MemoryStore(), BlockingTransport(None)
    async with open_sessions([SYSTEM_PROMPT, f"Otherwise: {SYSTEM_PROMPT}"], store, transport=transport) as (
        held,
        other,
    ):
        first = asyncio.ensure_future(held.send("Is the harbour open?"))
        await transport.arrived.wait()
        assert (await other.send("And here?")).usage.cache_write > 1_000
        transport.open.set()
        await first
    assert len(wait_seconds(store)) == 2


async def test_requests_with_different_cache_parameters_do_not_wait_for_each_other() -> None:
    transport = BlockingTransport(None)
    async with (
        open_sessions([SYSTEM_PROMPT], MemoryStore(), transport=transport) as (held,),
        open_sessions([SYSTEM_PROMPT], MemoryStore(), transport=transport, thinking={"type": "adaptive"}) as (other,),
        open_sessions(
            [SYSTEM_PROMPT], MemoryStore(), transport=transport, output_tokens_max=9, stop_sequences=["."]
        ) as (alike,),
    ):
        first = asyncio.ensure_future(held.send("Is the harbour open?"))
        await transport.arrived.wait()
        assert (await other.send("And here?")).usage.cache_write > 1_000
        second = asyncio.ensure_future(alike.send("And there?"))
        await wait_until_settled()
        assert not second.done()
        transport.open.set()
        await first
        assert (await second).usage.cache_read > 1_000


async def test_a_prefix_below_the_minimum_is_never_waited_for() -> None:
    store, transport = MemoryStore(), BlockingTransport(None)
    assert find_model(MODEL_WITH_A_HIGH_MINIMUM).cache.tokens_min == 4_096
    async with open_sessions(
        [SYSTEM_PROMPT[:8_000]] * 2, store, transport=transport, padding="never", model=MODEL_WITH_A_HIGH_MINIMUM
    ) as (
        held,
        other,
    ):
        first = asyncio.ensure_future(held.send("Is the harbour open?"))
        await transport.arrived.wait()
        await other.send("And here?")
        assert not first.done()
        transport.open.set()
        await first
    assert wait_seconds(store) == [0.0, 0.0]


async def test_if_the_first_request_fails_one_other_writes_the_prefix() -> None:
    transport = BlockingTransport(ProviderError("auth", "no such key", status=401))
    async with open_sessions([SYSTEM_PROMPT] * 4, MemoryStore(), transport=transport) as sessions:
        turns = [asyncio.ensure_future(session.send("Is the harbour open?")) for session in sessions]
        await wait_until_settled()
        assert transport.sent == 1
        transport.open.set()
        failure, *answers = await asyncio.gather(*turns, return_exceptions=True)
    assert isinstance(failure, ProviderError)
    usages = [answer.usage for answer in answers if not isinstance(answer, BaseException)]
    assert (count_writers(usages), count_readers(usages)) == (1, 2)


async def test_if_the_first_request_is_cancelled_one_other_writes_the_prefix() -> None:
    transport = BlockingTransport(None)
    async with open_sessions([SYSTEM_PROMPT] * 3, MemoryStore(), transport=transport) as sessions:
        first, *others = [asyncio.ensure_future(session.send("Is the harbour open?")) for session in sessions]
        await wait_until_settled()
        assert transport.sent == 1
        first.cancel()
        usages = [answer.usage for answer in await asyncio.gather(*others)]
        assert first.cancelled()
    assert (count_writers(usages), count_readers(usages)) == (1, 1)


async def test_a_session_cancelled_while_it_waits_records_a_cancelled_turn_and_no_call() -> None:
    store, transport = MemoryStore(), BlockingTransport(None)
    async with open_sessions([SYSTEM_PROMPT] * 3, store, transport=transport) as (held, cancelled, patient):
        first = asyncio.ensure_future(held.send("Is the harbour open?"))
        await transport.arrived.wait()
        second, third = (asyncio.ensure_future(session.send("And here?")) for session in (cancelled, patient))
        await wait_until_settled()
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        transport.open.set()
        await first
        assert (await third).usage.cache_read > 1_000
        payloads = [event.payload for event in store.read(cancelled.id)]
    assert isinstance(payloads[-1], TurnCancelled)
    assert not any(isinstance(payload, LlmCallStarted | LlmCallCompleted | LlmCallFailed) for payload in payloads)


async def test_no_session_waits_longer_than_the_limit() -> None:
    store, transport = MemoryStore(), BlockingTransport(None)
    async with open_sessions(
        [SYSTEM_PROMPT] * 3, store, transport=transport, single_flight=SingleFlight(wait_seconds_max=0.05)
    ) as (
        held,
        *others,
    ):
        first = asyncio.ensure_future(held.send("Is the harbour open?"))
        await transport.arrived.wait()
        usages = await ask_all(others)
        assert not first.done()
        transport.open.set()
        await first
    # They do not start at the same time, so the second may find what the first has written.
    assert count_writers(usages) >= 1
    assert sorted(seconds >= 0.04 for seconds in wait_seconds(store)) == [False, True, True]


@pytest.mark.parametrize(("pause_seconds", "sent"), [(299, 3), (301, 2)])
async def test_a_prefix_written_within_its_ttl_is_not_waited_for(pause_seconds: int, sent: int) -> None:
    transport, clock = BlockingTransport(), ManualClock()
    async with open_sessions([SYSTEM_PROMPT] * 3, MemoryStore(), transport=transport, clock=clock) as (early, *late):
        await early.send("Is the harbour open?")
        clock.advance(pause_seconds)
        transport.hold(2)
        turns = [asyncio.ensure_future(session.send("And now?")) for session in late]
        await wait_until_settled()
        assert transport.sent == sent
        transport.open.set()
        await asyncio.gather(*turns)


async def test_a_shared_question_is_waited_for_only_if_it_is_long() -> None:
    for question, sent in (("And now?", 3), ("And now? " * 300, 2)):
        transport = BlockingTransport()
        async with open_sessions([SYSTEM_PROMPT] * 3, MemoryStore(), transport=transport) as (early, *late):
            await early.send("Is the harbour open?")
            transport.hold(2)
            turns = [asyncio.ensure_future(session.send(question)) for session in late]
            await wait_until_settled()
            assert transport.sent == sent
            transport.open.set()
            await asyncio.gather(*turns)


async def test_a_single_conversation_never_waits() -> None:
    store = MemoryStore()
    single_flight = SingleFlight()
    async with open_sessions([SYSTEM_PROMPT], store, transport=SimulatedProvider(), single_flight=single_flight) as (
        session,
    ):
        for number in range(5):
            await session.send(f"Question {number}?")
    assert wait_seconds(store) == [0.0] * 5
    assert single_flight.key_count == 6


async def test_a_session_switched_to_another_transport_waits_for_the_sessions_on_it() -> None:
    transport = BlockingTransport(None)
    async with (
        open_sessions(
            [SYSTEM_PROMPT], MemoryStore(), transport=BlockingTransport(), model="anthropic:claude-opus-5-5"
        ) as (session,),
        open_sessions([SYSTEM_PROMPT], MemoryStore(), transport=transport) as (held,),
    ):
        await session.switch_model(MODEL, transport=transport)
        first = asyncio.ensure_future(held.send("Is the harbour open?"))
        await transport.arrived.wait()
        second = asyncio.ensure_future(session.send("And here?"))
        await wait_until_settled()
        assert transport.sent == 1
        transport.open.set()
        await first
        assert (await second).usage.cache_read > 1_000


@pytest.mark.parametrize("switched", ["anthropic:claude-opus-5-5", "openai:gpt-6-luna"])
async def test_a_session_switched_to_another_model_waits_for_the_sessions_of_that_model(switched: str) -> None:
    provider = SimulatedProvider(script=SLOW)
    async with (
        open_sessions([SYSTEM_PROMPT], MemoryStore(), transport=provider) as (session,),
        open_sessions([SYSTEM_PROMPT], MemoryStore(), transport=provider, model=switched) as (other,),
    ):
        await session.switch_model(switched)
        usages = await ask_all([session, other])
    # OpenAI caches each session under its own key, so there is nothing to wait for.
    assert count_writers(usages) == (1 if switched.startswith("anthropic") else 2)
