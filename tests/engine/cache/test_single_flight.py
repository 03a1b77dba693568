"""Several sessions with one head at once: one writes it, the others read it."""

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
MODEL_WITH_A_HIGH_FLOOR = "anthropic:claude-opus-4-5"
HEAD = "You look after the harbour, its cranes and its lights. " * 200
SLOW = '{"fault": "slow;seconds=0.2"}\n{"content": "well"}\n'


@asynccontextmanager
async def fleet(heads: Sequence[str], log: MemoryStore, **options: Unpack[Options]) -> AsyncIterator[list[Session]]:
    use_one_thread()
    common: Options = {"model": MODEL, "store": log}
    given = [common | options | Options(system_prompt=head) for head in heads]
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Session.create(**each)) for each in given]


@asynccontextmanager
async def served(provider: SimulatedProvider) -> AsyncIterator[str]:
    server = await serve_simulator(provider)
    try:
        yield server.url
    finally:
        await server.aclose()


async def ask_all(sessions: Sequence[Session]) -> list[Usage]:
    """All at once, each its own question; what each call took."""
    asks = (session.send(f"What about crane {number}?") for number, session in enumerate(sessions))
    return [answer.usage for answer in await asyncio.gather(*asks)]


def writers(usages: Sequence[Usage]) -> int:
    """How many wrote a head; a question of one's own is a few tokens."""
    return sum(usage.cache_write > 1_000 for usage in usages)


def readers(usages: Sequence[Usage]) -> int:
    return sum(usage.cache_read > 1_000 for usage in usages)


def waits(store: MemoryStore) -> list[float]:
    """How long each call of each session has waited."""
    found = (event.payload for row in store.sessions() for event in store.read(row.id))
    return [payload.waited_seconds for payload in found if isinstance(payload, LlmCallStarted)]


class Harbour:
    """A wire to the simulator that keeps its first requests back until told, or fails them."""

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


async def test_of_eight_sessions_with_one_head_one_writes_it_and_the_others_read_it() -> None:
    store = MemoryStore()
    async with (
        served(SimulatedProvider(script=SLOW)) as url,
        fleet([HEAD] * 8, store, base_url=url, single_flight=SingleFlight()) as sessions,
    ):
        usages = await ask_all(sessions)
    assert (writers(usages), readers(usages)) == (1, 7)
    assert sum(seconds > 0.1 for seconds in waits(store)) == 7


async def test_without_the_gate_every_one_of_them_writes_it() -> None:
    store = MemoryStore()
    async with (
        served(SimulatedProvider(script=SLOW)) as url,
        fleet([HEAD] * 8, store, base_url=url, single_flight=False) as sessions,
    ):
        usages = await ask_all(sessions)
    assert (writers(usages), readers(usages)) == (8, 0)
    assert waits(store) == [0.0] * 8


async def test_sessions_share_a_gate_where_they_share_an_account() -> None:
    async with (
        served(SimulatedProvider(script=SLOW)) as url,
        fleet([HEAD] * 3, MemoryStore(), base_url=url, api_key="account one") as ones,
        fleet([HEAD] * 3, MemoryStore(), base_url=url, api_key="account two") as others,
    ):
        usages = await ask_all([*ones, *others])
    assert [writers(usages[:3]), writers(usages[3:])] == [1, 1]


async def test_wires_to_one_simulator_share_a_gate_and_those_to_two_do_not() -> None:
    one, other = SimulatedProvider(script=SLOW), SimulatedProvider(script=SLOW)
    async with (
        fleet([HEAD] * 2, MemoryStore(), transport=one) as ones,
        fleet([HEAD] * 2, MemoryStore(), transport=other) as others,
    ):
        usages = await ask_all([*ones, *others])
    assert [writers(usages[:2]), writers(usages[2:])] == [1, 1]


async def test_different_heads_do_not_wait_for_each_other() -> None:
    store, wire = MemoryStore(), Harbour(None)
    async with fleet([HEAD, f"Otherwise: {HEAD}"], store, transport=wire) as (held, other):
        first = asyncio.ensure_future(held.send("Is the harbour open?"))
        await wire.arrived.wait()
        assert (await other.send("And here?")).usage.cache_write > 1_000
        wire.open.set()
        await first
    assert len(waits(store)) == 2


async def test_parameters_that_the_cache_depends_on_part_the_ways() -> None:
    wire = Harbour(None)
    async with (
        fleet([HEAD], MemoryStore(), transport=wire) as (held,),
        fleet([HEAD], MemoryStore(), transport=wire, thinking={"type": "adaptive"}) as (other,),
        fleet([HEAD], MemoryStore(), transport=wire, output_tokens_max=9, stop_sequences=["."]) as (alike,),
    ):
        first = asyncio.ensure_future(held.send("Is the harbour open?"))
        await wire.arrived.wait()
        assert (await other.send("And here?")).usage.cache_write > 1_000
        second = asyncio.ensure_future(alike.send("And there?"))
        await wait_until_settled()
        assert not second.done()
        wire.open.set()
        await first
        assert (await second).usage.cache_read > 1_000


async def test_a_head_below_the_floor_is_never_waited_for() -> None:
    store, wire = MemoryStore(), Harbour(None)
    assert find_model(MODEL_WITH_A_HIGH_FLOOR).cache.tokens_min == 4_096
    async with fleet([HEAD[:8_000]] * 2, store, transport=wire, padding="never", model=MODEL_WITH_A_HIGH_FLOOR) as (
        held,
        other,
    ):
        first = asyncio.ensure_future(held.send("Is the harbour open?"))
        await wire.arrived.wait()
        await other.send("And here?")
        assert not first.done()
        wire.open.set()
        await first
    assert waits(store) == [0.0, 0.0]


async def test_where_the_first_one_fails_one_other_takes_its_place() -> None:
    wire = Harbour(ProviderError("auth", "no such key", status=401))
    async with fleet([HEAD] * 4, MemoryStore(), transport=wire) as sessions:
        turns = [asyncio.ensure_future(session.send("Is the harbour open?")) for session in sessions]
        await wait_until_settled()
        assert wire.sent == 1
        wire.open.set()
        failure, *answers = await asyncio.gather(*turns, return_exceptions=True)
    assert isinstance(failure, ProviderError)
    usages = [answer.usage for answer in answers if not isinstance(answer, BaseException)]
    assert (writers(usages), readers(usages)) == (1, 2)


async def test_where_the_first_one_is_cancelled_one_other_takes_its_place() -> None:
    wire = Harbour(None)
    async with fleet([HEAD] * 3, MemoryStore(), transport=wire) as sessions:
        first, *others = [asyncio.ensure_future(session.send("Is the harbour open?")) for session in sessions]
        await wait_until_settled()
        assert wire.sent == 1
        first.cancel()
        usages = [answer.usage for answer in await asyncio.gather(*others)]
        assert first.cancelled()
    assert (writers(usages), readers(usages)) == (1, 1)


async def test_one_that_is_cancelled_while_it_waits_leaves_a_closed_turn_and_no_call() -> None:
    store, wire = MemoryStore(), Harbour(None)
    async with fleet([HEAD] * 3, store, transport=wire) as (held, cancelled, patient):
        first = asyncio.ensure_future(held.send("Is the harbour open?"))
        await wire.arrived.wait()
        second, third = (asyncio.ensure_future(one.send("And here?")) for one in (cancelled, patient))
        await wait_until_settled()
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        wire.open.set()
        await first
        assert (await third).usage.cache_read > 1_000
        payloads = [event.payload for event in store.read(cancelled.id)]
    assert isinstance(payloads[-1], TurnCancelled)
    assert not any(isinstance(one, LlmCallStarted | LlmCallCompleted | LlmCallFailed) for one in payloads)


async def test_nobody_waits_longer_than_the_limit() -> None:
    store, wire = MemoryStore(), Harbour(None)
    async with fleet([HEAD] * 3, store, transport=wire, single_flight=SingleFlight(wait_seconds_max=0.05)) as (
        held,
        *others,
    ):
        first = asyncio.ensure_future(held.send("Is the harbour open?"))
        await wire.arrived.wait()
        usages = await ask_all(others)
        assert not first.done()
        wire.open.set()
        await first
    # They do not begin at once: what the first of them has written the second may just find.
    assert writers(usages) >= 1
    assert sorted(seconds >= 0.04 for seconds in waits(store)) == [False, True, True]


@pytest.mark.parametrize(("pause_seconds", "sent"), [(299, 3), (301, 2)])
async def test_what_was_written_within_its_lifetime_is_not_waited_for(pause_seconds: int, sent: int) -> None:
    wire, clock = Harbour(), ManualClock()
    async with fleet([HEAD] * 3, MemoryStore(), transport=wire, clock=clock) as (early, *late):
        await early.send("Is the harbour open?")
        clock.advance(pause_seconds)
        wire.hold(2)
        turns = [asyncio.ensure_future(session.send("And now?")) for session in late]
        await wait_until_settled()
        assert wire.sent == sent
        wire.open.set()
        await asyncio.gather(*turns)


async def test_a_question_that_several_ask_is_not_waited_for_unless_it_is_long() -> None:
    for question, sent in (("And now?", 3), ("And now? " * 300, 2)):
        wire = Harbour()
        async with fleet([HEAD] * 3, MemoryStore(), transport=wire) as (early, *late):
            await early.send("Is the harbour open?")
            wire.hold(2)
            turns = [asyncio.ensure_future(session.send(question)) for session in late]
            await wait_until_settled()
            assert wire.sent == sent
            wire.open.set()
            await asyncio.gather(*turns)


async def test_a_conversation_by_itself_never_waits() -> None:
    store = MemoryStore()
    gate = SingleFlight()
    async with fleet([HEAD], store, transport=SimulatedProvider(), single_flight=gate) as (session,):
        for number in range(5):
            await session.send(f"Question {number}?")
    assert waits(store) == [0.0] * 5
    assert gate.key_count == 6


async def test_a_session_that_was_given_another_wire_waits_for_those_on_that_one() -> None:
    wire = Harbour(None)
    async with (
        fleet([HEAD], MemoryStore(), transport=Harbour(), model="anthropic:claude-opus-5-5") as (session,),
        fleet([HEAD], MemoryStore(), transport=wire) as (held,),
    ):
        await session.switch_model(MODEL, transport=wire)
        first = asyncio.ensure_future(held.send("Is the harbour open?"))
        await wire.arrived.wait()
        second = asyncio.ensure_future(session.send("And here?"))
        await wait_until_settled()
        assert wire.sent == 1
        wire.open.set()
        await first
        assert (await second).usage.cache_read > 1_000


@pytest.mark.parametrize("switched", ["anthropic:claude-opus-5-5", "openai:gpt-6-luna"])
async def test_a_session_that_has_switched_waits_for_those_of_its_new_model(switched: str) -> None:
    provider = SimulatedProvider(script=SLOW)
    async with (
        fleet([HEAD], MemoryStore(), transport=provider) as (session,),
        fleet([HEAD], MemoryStore(), transport=provider, model=switched) as (other,),
    ):
        await session.switch_model(switched)
        usages = await ask_all([session, other])
    # OpenAI keeps each session's cache under a key of its own: there is nothing to wait for.
    assert writers(usages) == (1 if switched.startswith("anthropic") else 2)
