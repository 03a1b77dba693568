"""A ping in flight while something else happens: a turn, a model switch, the end of the session, a failure."""

import asyncio
import logging
from collections.abc import AsyncGenerator

import pytest
from tests.support.idle_nights import Night

from holdfast.catalog.lookup import Models, price_at, utc_date
from holdfast.economics.cost import cost_usd
from holdfast.engine.cache import keep_alive
from holdfast.engine.reducer import fold_events
from holdfast.engine.state import SessionState
from holdfast.errors import ProviderError
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted
from holdfast.events.payloads.session import TurnStarted
from holdfast.providers.adapter import Endpoint
from holdfast.providers.registry import Provider, get_provider
from holdfast.providers.wire_request import OnRetry
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider, SimulatedTransport

OPUS = "anthropic:claude-opus-5-5"


class BlockingProvider(SimulatedProvider):
    """Blocks the responses to pings until `open` is set, then fails them if `failure` is set."""

    open: asyncio.Event
    arrived: asyncio.Event
    failure: ProviderError | None = None

    def create_transport(self, models: Models | None = None, *, provider: str = "anthropic") -> SimulatedTransport:
        return BlockingTransport(self, get_provider(provider))


class BlockingTransport(SimulatedTransport):
    def __init__(self, provider_to_block: BlockingProvider, provider: Provider) -> None:
        super().__init__(provider_to_block, provider)
        self._harbour = provider_to_block

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        harbour = self._harbour
        if b'"max_tokens":0' in body:
            harbour.arrived.set()
            await harbour.open.wait()
            if harbour.failure is not None and on_retry is not None:
                # As the network does before it retries.
                on_retry(1, harbour.failure)
        async for chunk in super().send(endpoint, body, on_retry=on_retry):
            yield chunk


class BlockedNight(Night):
    def __init__(self) -> None:
        super().__init__(kind=BlockingProvider)
        assert isinstance(self.provider, BlockingProvider)
        self.harbour = self.provider
        self.harbour.open, self.harbour.arrived = asyncio.Event(), asyncio.Event()

    async def until_pinging(self, session: Session) -> None:
        for _ in range(8):
            await self.say(session, 1200.0)
            if self.harbour.arrived.is_set():
                return
        pytest.fail("nothing was pinged")

    def release_pings(self) -> None:
        self.harbour.open.set()

    def state(self, session: Session) -> SessionState:
        return fold_events(self.store.read(session.id), session.id)


def keep_alive_tasks() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if "SessionKeepAlive" in str(task.get_coro())}


async def test_a_turn_runs_beside_a_ping_and_the_ping_is_accounted_when_it_ends() -> None:
    night = BlockedNight()
    async with Session.create(**night.created) as session:
        await night.until_pinging(session)
        await session.send("I am back.")
        cache_memory_before = night.state(session).cache_memory
        night.release_pings()
        await night.pause(10)
        after = night.state(session)
    (ping,) = night.pings
    assert after.cache_memory == cache_memory_before
    assert after.pinged_usd == ping.cost_usd > 0
    assert after.cost_usd == session.cost


async def test_a_ping_that_a_turn_overtook_does_not_outlive_the_session() -> None:
    night = BlockedNight()
    async with Session.create(**night.created) as session:
        await night.until_pinging(session)
        await session.send("I am back.")
        asyncio.get_running_loop().call_later(0.01, night.release_pings)
    assert keep_alive_tasks() == set()
    assert len(night.pings) == 1


async def test_closing_waits_briefly_for_a_ping_in_flight() -> None:
    night = BlockedNight()
    async with Session.create(**night.created) as session:
        await night.until_pinging(session)
        asyncio.get_running_loop().call_later(0.01, night.release_pings)
    assert len(night.pings) == 1
    assert session.cost == night.state(session).cost_usd


async def test_closing_waits_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_alive, "CLOSE_WAIT_SECONDS_MAX", 0.01)
    night = BlockedNight()
    async with asyncio.timeout(5), Session.create(**night.created) as session:
        await night.until_pinging(session)
    assert keep_alive_tasks() == set()
    assert night.pings == []


async def test_later_calls_cancel_the_planned_ping_while_an_older_one_is_in_flight() -> None:
    night = BlockedNight()
    async with Session.create(**night.created) as session:
        await night.until_pinging(session)
        await night.say(session, 10.0, 10.0, 10.0)
        assert len(keep_alive_tasks()) == 2


async def test_a_new_turn_cancels_the_planned_ping() -> None:
    night = Night()
    cancellations: list[list[int]] = []

    def listen(event: Event) -> None:
        if isinstance(event.payload, TurnStarted):
            cancellations.append([task.cancelling() for task in keep_alive_tasks()])

    async with Session.create(**night.created) as session:
        await night.say(session, 10.0)
        session.subscribe(listen)
        await session.send("I am back.")
    assert cancellations == [[1]]


async def test_a_ping_for_the_previous_model_does_not_change_the_cache_memory_of_the_next() -> None:
    night = BlockedNight()
    async with Session.create(**night.created) as session:
        await night.until_pinging(session)
        await session.switch_model(OPUS)
        cache_memory_before = night.state(session).cache_memory
        night.release_pings()
        await night.pause(10)
        after = night.state(session)
        await session.send("And you?")
    (ping,) = night.pings
    assert ping.model != after.model == OPUS
    assert after.cache_memory == cache_memory_before
    assert after.pinged_usd == ping.cost_usd
    price = price_at(night.models[ping.model], utc_date(night.clock.now), ping.usage.tokens_sent)
    assert ping.cost_usd == cost_usd(ping.usage, price)


async def test_a_failed_ping_is_not_retried() -> None:
    night = BlockedNight()
    night.harbour.failure = ProviderError("server_error", "overloaded")
    night.release_pings()
    async with Session.create(**night.created) as session:
        await night.say(session, *[1200.0] * 6)
        assert night.harbour.arrived.is_set()
    assert night.pings == []


async def test_a_ping_that_the_store_refuses_is_logged_once_and_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    night = BlockedNight()
    async with Session.create(**night.created) as session:
        await night.until_pinging(session)
        async with Session.resume(session.id, **night.options) as other:
            await other.send("Here now.")
        with caplog.at_level(logging.WARNING):
            night.release_pings()
            await night.pause(10)
        assert keep_alive_tasks() == set()
    assert ["continued elsewhere" in record.message for record in caplog.records] == [True]


async def test_an_ended_session_is_not_kept_alive() -> None:
    night = Night()
    async with Session.create(**night.created) as session:
        await night.say(session, *[1200.0] * 4)
        await session.send("That was all.")
        await session.end()
        before = len(night.pings)
        assert before
        await night.pause(5_000)
        assert len(night.pings) == before
    assert sum(isinstance(it, LlmCallCompleted) for it in night.payloads) == 5
