"""Explicit caches of Gemini conversations behind a gateway: created where they pay, used, extended, lost, deleted."""

import http.client
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from google import genai
from google.genai import types
from msgspec.structs import replace
from tests.support.served_gateway import TIMEOUT_SECONDS, ServedGateway, serve_gateway
from tests.support.simulated_gemini import FLASH, LONG

from holdfast.catalog.lookup import Models, find_model, price_at, shipped_models, utc_date
from holdfast.clock import ManualClock
from holdfast.economics.cost import storage_usd
from holdfast.events.payloads.cache import CacheSettings, ExplicitCacheChanged
from holdfast.events.payloads.calls import GatewayForwarded, LlmCallCompleted
from holdfast.ledger.calls import explicit_cache_cost_usd, iter_calls
from holdfast.replay.audit import PriceLookup
from holdfast.replay.counterfactual import estimate_counterfactual
from holdfast.simulator.exchange import RecordedRequest
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.open import open_store
from holdfast.testing.server_thread import serve_provider

PAUSE_SECONDS = 600.0
"""Longer than the provider's implicit cache retains a prefix."""


class Play:
    """A gateway between clients and the simulator; calls are `PAUSE_SECONDS` apart."""

    def __init__(
        self, gateway: ServedGateway, provider: SimulatedProvider, clock: ManualClock, *, provider_url: str
    ) -> None:
        self.gateway, self.provider, self.clock = gateway, provider, clock
        self.provider_url = provider_url
        self.contents: list[dict[str, Any]] = []

    def ask(self, *, times: int = 1, seconds: float = PAUSE_SECONDS, **options: Any) -> None:
        for number in range(times):
            self.contents.append({"role": "user", "parts": [{"text": f"Question {number}."}]})
            status, reply = self.post({"contents": self.contents}, **options)
            assert status == 200, reply
            self.contents.append(reply["candidates"][0]["content"])
            self.clock.advance(seconds)

    def post(
        self,
        body: dict[str, Any],
        *,
        key: str = "key",
        model: str = FLASH,
        system: str = LONG,
        query: str = "",
        headers: dict[str, str] | None = None,
        url: str = "",
    ) -> tuple[int, Any]:
        """As curl would send it, with no header of an SDK."""
        whole = {"systemInstruction": {"parts": [{"text": system}]}, **body}
        connection = http.client.HTTPConnection(urlsplit(url or self.gateway.url).netloc, timeout=TIMEOUT_SECONDS)
        sent = {"content-type": "application/json", **({"x-goog-api-key": key} if key else {}), **(headers or {})}
        path = f"/gemini/v1beta/models/{model}:generateContent{query}"
        connection.request("POST", path, json.dumps(whole), sent)
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        return response.status, answer

    def requests(self, path: str) -> list[RecordedRequest]:
        return [request for request in self.provider.requests if path in request.path]

    @property
    def uses(self) -> list[bool]:
        """For each answered call, whether it refers to an explicit cache."""
        calls = [request for request in self.requests("enerateContent") if request.status == 200]
        return [b'"cachedContent":"' in request.body for request in calls]

    @property
    def cache_requests(self) -> list[tuple[str, int]]:
        return [(request.method, request.status) for request in self.requests("/cachedContents")]

    def payloads(self) -> list[Any]:
        ids = self.gateway.recorded_sessions()
        return [event.payload for id in ids for event in self.gateway.store.read(id)]

    @property
    def changes(self) -> list[ExplicitCacheChanged]:
        return [payload for payload in self.payloads() if isinstance(payload, ExplicitCacheChanged)]

    @property
    def actions(self) -> list[str]:
        return [change.action for change in self.changes]

    @property
    def reads(self) -> list[int]:
        return [payload.usage.cache_read for payload in self.payloads() if isinstance(payload, LlmCallCompleted)]


@contextmanager
def playing(*, store: DatabaseEventLog | None = None, models: Models | None = None, **options: Any) -> Iterator[Play]:
    clock = ManualClock(1_790_000_000.0)
    provider = SimulatedProvider(clock=clock, models=models)
    with (
        serve_provider(provider) as url,
        serve_gateway(url, store=store, clock=clock, **{"improve": True, **options}) as gateway,
    ):
        yield Play(gateway, provider, clock, provider_url=url)


@pytest.fixture
def play() -> Iterator[Play]:
    with playing() as played:
        yield played


def test_the_third_call_creates_a_cache_when_the_first_two_read_nothing(play: Play) -> None:
    play.ask(times=4)
    assert play.uses == [False, False, True, True]
    assert play.cache_requests == [("POST", 200)]
    # In the version of the API that the calls use.
    assert [request.path for request in play.requests("/cachedContents")] == ["/v1beta/cachedContents"]
    (created,) = play.changes
    assert (created.action, created.tokens > 4_096) == ("created", True)
    assert play.reads == [0, 0, created.tokens, created.tokens]


def test_the_official_client_gets_the_same_answers_with_a_cache_as_without() -> None:
    def chat(*, improve: bool) -> tuple[list[str], list[int], list[bool]]:
        with playing(improve=improve) as play:
            options = types.HttpOptions(base_url=f"{play.gateway.url}/gemini", timeout=int(TIMEOUT_SECONDS * 1000))
            with genai.Client(api_key="key", http_options=options) as client:
                config = types.GenerateContentConfig(system_instruction=LONG)
                conversation = client.chats.create(model=FLASH, config=config)
                texts, cached = [], []
                for number in range(4):
                    chunks = list(conversation.send_message_stream(f"Question {number}."))
                    texts.append("".join(chunk.text or "" for chunk in chunks))
                    usage = chunks[-1].usage_metadata
                    cached.append(usage.cached_content_token_count or 0 if usage else 0)
                    play.clock.advance(PAUSE_SECONDS)
            return texts, cached, play.uses

    plain, improved = chat(improve=False), chat(improve=True)
    assert improved[0] == plain[0]
    assert plain[1:] == ([0] * 4, [False] * 4)
    assert improved[2] == [False, False, True, True]
    assert [tokens > 4_096 for tokens in improved[1]] == improved[2]


def test_a_cache_is_paid_with_its_storage_and_still_costs_less_than_none(play: Play) -> None:
    play.ask(times=8, seconds=400)
    (session,) = play.gateway.recorded_sessions()
    events = list(play.gateway.store.read(session))
    price = price_at(find_model(f"gemini:{FLASH}"), utc_date(play.clock()), 10_000)
    (created,) = play.changes
    assert created.cost_usd == created.tokens * price.input / 1_000_000
    assert created.storage_cost_usd == storage_usd(created.tokens, 3_600, price)
    costs = estimate_counterfactual(events, session, PriceLookup({f"gemini:{FLASH}": find_model(f"gemini:{FLASH}")}))
    assert costs is not None
    calls = [payload for payload in play.payloads() if isinstance(payload, LlmCallCompleted)]
    paid = sum((call.cost_usd for call in calls), Decimal(0)) + explicit_cache_cost_usd(events)
    assert float(costs.observed_usd) == pytest.approx(float(paid))
    # Without a rewrite every call would have paid for the whole prompt, at the same prices.
    whole = sum(call.usage.tokens_sent * price.input + call.usage.output * price.output for call in calls) / 1_000_000
    assert float(costs.unplanned_usd or 0) == pytest.approx(float(whole), rel=0.01)
    assert paid < whole


def test_the_conversation_is_recorded_with_its_whole_prompt(play: Play) -> None:
    play.ask(times=4)
    forwarded = [payload for payload in play.payloads() if isinstance(payload, GatewayForwarded)]
    names = [change.anti_pattern for call in forwarded for change in call.changes]
    assert names == ["implicit cache missed"] * 2
    (session,) = play.gateway.recorded_sessions()
    records = list(iter_calls(play.gateway.store.read(session)))
    assert [record.is_prefix_unchanged for record in records] == [True] * 4


@pytest.mark.parametrize("options", [{"cache_ttl_seconds": 0}, {"improve": False}], ids=["TTL of 0", "no --improve"])
def test_no_cache_is_created(options: dict[str, Any]) -> None:
    with playing(**options) as play:
        play.ask(times=5)
        assert (play.cache_requests, play.uses) == ([], [False] * 5)


def test_calls_that_read_the_implicit_cache_need_no_other(play: Play) -> None:
    play.ask(times=6, seconds=20)
    assert play.cache_requests == []


def test_one_call_an_hour_does_not_pay_for_storage(play: Play) -> None:
    play.ask(times=6, seconds=3_000)
    assert play.cache_requests == []


def test_turning_caching_off_deletes_the_cache_with_the_next_call(play: Play) -> None:
    play.ask(times=3)
    play.gateway.service.records.set_settings(CacheSettings(providers={"gemini": False}))
    play.ask(times=2)
    assert play.uses == [False, False, True, False, False]
    assert play.cache_requests == [("POST", 200), ("DELETE", 200)]
    created, deleted = play.changes
    # Of an hour, 600 s were stored; the rest is given back.
    assert deleted.action == "deleted"
    assert -deleted.storage_cost_usd == created.storage_cost_usd * 3_000 / 3_600
    assert play.provider.explicit_caches == ()


def test_the_ttl_of_the_settings_is_asked_for(play: Play) -> None:
    play.gateway.service.records.set_settings(CacheSettings(gemini_ttl_seconds=1_800))
    play.ask(times=3)
    (created,) = play.requests("/cachedContents")
    assert json.loads(created.body)["ttl"] == "1800s"


def test_a_cache_is_extended_in_its_last_quarter(play: Play) -> None:
    play.ask(times=10, seconds=400)
    assert play.cache_requests == [("POST", 200), ("PATCH", 200)]
    created, extended = play.changes
    assert (extended.action, extended.expires_at - created.expires_at) == ("extended", 2_800.0)
    assert play.uses == [False] * 2 + [True] * 8


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"key": "key-1"}, {"key": "key-2"}),
        ({"query": "?key=1"}, {"query": "?key=2"}),
        ({"headers": {"x-goog-user-project": "one"}}, {"headers": {"x-goog-user-project": "two"}}),
        ({"model": FLASH}, {"model": "gemini-3.6-flash"}),
        ({"system": LONG}, {"system": f"{LONG} And more."}),
    ],
    ids=["key", "key in the query", "project", "model", "system text"],
)
def test_a_cache_is_never_shared_between(play: Play, first: Any, second: Any) -> None:
    for _ in range(3):
        for options in (first, second):
            play.contents = []
            play.ask(seconds=200, **options)
    creations = play.requests("/cachedContents")
    assert [request.method for request in creations] == ["POST", "POST"]
    calls = play.requests(":generateContent")[-2:]
    names = [json.loads(call.body).get("cachedContent") for call in calls]
    assert len(set(names)) == 2
    assert None not in names


def delete_cache(play: Play) -> None:
    """As another program of the same user does."""
    (cache,) = play.provider.explicit_caches
    connection = http.client.HTTPConnection(urlsplit(play.gateway.url).netloc, timeout=TIMEOUT_SECONDS)
    connection.request("DELETE", f"/gemini/v1beta/{cache.name}", headers={"x-goog-api-key": "key"})
    assert connection.getresponse().status == 200
    connection.close()


def test_a_call_whose_cache_is_gone_is_sent_again_once_with_all_of_its_prompt(play: Play) -> None:
    play.ask(times=3)
    delete_cache(play)
    play.ask(times=2)
    calls = play.requests(":generateContent")
    assert [call.status for call in calls] == [200, 200, 200, 403, 200, 200]
    assert [b"cachedContent" in call.body for call in calls] == [False, False, True, True, False, True]
    assert play.actions == ["created", "lost", "created"]
    created, lost, _ = play.changes
    assert -lost.storage_cost_usd == created.storage_cost_usd * 3_000 / 3_600
    # Answered calls only: the refusal is none of the client's.
    assert len(play.reads) == 5


def test_the_official_client_does_not_notice_that_a_cache_is_gone(play: Play) -> None:
    play.ask(times=3)
    delete_cache(play)
    options = types.HttpOptions(base_url=f"{play.gateway.url}/gemini", timeout=int(TIMEOUT_SECONDS * 1000))
    with genai.Client(api_key="key", http_options=options) as client:
        config = types.GenerateContentConfig(system_instruction=LONG)
        chunks = list(client.models.generate_content_stream(model=FLASH, contents=play.contents, config=config))
        assert any(chunk.text for chunk in chunks)


def test_an_error_of_the_clients_own_reaches_it_and_leaves_the_cache(play: Play) -> None:
    play.ask(times=3)
    broken = {"contents": [*play.contents, {"role": "user", "parts": []}]}
    status, answer = play.post(broken)
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
    play.ask()
    assert play.uses == [False, False, True, True]
    assert play.actions == ["created"]


def test_a_client_that_manages_its_own_cache_is_left_alone(play: Play) -> None:
    play.ask(times=3)
    status, answer = play.post({"contents": play.contents, "cachedContent": "cachedContents/mine"})
    assert status in (400, 403)
    assert "error" in answer
    assert play.actions == ["created"]


def test_a_conversation_that_would_read_more_from_the_implicit_cache_gives_its_cache_up(play: Play) -> None:
    """Never more expensive than doing nothing: a cache holds the head only, and not the history."""
    play.ask(times=3)
    assert play.uses == [False, False, True]
    play.contents.append({"role": "user", "parts": [{"text": LONG * 4}]})
    play.contents.append({"role": "model", "parts": [{"text": "Read."}]})
    play.ask(times=4, seconds=20)
    assert play.uses[3:] == [True, True, False, False]
    assert play.actions == ["created", "deleted"]
    assert play.reads[-1] > 4 * 4_096


def test_replicas_on_one_store_create_one_cache_and_all_use_it(tmp_path: Path) -> None:
    with open_store(tmp_path / "holdfast.db") as store, playing(store=store) as play:
        provider_url = play.provider_url
        with serve_gateway(provider_url, store=store, clock=play.clock, improve=True) as other:
            for _ in range(4):
                play.ask()
                play.contents, before = [], play.contents
                play.ask(url=other.url)
                play.contents = before
            assert play.cache_requests == [("POST", 200)]
            assert play.uses[-2:] == [True, True]
    with sqlite3.connect(tmp_path / "holdfast.db") as database:
        ((name, value),) = database.execute("SELECT name, value FROM leases WHERE name LIKE 'explicit cache %'")
    assert "key" not in name.removeprefix("explicit cache ")
    assert json.loads(value)["name"].startswith("cachedContents/")


def test_a_restarted_gateway_uses_the_cache_of_the_one_before(tmp_path: Path) -> None:
    with open_store(tmp_path / "holdfast.db") as store, playing(store=store) as play:
        play.ask(times=3)
        with serve_gateway(play.provider_url, store=store, clock=play.clock, improve=True) as restarted:
            play.ask(url=restarted.url)
        assert play.uses == [False, False, True, True]
        assert play.cache_requests == [("POST", 200)]


def test_a_refused_cache_is_not_asked_for_again() -> None:
    row = find_model(f"gemini:{FLASH}")
    larger = replace(row, cache=replace(row.cache, explicit_tokens_min=100_000))
    with playing(models={**shipped_models(), row.id: larger}) as play:
        play.ask(times=5)
        assert play.cache_requests == [("POST", 400)]
        assert play.actions == ["refused"]
        assert play.uses == [False] * 5
