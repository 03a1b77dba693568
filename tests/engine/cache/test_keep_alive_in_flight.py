"""A ping in flight while something else happens: a turn, a model switch, the end of the session, a failure."""

import asyncio
import logging
from collections.abc import AsyncGenerator

import pytest
from tests.support.idle_sessions import IdleSession

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
    def __init__(self, blocking: BlockingProvider, provider: Provider) -> None:
        super().__init__(blocking, provider)
        self._blocking = blocking

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        blocking = self._blocking
        if b'"max_tokens":0' in body:
            blocking.arrived.set()
            await blocking.open.wait()
            if blocking.failure is not None and on_retry is not None:
                # As the network does before it retries.
                on_retry(1, blocking.failure)
        async for chunk in super().send(endpoint, body, on_retry=on_retry):
            yield chunk


class BlockedIdleSession(IdleSession):
    def __init__(self) -> None:
        super().__init__(kind=BlockingProvider)
        assert isinstance(self.provider, BlockingProvider)
        self.blocking = self.provider
        self.blocking.open, self.blocking.arrived = asyncio.Event(), asyncio.Event()

    async def until_pinging(self, session: Session) -> None:
        for _ in range(8):
            await self.say(session, 1200.0)
            if self.blocking.arrived.is_set():
                return
        pytest.fail("nothing was pinged")

    def release_pings(self) -> None:
        self.blocking.open.set()

    def state(self, session: Session) -> SessionState:
        return fold_events(self.store.read(session.id), session.id)


def keep_alive_tasks() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if "SessionKeepAlive" in str(task.get_coro())}


async def test_a_turn_runs_beside_a_ping_and_the_ping_is_accounted_when_it_ends() -> None:
    idle = BlockedIdleSession()
    async with Session.create(**idle.created) as session:
        await idle.until_pinging(session)
        await session.send("I am back.")
        cache_memory_before = idle.state(session).cache_memory
        idle.release_pings()
        await idle.pause(10)
        after = idle.state(session)
    (ping,) = idle.pings
    assert after.cache_memory == cache_memory_before
    assert after.pinged_usd == ping.cost_usd > 0
    assert after.cost_usd == session.cost


async def test_a_ping_that_a_turn_overtook_does_not_outlive_the_session() -> None:
    idle = BlockedIdleSession()
    async with Session.create(**idle.created) as session:
        await idle.until_pinging(session)
        await session.send("I am back.")
        asyncio.get_running_loop().call_later(0.01, idle.release_pings)
    assert keep_alive_tasks() == set()
    assert len(idle.pings) == 1


async def test_closing_waits_briefly_for_a_ping_in_flight() -> None:
    idle = BlockedIdleSession()
    async with Session.create(**idle.created) as session:
        await idle.until_pinging(session)
        asyncio.get_running_loop().call_later(0.01, idle.release_pings)
    assert len(idle.pings) == 1
    assert session.cost == idle.state(session).cost_usd


async def test_closing_waits_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_alive, "CLOSE_WAIT_SECONDS_MAX", 0.01)
    idle = BlockedIdleSession()
    async with asyncio.timeout(5), Session.create(**idle.created) as session:
        await idle.until_pinging(session)
    assert keep_alive_tasks() == set()
    assert idle.pings == []


async def test_later_calls_cancel_the_planned_ping_while_an_older_one_is_in_flight() -> None:
    idle = BlockedIdleSession()
    async with Session.create(**idle.created) as session:
        await idle.until_pinging(session)
        await idle.say(session, 10.0, 10.0, 10.0)
        assert len(keep_alive_tasks()) == 2


async def test_a_new_turn_cancels_the_planned_ping() -> None:
    idle = IdleSession()
    cancellations: list[list[int]] = []

    def listen(event: Event) -> None:
        if isinstance(event.payload, TurnStarted):
            cancellations.append([task.cancelling() for task in keep_alive_tasks()])

    async with Session.create(**idle.created) as session:
        await idle.say(session, 10.0)
        session.subscribe(listen)
        await session.send("I am back.")
    assert cancellations == [[1]]


async def test_a_ping_for_the_previous_model_does_not_change_the_cache_memory_of_the_next() -> None:
    idle = BlockedIdleSession()
    async with Session.create(**idle.created) as session:
        await idle.until_pinging(session)
        await session.switch_model(OPUS)
        cache_memory_before = idle.state(session).cache_memory
        idle.release_pings()
        await idle.pause(10)
        after = idle.state(session)
        await session.send("And you?")
    (ping,) = idle.pings
    assert ping.model != after.model == OPUS
    assert after.cache_memory == cache_memory_before
    assert after.pinged_usd == ping.cost_usd
    price = price_at(idle.models[ping.model], utc_date(idle.clock.now), ping.usage.tokens_sent)
    assert ping.cost_usd == cost_usd(ping.usage, price)


async def test_a_failed_ping_is_not_retried() -> None:
    idle = BlockedIdleSession()
    idle.blocking.failure = ProviderError("server_error", "overloaded")
    idle.release_pings()
    async with Session.create(**idle.created) as session:
        await idle.say(session, *[1200.0] * 6)
        assert idle.blocking.arrived.is_set()
    assert idle.pings == []


async def test_a_ping_that_the_store_refuses_is_logged_once_and_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    idle = BlockedIdleSession()
    async with Session.create(**idle.created) as session:
        await idle.until_pinging(session)
        async with Session.resume(session.id, **idle.options) as other:
            await other.send("Here now.")
        with caplog.at_level(logging.WARNING):
            idle.release_pings()
            await idle.pause(10)
        assert keep_alive_tasks() == set()
    assert ["continued elsewhere" in record.message for record in caplog.records] == [True]


async def test_an_ended_session_is_not_kept_alive() -> None:
    idle = IdleSession()
    async with Session.create(**idle.created) as session:
        await idle.say(session, *[1200.0] * 4)
        await session.send("That was all.")
        await session.end()
        before = len(idle.pings)
        assert before
        await idle.pause(5_000)
        assert len(idle.pings) == before
    assert sum(isinstance(payload, LlmCallCompleted) for payload in idle.payloads) == 5
