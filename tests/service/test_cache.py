"""The cache of each session over HTTP: its state and its controls."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from benchmarks._call_histories import RecordedClient
from msgspec.structs import replace
from tests.support.event_examples import call_events, event, session_started_event
from tests.support.instruction_service import open_store_of_kind
from tests.support.served_service import Client, serve_store
from tests.support.simulated_gemini import LONG

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.events.payloads.cache import CacheControlsApplied
from holdfast.events.payloads.calls import GatewayForwarded
from holdfast.events.payloads.session import SessionStarted
from holdfast.ledger.cache.state import CacheState, fold_cache_state
from holdfast.runtime.session import Session
from holdfast.service.context import CacheStateStore
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import parse_script
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sql.events import Cell

START = 1_790_000_000.0
KEYS_OF_THE_SEED = {
    "discussion_id",
    "provider",
    "cached_at",
    "expires_at",
    "hit_count",
    "tokens_cached",
    "last_invalidated_at",
    "caching_enabled",
}


class CacheService:
    """A service and sessions that share a store and a clock."""

    def __init__(self, client: Client, store: MemoryStore, clock: ManualClock) -> None:
        self.client = client
        self.store = store
        self.clock = clock
        self.provider = SimulatedProvider(clock=clock)
        self._new_id = CountingIds()

    def session(self, model: str = "anthropic:claude-sonnet-5-5", name: str = "auth") -> Session:
        return Session.create(
            model=model,
            name=name,
            system_prompt=LONG,
            store=self.store,
            transport=self.provider,
            simulated=False,
            clock=self.clock,
            new_id=self._new_id,
        )


@pytest.fixture
def cache_service() -> Iterator[CacheService]:
    store, clock = MemoryStore(), ManualClock(START)
    with serve_store(store, clock=clock) as client:
        yield CacheService(client, store, clock)


async def test_cache_expiry_slides_with_each_use_and_ends(cache_service: CacheService) -> None:
    cache_service.client.request("PUT", "/api/cache/settings", {"ttl": "5m"})
    async with cache_service.session() as session:
        await session.send("One.")
        first = cache_service.client.get(f"/api/cache/{session.id}")
        assert first.keys() >= KEYS_OF_THE_SEED
        assert (first["provider"], first["name"], first["ttl"]) == ("anthropic", "auth", "5m")
        assert (first["cached"], first["hit_count"], first["calls"]) == (True, 0, 1)
        assert (first["cached_at"], first["expires_at"]) == ("2026-09-21T14:13:20Z", "2026-09-21T14:18:20Z")
        cache_service.clock.advance(200)
        await session.send("Two.")
        second = cache_service.client.get(f"/api/cache/{session.id}")
        assert (second["cached_at"], second["expires_at"]) == ("2026-09-21T14:13:20Z", "2026-09-21T14:21:40Z")
        assert second["hit_count"] == 1
        assert second["tokens_cached"] > first["tokens_cached"] > 4_000
        cache_service.clock.advance(299)
        assert cache_service.client.get(f"/api/cache/{session.id}")["cached"]
        cache_service.clock.advance(1)
        expired = cache_service.client.get(f"/api/cache/{session.id}")
        assert (expired["cached"], expired["tokens_cached"]) == (False, 0)
        await session.send("Three.")
        again = cache_service.client.get(f"/api/cache/{session.id}")
        assert (again["cached"], again["cached_at"]) == (True, "2026-09-21T14:21:40Z")


async def test_no_expiry_is_reported_where_the_provider_decides(cache_service: CacheService) -> None:
    async with cache_service.session("openai:gpt-5.4") as session:
        await session.send("One.")
        cache = cache_service.client.get(f"/api/cache/{session.id}")
    assert (cache["provider"], cache["cached"], cache["expires_at"]) == ("openai", True, None)
    (stats,) = cache_service.client.get("/api/cache")["providers"]
    assert stats["ttl_seconds"] is None


async def test_explicit_cache_is_reported_with_its_own_expiry(cache_service: CacheService) -> None:
    async with cache_service.session("gemini:gemini-3.8-flash") as session:
        for _ in range(3):
            await session.send("Again.")
            cache_service.clock.advance(600)
        cache = cache_service.client.get(f"/api/cache/{session.id}")
        assert cache["cached"]
        assert cache["expires_at"] == "2026-09-21T15:33:20Z"
        assert cache["explicit_ttl_seconds"] == 3600
        changed = cache_service.client.request("POST", f"/api/cache/{session.id}/invalidate").json
        assert changed["changed"] == ["prefix_nonce", "explicit_cache"]
    # A session that is closed deletes its cache.
    cache = cache_service.client.get(f"/api/cache/{session.id}")
    assert (cache["cached"], cache["explicit_ttl_seconds"]) == (False, None)


async def test_sessions_are_listed_newest_first_with_totals_by_provider(cache_service: CacheService) -> None:
    cache_service.client.request("PUT", "/api/cache/settings", {"ttl": "5m"})
    async with cache_service.session(name="one") as one, cache_service.session("openai:gpt-5.4", name="two") as two:
        await one.send("One.")
        await one.send("Two.")
        cache_service.clock.advance(100)
        await two.send("One.")
        listed = cache_service.client.get("/api/cache")
        assert [row["discussion_id"] for row in listed["discussions"]] == [two.id, one.id]
        anthropic, openai = listed["providers"]
        sent, read = one.usage.tokens_sent, one.usage.cache_read
        assert (anthropic["provider"], anthropic["tokens_in"], anthropic["tokens_cached"]) == ("anthropic", sent, read)
        assert anthropic["hit_share"] == read / sent > 0.4
        assert anthropic["ttl_seconds"] == 200
        assert (openai["provider"], openai["tokens_cached"]) == ("openai", 0)
        assert len(cache_service.client.get("/api/cache?limit=1")["discussions"]) == 1


async def test_caching_sessions_and_cost_list_the_same_sessions(cache_service: CacheService) -> None:
    async with cache_service.session(name="real") as real:
        await real.send("One.")
    simulated = RecordedClient(cache_service.store, simulated=True)
    simulated.send({"model": "claude-sonnet-5-5", "messages": [{"role": "user", "content": "So?"}]})
    for shows_simulated, names in ((False, {real.id}), (True, {real.id, simulated.recorder.session_id})):
        cache_service.client.service.is_simulating = shows_simulated
        assert {row["discussion_id"] for row in cache_service.client.get("/api/cache")["discussions"]} == names
        assert {row["id"] for row in cache_service.client.get("/analytics/sessions")["data"]} == names


def test_an_anthropic_card_has_a_ttl_even_if_nothing_is_cached(cache_service: CacheService) -> None:
    client = RecordedClient(cache_service.store)
    client.send({"model": "claude-sonnet-5-5", "messages": [{"role": "user", "content": "So?"}]})
    (card,) = cache_service.client.get("/api/cache")["providers"]
    assert (card["provider"], card["ttl_seconds"]) == ("anthropic", 0)


async def test_a_cache_whose_ttl_the_provider_keeps_to_itself_is_not_listed_for_ever(
    cache_service: CacheService,
) -> None:
    async with cache_service.session(model="gemini:gemini-3.8-flash") as session:
        await session.send("One.")
        await session.send("Two.")
    path = f"/api/cache/{session.id}"
    longest = max(shipped_models()["gemini:gemini-3.8-flash"].cache.ttls_seconds.values())
    cache_service.clock.advance(longest - 1)
    cached = cache_service.client.get(path)
    assert (cached["cached"], cached["expires_at"], cached["tokens_cached"] > 0) == (True, None, True)
    cache_service.clock.advance(2)
    gone = cache_service.client.get(path)
    assert (gone["cached"], gone["tokens_cached"], gone["invalidation_usd"]) == (False, 0, 0)


async def test_disable_and_enable_apply_to_one_session_from_its_next_call(cache_service: CacheService) -> None:
    async with cache_service.session() as session, cache_service.session() as other:
        await session.send("One.")
        await other.send("One.")
        response = cache_service.client.request("POST", f"/api/cache/{session.id}/disable")
        assert (response.status, response.json["caching_enabled"]) == (200, False)
        assert cache_service.client.get(f"/api/cache/{other.id}")["caching_enabled"]
        await session.send("Two.")
        assert b"cache_control" not in cache_service.provider.requests[-1].body
        assert not cache_service.client.get(f"/api/cache/{session.id}")["cached"]
        await other.send("Two.")
        assert b"cache_control" in cache_service.provider.requests[-1].body
        assert cache_service.client.request("POST", f"/api/cache/{session.id}/enable", {}).json["caching_enabled"]
        await session.send("Three.")
        assert b"cache_control" in cache_service.provider.requests[-1].body


@pytest.mark.parametrize(
    ("model", "changed"),
    [
        ("anthropic:claude-sonnet-5-5", ["prefix_nonce"]),
        ("openai:gpt-5.4", ["cache_key"]),
        ("openai-chat:gpt-5.4", ["cache_key"]),
        ("gemini:gemini-3.8-flash", ["prefix_nonce"]),
    ],
)
async def test_invalidate_reports_what_it_changes_and_the_next_call_applies_it(
    cache_service: CacheService, model: str, changed: list[str]
) -> None:
    async with cache_service.session(model) as session:
        await session.send("One.")
        cache_service.clock.advance(60)
        response = cache_service.client.request("POST", f"/api/cache/{session.id}/invalidate").json
        assert (response["changed"], response["generation"]) == (changed, 1)
        assert response["invalidated_at"] == "2026-09-21T14:14:20Z"
        assert response["effect"]
        await session.send("Two.")
        cache = cache_service.client.get(f"/api/cache/{session.id}")
        assert cache["last_invalidated_at"] == "2026-09-21T14:14:20Z"
        before, after = (request.body for request in cache_service.provider.requests if request.model)
        assert (b"[cache generation 1" in after) == ("prefix_nonce" in changed)
        assert (f'"{session.id}.1"'.encode() in after) == ("cache_key" in changed)
        assert b"cache generation" not in before
        assert cache_service.client.request("POST", f"/api/cache/{session.id}/invalidate").json["generation"] == 2


async def test_settings_are_stored_and_apply_to_all_sessions(cache_service: CacheService) -> None:
    first = cache_service.client.get("/api/cache/settings")
    assert first == {
        "providers": {},
        "ttl": "auto",
        "gemini_ttl_seconds": None,
        "allow_gemini_over_an_hour": False,
    }
    wanted = {**first, "providers": {"anthropic": False}, "gemini_ttl_seconds": 7200, "allow_gemini_over_an_hour": True}
    assert cache_service.client.request("PUT", "/api/cache/settings", wanted).json == wanted
    assert cache_service.client.get("/api/cache/settings") == wanted
    async with cache_service.session() as session:
        await session.send("One.")
        assert not cache_service.client.get(f"/api/cache/{session.id}")["caching_enabled"]
    assert b"cache_control" not in cache_service.provider.requests[-1].body
    assert cache_service.client.request("PUT", "/api/cache/settings", {"ttl": "1h"}).json == {**first, "ttl": "1h"}


async def test_controls_of_a_child_session_apply_to_its_parent_too(cache_service: CacheService) -> None:
    script = '{"content": [{"type": "tool_use", "name": "delegate", "input": {"task": "Look."}}]}\n{"content": "Ok."}'
    async with Session.create(
        model="anthropic:claude-sonnet-5-5",
        system_prompt=LONG,
        delegate=True,
        store=cache_service.store,
        transport=SimulatedProvider(clock=cache_service.clock, script=parse_script(script)),
        simulated=False,
        clock=cache_service.clock,
        new_id=CountingIds(),
    ) as session:
        await session.send("One.")
    child = next(row.id for row in cache_service.store.sessions() if row.parent_session_id == session.id)
    assert not cache_service.client.request("POST", f"/api/cache/{child}/disable").json["caching_enabled"]
    listed = cache_service.client.get("/api/cache")["discussions"]
    enabled = {row["discussion_id"]: row["caching_enabled"] for row in listed}
    assert (enabled[child], enabled[session.id]) == (False, False)


def test_invalidated_cache_is_not_listed_even_before_the_next_call() -> None:
    cached = CacheState("s", "anthropic:claude-sonnet-5-5", tokens_cached=9, cached_at=1.0, expires_at=99.0)
    invalidated = event("e1", CacheControlsApplied(reason="the cache was invalidated"))
    assert cached.is_cached(5.0)
    assert not fold_cache_state(cached, [invalidated], shipped_models()).is_cached(5.0)
    assert fold_cache_state(cached, [event("e1", CacheControlsApplied(ttl="1h"))], shipped_models()).is_cached(5.0)


async def test_model_removed_from_the_catalog_is_still_reported() -> None:
    store, clock = MemoryStore(), ManualClock(START)
    models = {name: row for name, row in shipped_models().items() if not name.startswith("anthropic:")}
    with serve_store(store, clock=clock, models=models) as client:
        async with CacheService(client, store, clock).session() as session:
            await session.send("One.")
        cache = client.get(f"/api/cache/{session.id}")
        assert (cache["model"], cache["cached"]) == ("anthropic:claude-sonnet-5-5", False)
        assert client.request("POST", f"/api/cache/{session.id}/invalidate").json["changed"] == []


@pytest.mark.parametrize(
    ("opened", "controllable"), [(None, "caching_only"), (GatewayForwarded("it is new", 1.0), "none")]
)
def test_controls_a_session_cannot_apply_are_refused(opened: GatewayForwarded | None, controllable: str) -> None:
    store = MemoryStore()
    started = SessionStarted("anthropic:claude-sonnet-5-5")
    store.append([event("e1", started, session="s"), *([event("e2", opened, session="s")] if opened else [])]).result(
        10
    )
    with serve_store(store) as client:
        assert client.get("/api/cache/s")["controllable"] == controllable
        response = {
            what: client.request("POST", f"/api/cache/s/{what}") for what in ("invalidate", "disable", "enable")
        }
    switched = 409 if opened else 200
    assert [one.status for one in response.values()] == [409, switched, switched]
    assert response["invalidate"].code == "not_controllable"
    assert store.records.controls("s").session.generation == 0
    assert (store.records.session_controls() == {}) == (opened is not None)


class CountingReader:
    """Passes queries on to the store's own reader, and counts them."""

    def __init__(self, store: DatabaseEventLog) -> None:
        self._reader, store._reads = store._reads, self
        self.statements = 0

    def fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        self.statements += 1
        return self._reader.fetch(query, parameters)

    def close(self) -> None:
        self._reader.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_states_of_many_sessions_are_read_with_as_many_statements_as_those_of_few(kind: str, tmp_path: Path) -> None:
    with open_store_of_kind(kind, tmp_path) as store:
        reader = CountingReader(store)

        def count(states: CacheStateStore, *, limit: int) -> int:
            before = reader.statements
            assert len(states.list_newest(limit=limit, simulated=True)) == limit
            return reader.statements - before

        for number in range(60):
            store.append([session_started_event(f"s{number}"), *call_events(6, f"s{number}")]).result(10)
        few, many = (CacheStateStore(store, shipped_models()) for _ in range(2))
        first = count(few, limit=5)
        assert count(many, limit=60) == first
        again = count(many, limit=60)
        assert again < first
        for number in range(60):
            store.append(call_events(6, f"s{number}", start=6)).result(10)
        # One more says where the sessions were read up to.
        assert count(many, limit=60) == first + 1
        assert count(many, limit=60) == again
        one_by_one = CacheStateStore(store, shipped_models())
        for cache in many.list_newest(limit=60, simulated=True):
            assert cache.state == one_by_one.get_state(cache.state.session_id)
            assert cache.state == fold_cache_state(
                CacheState(cache.state.session_id), store.read(cache.state.session_id), shipped_models()
            )


def test_states_of_more_events_than_are_held_in_memory_are_read_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.service.context.EVENTS_AT_ONCE", 20)
    with MemoryStore() as store:
        for number, calls in enumerate((2, 30, 6, 6, 6, 6)):
            store.append([session_started_event(f"s{number}"), *call_events(calls, f"s{number}")]).result(10)
        states = {
            cache.state.session_id: cache.state
            for cache in CacheStateStore(store, shipped_models()).list_newest(limit=10, simulated=True)
        }
        assert len(states) == 6
        for id, state in states.items():
            assert state == fold_cache_state(CacheState(id), store.read(id), shipped_models())


def test_a_session_that_was_deleted_and_created_again_has_the_state_of_its_new_log() -> None:
    with MemoryStore() as store:
        states = CacheStateStore(store, shipped_models())
        for number in range(3):
            store.append([session_started_event(f"s{number}"), *call_events(6, f"s{number}")]).result(10)
        states.list_newest(limit=10, simulated=True)
        store.delete("s1")
        again = [replace(one, id=f"again-{one.id}") for one in (session_started_event("s1"), *call_events(2, "s1"))]
        store.append(again).result(10)
        store.append(call_events(2, "s2", start=6)).result(10)
        for cache in states.list_newest(limit=10, simulated=True):
            id = cache.state.session_id
            assert cache.state == fold_cache_state(CacheState(id), store.read(id), shipped_models())
