"""The explicit cache of a Gemini session: created where it pays, used, extended, replaced, lost and deleted."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, Unpack

import pytest
from tests.support.agents import changed_prefixes
from tests.support.simulated_gemini import FLASH, LONG
from tests.support.simulated_openai import models_with

from holdfast.catalog.lookup import Models, find_model, price_at, utc_date
from holdfast.catalog.schema import Price
from holdfast.clock import Clock, CountingIds, ManualClock
from holdfast.economics.cost import storage_usd
from holdfast.engine.cache import explicit_cache
from holdfast.events.payloads.cache import ExplicitCacheChanged
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed
from holdfast.providers.adapter import Endpoint
from holdfast.providers.registry import get_provider
from holdfast.providers.wire_request import OnRetry
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.exchange import RecordedRequest, SimulatedResponse
from holdfast.simulator.provider import SimulatedProvider, SimulatedTransport
from holdfast.stores.memory import MemoryStore

MODEL = f"gemini:{FLASH}"
OTHER = "gemini:gemini-3.6-flash"
PAUSE_SECONDS = 600.0
"""Longer than the provider's implicit cache retains a prefix."""


def read(path: str) -> str:
    """Reads a file."""
    return f"The text of {path}."


MakeProvider = Callable[..., SimulatedProvider]


class Play:
    """A simulator, a store and a clock that several sessions share."""

    def __init__(self, make_provider: MakeProvider = SimulatedProvider, **options: Unpack[Options]) -> None:
        self.clock = ManualClock(1_790_000_000.0)
        self.provider = make_provider(clock=self.clock)
        self.store = MemoryStore()
        self.new_id = CountingIds()
        self.options: Options = {"model": MODEL, "system_prompt": LONG, "tools": [read], **options}

    def session(self) -> Session:
        return Session.create(**self._shared(self.options))

    def resume(self, id: str, **options: Unpack[Options]) -> Session:
        return Session.resume(id, **self._shared({"tools": [read], **options}))

    def _shared(self, options: Options) -> Options:
        shared: Options = {"store": self.store, "transport": self.provider, "clock": self.clock, "new_id": self.new_id}
        return {**options, **shared}

    async def say(self, session: Session, *, times: int = 1, seconds: float = PAUSE_SECONDS) -> None:
        """Send questions, and advance the clock after each."""
        for number in range(times):
            await session.send(f"Question {number}.")
            self.clock.advance(seconds)

    @property
    def steps(self) -> list[ExplicitCacheChanged]:
        return [payload for payload in self.payloads() if isinstance(payload, ExplicitCacheChanged)]

    @property
    def actions(self) -> list[str]:
        return [step.action for step in self.steps]

    @property
    def completed(self) -> list[LlmCallCompleted]:
        return [payload for payload in self.payloads() if isinstance(payload, LlmCallCompleted)]

    def payloads(self) -> list[Any]:
        return [event.payload for row in self.store.sessions() for event in self.store.read(row.id)]

    def requests(self, path: str) -> list[RecordedRequest]:
        return [request for request in self.provider.requests if path in request.path]

    @property
    def calls(self) -> list[bytes]:
        """The bodies of all requests to a model."""
        return [request.body for request in self.requests(":streamGenerateContent")]

    @property
    def uses_explicit_cache(self) -> list[bool]:
        """For each call, whether it references an explicit cache."""
        return [b'"cachedContent":"' in body for body in self.calls]

    @property
    def cached_models(self) -> list[str]:
        """The models of the explicit caches that the provider holds now."""
        return [cache.model for cache in self.provider.explicit_caches]

    @property
    def cache_requests(self) -> list[tuple[str, int]]:
        return [(request.method, request.status) for request in self.requests("/cachedContents")]


# Creation


async def test_the_third_call_creates_a_cache_when_the_first_two_read_nothing() -> None:
    play = Play()
    async with play.session() as session:
        await play.say(session, times=4)
        assert play.uses_explicit_cache == [False, False, True, True]
        assert play.actions == ["created"]
        created_step = play.steps[0]
        assert [call.usage.cache_read for call in play.completed] == [0, 0, created_step.tokens, created_step.tokens]
        assert created_step.tokens > 4_096
        assert changed_prefixes(list(play.store.read(session.id))) == []


async def test_a_session_with_one_call_an_hour_pays_for_no_storage() -> None:
    play = Play()
    async with play.session() as session:
        await play.say(session, times=10, seconds=3_000)
        cost = session.cost
    # The prefix is read at most 1.2 times an hour, and an hour of storage costs more than that saves.
    assert play.actions == []
    price = price_at(find_model(MODEL), utc_date(play.clock()), 10_000)
    price_of_tokens = sum(
        call.usage.tokens_sent * price.input + call.usage.output * price.output for call in play.completed
    )
    assert cost == price_of_tokens / 1_000_000


async def test_a_session_that_would_read_its_history_from_the_implicit_cache_gives_its_cache_up() -> None:
    async def play(*, ttl_seconds: int) -> tuple[list[str], Decimal]:
        play = Play(cache_ttl_seconds=ttl_seconds)
        async with play.session() as session:
            await play.say(session, times=3)
            await session.send(LONG * 4)
            await play.say(session, times=8, seconds=20)
            return play.actions, session.cost

    actions, cost = await play(ttl_seconds=3_600)
    assert actions == ["created", "deleted"]
    # It costs a creation and two calls more than the session without. With the cache in every call it was 3.3 times.
    _, cost_without = await play(ttl_seconds=0)
    assert cost < cost_without * Decimal("1.7")


async def test_no_cache_is_created_when_calls_read_the_implicit_cache() -> None:
    play = Play()
    async with play.session() as session:
        await play.say(session, times=6, seconds=10)
    assert (play.actions, play.cache_requests) == ([], [])
    assert all(call.usage.cache_read > 4_096 for call in play.completed[1:])


async def test_the_seed_profile_creates_a_cache_on_the_first_call_at_any_cost() -> None:
    play = Play(profile="seed")
    async with play.session() as session:
        await play.say(session, times=2)
    assert play.uses_explicit_cache == [True, True]
    assert play.actions == ["created", "deleted"]


async def test_a_request_with_an_explicit_cache_is_the_full_request_without_its_stable_prefix() -> None:
    bodies = []
    for seconds in (3600, 0):
        play = Play(cache_ttl_seconds=seconds)
        async with play.session() as session:
            await play.say(session, times=3)
        bodies.append(play.calls[2])
        if seconds:
            created = play.requests("/cachedContents")[0].body
    short_body, full_body = bodies
    for name in (b'"systemInstruction"', b'"tools"', b'"toolConfig"'):
        assert name not in short_body
    short_head, _, short_contents = short_body.partition(b',"contents":')
    full_head, _, full_contents = full_body.partition(b',"contents":')
    assert short_contents == full_contents
    settings, cache = short_head.split(b',"cachedContent":')
    assert cache == b'"cachedContents/sim-000001"'
    assert full_head.startswith(settings)
    prefix = full_head.removeprefix(settings)
    assert prefix.startswith(b',"tools":[')
    assert created == b'{"model":"models/gemini-3.8-flash","ttl":"3600s"' + prefix + b"}"


async def test_a_tool_loop_uses_the_explicit_cache() -> None:
    script = '{"content": [{"type": "tool_use", "name": "read", "input": {"path": "a"}}]}\n{"content": "Done."}'
    play = Play(partial(SimulatedProvider, script=script), profile="seed")
    async with play.session() as session:
        assert (await session.send("Look.")).text == "Done."
    assert play.uses_explicit_cache == [True, True]


async def test_nothing_on_the_wire_mentions_explicit_caches_when_they_are_disabled() -> None:
    for profile in ("default", "seed"):
        play = Play(cache_ttl_seconds=0, profile=profile)
        async with play.session() as session:
            await play.say(session, times=4)
        assert (play.cache_requests, any(play.uses_explicit_cache), play.actions) == ([], False, [])


async def test_no_cache_is_created_for_a_system_prompt_that_changes_every_turn() -> None:
    play = Play(profile="seed", system_prompt_volatile="It is Monday.")
    async with play.session() as session:
        await play.say(session, times=3)
    assert (play.cache_requests, any(play.uses_explicit_cache)) == ([], False)


async def test_a_cache_is_deleted_when_the_system_prompt_starts_to_change() -> None:
    texts = iter(["", "It is Tuesday."])
    play = Play(profile="seed", system_prompt_volatile=lambda: next(texts))
    async with play.session() as session:
        await play.say(session, times=2)
        assert play.uses_explicit_cache == [True, False]
        assert play.actions == ["created", "deleted"]
        assert play.provider.explicit_caches == ()


async def test_no_cache_is_created_for_an_unsupported_model_or_a_short_prompt() -> None:
    short = Play(system_prompt="Be brief.", profile="seed", padding="never")
    for play in (Play(model="gemini:gemini-4-argon", profile="seed"), short):
        async with play.session() as session:
            await play.say(session)
        assert (play.cache_requests, play.uses_explicit_cache) == ([], [False])


# Extension, replacement, deletion


async def test_a_cache_is_extended_when_less_than_a_quarter_of_its_ttl_is_left() -> None:
    play = Play(profile="seed")
    async with play.session() as session:
        await play.say(session, seconds=2_700)
        await play.say(session, seconds=1)
        assert play.actions == ["created"]
        await play.say(session)
        assert play.actions == ["created", "extended"]
        assert play.steps[1].expires_at == play.steps[0].expires_at + 2_701
        assert play.provider.explicit_caches[0].expires_at == play.steps[1].expires_at
    assert play.cache_requests == [("POST", 200), ("PATCH", 200), ("DELETE", 200)]


async def test_an_expired_cache_is_created_again() -> None:
    play = Play(profile="seed")
    async with play.session() as session:
        await play.say(session, seconds=3_600)
        await play.say(session)
    assert play.actions == ["created", "created", "deleted"]
    assert play.cache_requests == [("POST", 200), ("POST", 200), ("DELETE", 200)]


async def test_a_model_switch_deletes_the_old_models_cache_and_creates_a_new_one() -> None:
    play = Play()
    async with play.session() as session:
        await play.say(session, times=3)
        await session.switch_model(OTHER)
        assert play.cached_models == []
        await play.say(session)
        assert play.uses_explicit_cache == [False, False, True, True]
        assert [(step.action, step.model) for step in play.steps] == [
            ("created", MODEL),
            ("deleted", MODEL),
            ("created", OTHER),
        ]
        assert play.cached_models == ["gemini-3.6-flash"]


@pytest.mark.parametrize("ends", [True, False])
async def test_a_cache_is_deleted_once_when_the_session_ends_or_closes(ends: bool) -> None:
    play = Play(profile="seed")
    async with play.session() as session:
        await play.say(session)
        if ends:
            await session.end()
            assert play.provider.explicit_caches == ()
    assert play.provider.explicit_caches == ()
    assert play.cache_requests == [("POST", 200), ("DELETE", 200)]
    assert play.steps[-1].reason == ("the session is over" if ends else "the session is closed")


async def test_an_expired_cache_is_not_deleted() -> None:
    play = Play(profile="seed")
    async with play.session() as session:
        await play.say(session, seconds=3_600)
    assert play.cache_requests == [("POST", 200)]


async def test_a_session_resumed_elsewhere_uses_the_existing_cache() -> None:
    play = Play()
    left = await play.session().__aenter__()
    await play.say(left, times=3)
    async with play.resume(left.id) as session:
        await play.say(session)
    assert play.uses_explicit_cache == [False, False, True, True]
    assert play.actions == ["created", "deleted"]


async def test_a_session_resumed_without_explicit_caches_deletes_the_existing_one() -> None:
    play = Play()
    left = await play.session().__aenter__()
    await play.say(left, times=3)
    async with play.resume(left.id, cache_ttl_seconds=0) as session:
        await play.say(session)
        assert play.uses_explicit_cache == [False, False, True, False]
        assert play.actions == ["created", "deleted"]
        assert play.cached_models == []


async def test_a_session_resumed_after_closing_creates_its_cache_again() -> None:
    play = Play()
    async with play.session() as session:
        await play.say(session, times=3)
    async with play.resume(session.id) as again:
        await play.say(again)
    assert play.uses_explicit_cache == [False, False, True, True]
    assert play.actions == ["created", "deleted", "created", "deleted"]


# Lost and refused caches


async def test_a_cache_deleted_by_someone_else_costs_one_failed_request() -> None:
    play = Play(profile="seed")
    async with play.session() as session:
        await play.say(session)
        _delete_cache_externally(play)
        assert (await session.send("Still there?")).text == "Echo: Still there?"
        assert play.uses_explicit_cache == [True, True, False]
        assert [request.status for request in play.requests(":streamGenerateContent")] == [200, 403, 200]
        assert play.actions == ["created", "lost"]
        assert play.steps[1].reason == "CachedContent not found (or permission denied)"
        await play.say(session)
        assert play.uses_explicit_cache == [True, True, False, True]
        assert play.actions == ["created", "lost", "created"]
    failed = [event for event in play.payloads() if isinstance(event, LlmCallFailed)]
    assert [event.error_class for event in failed] == ["auth"]


async def test_a_cache_that_is_missing_when_it_is_extended_is_recorded_as_lost() -> None:
    play = Play(profile="seed")
    async with play.session() as session:
        await play.say(session, seconds=3_000)
        _delete_cache_externally(play)
        await play.say(session)
        assert play.actions == ["created", "lost"]
    assert play.uses_explicit_cache == [True, False]
    assert play.cache_requests[-1] == ("PATCH", 403)


async def test_a_cache_that_is_missing_when_it_is_deleted_is_recorded_as_deleted() -> None:
    play = Play(profile="seed")
    async with play.session() as session:
        await play.say(session)
        _delete_cache_externally(play)
    assert play.actions == ["created", "deleted"]
    assert play.steps[1].reason.startswith("the session is closed; deleting it failed: CachedContent not found")


def _delete_cache_externally(play: Play) -> None:
    name = play.provider.explicit_caches[0].name
    headers = {"x-goog-api-key": "simulated"}
    assert play.provider.handle("DELETE", f"/v1/{name}", headers=headers).status == 200


async def test_a_refused_cache_is_recorded_and_not_requested_again() -> None:
    high_minimum = models_with(MODEL, explicit_tokens_min=1_000_000)
    play = Play(partial(SimulatedProvider, models=high_minimum), profile="seed")
    async with play.session() as session:
        await play.say(session, times=3)
        assert play.cache_requests == [("POST", 400)]
        assert play.uses_explicit_cache == [False, False, False]
        assert play.actions == ["refused"]
        assert play.steps[0].reason.startswith("Cached content is too small. total_token_count=")
        assert session.cost == sum(call.cost_usd for call in play.completed)
        await session.switch_model(OTHER)
        await play.say(session)
        assert play.actions == ["refused", "created"]


class FailingProvider(SimulatedProvider):
    """Fails requests of one method to one kind of path, a given number of times."""

    def __init__(self, fault: str, method: str, path: str, *, times: int = 1000, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._fault, self._method, self._path, self._times = fault, method, path, times

    def handle(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = {},
        body: bytes = b"",
        query: Mapping[str, str] = {},
    ) -> SimulatedResponse:
        fails = method == self._method and self._path in path and self._times > 0
        if fails and (self._path != ":streamGenerateContent" or b"cachedContent" in body):
            self._times -= 1
            headers = {**headers, "x-holdfast-fault": self._fault}
        return super().handle(method, path, headers=headers, body=body, query=query)


async def test_a_reference_that_is_refused_for_any_reason_is_left_out_of_the_retry() -> None:
    play = Play(partial(FailingProvider, "400", "POST", ":streamGenerateContent", times=1), profile="seed")
    async with play.session() as session:
        assert (await session.send("Hello.")).text == "Echo: Hello."
        assert play.uses_explicit_cache == [True, False]
        assert play.actions == ["created", "lost"]


async def test_a_cache_that_could_not_be_created_is_created_later() -> None:
    play = Play(partial(FailingProvider, "429", "POST", "/cachedContents", times=3), profile="seed")
    async with play.session() as session:
        await play.say(session, times=2, seconds=10)
        assert play.uses_explicit_cache == [False, True]
        assert play.actions == ["created"]


async def test_closing_does_not_wait_long_for_a_cache_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explicit_cache, "DELETE_SECONDS_MAX", 0.05)
    play = Play(ProviderHangingOnDelete, profile="seed")
    async with asyncio.timeout(5):
        async with play.session() as session:
            await play.say(session)
    assert play.actions == ["created"]


class ProviderHangingOnDelete(SimulatedProvider):
    """Never answers a DELETE request."""

    def create_transport(self, models: Models | None = None, *, provider: str = "gemini") -> SimulatedTransport:
        return TransportHangingOnDelete(self, get_provider(provider))


class TransportHangingOnDelete(SimulatedTransport):
    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        if endpoint.method == "DELETE":
            await asyncio.Event().wait()
        async for chunk in super().send(endpoint, body, on_retry=on_retry):
            yield chunk


async def test_a_cache_that_could_not_be_extended_is_used_and_extended_later() -> None:
    play = Play(partial(FailingProvider, "400", "PATCH", "/cachedContents"), profile="seed")
    async with play.session() as session:
        await play.say(session, seconds=3_000)
        await play.say(session, times=2, seconds=10)
        assert play.uses_explicit_cache == [True, True, True]
        assert play.cache_requests == [("POST", 200), ("PATCH", 400), ("PATCH", 400)]
        assert play.actions == ["created"]


# Cost


@pytest.mark.parametrize("lost", [True, False])
async def test_the_cost_of_a_session_is_its_calls_cache_writes_and_cache_storage(lost: bool) -> None:
    play = Play(profile="seed")
    async with play.session() as session:
        await play.say(session, seconds=3_000)
        await play.say(session, seconds=500)
        if lost:
            _delete_cache_externally(play)
            await play.say(session, seconds=0)
            assert play.actions == ["created", "extended", "lost"]
    price, tokens = _price(play), play.steps[0].tokens
    creation_usd = tokens * price.input / Decimal(1_000_000)
    assert play.actions == ["created", "extended", "lost" if lost else "deleted"]
    assert [step.storage_cost_usd > 0 for step in play.steps] == [True, True, False]
    assert sum(step.cost_usd for step in play.steps) == creation_usd
    storage = session.cost - sum(call.cost_usd for call in play.completed) - creation_usd
    assert round(storage, 12) == round(storage_usd(tokens, 3_500, price), 12) > 0


async def test_no_cache_is_created_that_would_leave_too_little_budget_for_the_call() -> None:
    play = Play(profile="seed", output_tokens_max=1_000)
    async with play.session() as session:
        await play.say(session)
    tokens, price = play.steps[0].tokens, _price(play)
    cache = tokens * price.input / Decimal(1_000_000) + storage_usd(tokens, 3_600, price)
    call = (Decimal("1.25") * tokens * price.input + 1_000 * price.output) / Decimal(1_000_000)
    assert cache < call
    for limit, uses_explicit_cache in ((call, False), (call + cache, True)):
        limited = Play(profile="seed", output_tokens_max=1_000, spend_max_usd=limit)
        async with limited.session() as session:
            await limited.say(session)
        assert limited.uses_explicit_cache == [uses_explicit_cache]
        assert session.cost <= limit


def _price(play: Play) -> Price:
    return price_at(find_model(MODEL), utc_date(play.clock()), 10_000)
