"""Budgets hold for concurrent calls, replicas and processes: a call is reserved before it is sent, and settled once."""

import gzip
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from tests.support.postgres_server import reused_database
from tests.support.served_gateway import RawUpstream, ServedGateway, raw_upstream, serve_gateway

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import ManualClock
from holdfast.errors import StoreError
from holdfast.events.payloads.calls import LlmCallFailed
from holdfast.events.records import BudgetCharge, BudgetDay
from holdfast.gateway import key_limits
from holdfast.gateway.exchange import GatewayRefusedError
from holdfast.gateway.key_limits import KeyLimits, KeyLimitTable, RequestSize, estimate_call_usd, measure_request
from holdfast.gateway.recording.restore import iterate_spending
from holdfast.gateway.routes import RouteTable, resolve_upstreams
from holdfast.service.auth.keys import make_key
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql.events import Cell
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.server_thread import serve_provider

MODEL = "claude-sonnet-5-5"
TODAY = "2027-01-15"  # Of the manual clock.
CLOCK_START = 1_800_000_000.0
ROUTES = RouteTable(
    resolve_upstreams({}, {f"HOLDFAST_UPSTREAM_{name}": "https://any.invalid" for name in ("AZURE", "BEDROCK")})
)


def make_body(number: int, *, words: int = 5_000, **more: object) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Number {number}. " + "Hello. " * words}]
    return {"model": MODEL, "max_tokens": 200, "messages": messages, **more}


def new_key(store: DatabaseEventLog, number: int = 1) -> tuple[str, str]:
    """The key and its id."""
    made = make_key("gateway", at=0.0, random_bytes=lambda size: bytes([number]) * size, name="team")
    store.records.add_key(made.row)
    return made.key, made.row.id


def post(url: str, key: str, body: object, path: str = "/anthropic/v1/messages") -> httpx.Response:
    return httpx.post(f"{url}{path}", json=body, headers={"x-api-key": key}, timeout=30)


def spent_by(store: DatabaseEventLog, key_id: str) -> list[float]:
    """What each call of a key cost, by the log."""
    return [call.dollars for call in iterate_spending(store) if call.key_id == key_id]


def today(store: DatabaseEventLog, key_id: str) -> BudgetDay:
    return store.records.get_budget_day(key_id, time.strftime("%Y-%m-%d", time.gmtime()))


GRANTS = {"*": KeyLimits(provider_keys={"anthropic": "sk-any", "openai": "sk-any"}, budget_usd_a_day=0.02)}


def test_sixty_concurrent_calls_overshoot_a_budget_by_at_most_one_call() -> None:
    store = MemoryStore()
    key, key_id = new_key(store)
    with serve_provider(SimulatedProvider()) as url, serve_gateway(url, store=store, grants=GRANTS) as gateway:
        with ThreadPoolExecutor(60) as pool:
            statuses = list(pool.map(lambda n: post(gateway.url, key, make_body(n)).status_code, range(60)))
        gateway.recorded_sessions()
    costs = spent_by(store, key_id)
    assert statuses.count(200) == len(costs) >= 1
    assert set(statuses) == {200, 429}
    assert sum(costs) < 0.02 + max(costs)


def test_two_gateways_on_one_postgres_share_the_budgets_of_64_concurrent_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 64 clients that all start at once on a busy machine may wait longer for the store than the gateway does. Whether
    # it then refuses a call is tested elsewhere.
    monkeypatch.setattr(key_limits, "STORE_SECONDS_MAX", 60.0)
    grants = {"*": KeyLimits(provider_keys={"anthropic": "sk-any"}, budget_usd_a_day=0.2)}
    with ExitStack() as stack:
        address = stack.enter_context(reused_database())
        url = stack.enter_context(serve_provider(SimulatedProvider()))
        stores = [stack.enter_context(PostgresStore(address)) for _ in range(2)]
        keys = [new_key(stores[0], number) for number in (1, 2)]
        gateways = [stack.enter_context(serve_gateway(url, store=store, grants=grants)) for store in stores]

        def call_often(client: int) -> list[int]:
            key, gateway = keys[client % 2][0], gateways[client // 2 % 2]
            return [post(gateway.url, key, make_body(client * 10 + n)).status_code for n in range(3)]

        with ThreadPoolExecutor(64) as pool:
            statuses = [status for answered in pool.map(call_often, range(64)) for status in answered]
        for gateway, store in zip(gateways, stores, strict=True):
            gateway.recorded_sessions()
            # What was appended is committed before it: the other store reads what is committed.
            store.delete("no-such-session")
        costs = [spent_by(stores[0], key_id) for _, key_id in keys]
        rows = [today(stores[1], key_id) for _, key_id in keys]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) == sum(map(len, costs))
    for row, of_key in zip(rows, costs, strict=True):
        assert 0.1 < sum(of_key) < 0.2 + max(of_key)
        # The table says what the log says, and nothing is left reserved.
        assert row.spent == pytest.approx(sum(of_key) * 10**12, abs=1_000)
        assert row.reserved == 0


@pytest.mark.timeout(120)
def test_served_gateway_with_its_recorder_process_keeps_the_budget_over_a_restart(tmp_path: Path) -> None:
    db, grants = str(tmp_path / "log.db"), tmp_path / "grants.toml"
    grants.write_text('[keys."*"]\nanthropic = "sk-any"\nbudget_usd_a_day = 0.02\n')
    grants.chmod(0o600)
    with SqliteStore(db) as store:
        key, key_id = new_key(store)
    words = [
        sys.executable,
        "-m",
        "holdfast",
        "serve",
        "--port",
        "0",
        "--db",
        db,
        "--simulate",
        "--grants",
        str(grants),
    ]
    statuses: list[int] = []
    for _ in range(2):
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with ThreadPoolExecutor(20) as pool:
                calls = [pool.submit(post, url, key, make_body(number)) for number in range(20)]
            statuses += [call.result().status_code for call in calls]
            process.terminate()
    with SqliteStore(db) as store:
        costs, row = spent_by(store, key_id), today(store, key_id)
    assert statuses.count(200) == len(costs) >= 1
    assert sum(costs) < 0.02 + max(costs)
    assert row.spent == pytest.approx(sum(costs) * 10**12, abs=1_000)
    assert row.reserved == 0


@pytest.mark.parametrize(("path", "kind"), [("/anthropic/v1/messages", "type"), ("/openai/v1/responses", "code")])
def test_refusal_names_limit_spending_and_reset_in_the_providers_format(path: str, kind: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    key, key_id = new_key(store)
    store.records.settle_budget(BudgetCharge("earlier", key_id, TODAY, 25 * 10**9, clock()))
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, clock=clock, grants=GRANTS) as gateway:
        refused = post(gateway.url, key, make_body(1), path)
        assert httpx.get(f"{gateway.url}/anthropic/v1/models", headers={"x-api-key": key}).status_code == 429
    error = refused.json()["error"]
    assert (refused.status_code, kind in error, upstream.heads) == (429, True, [])
    assert "limit $0.0200, spent $0.0250; it resets at 2027-01-16T00:00:00Z" in error["message"]
    assert int(refused.headers["retry-after"]) == 86_400 - CLOCK_START % 86_400 + 1


def test_a_call_that_does_not_fit_beside_those_in_progress_may_retry_soon() -> None:
    store, clock = MemoryStore(), ManualClock()
    key, key_id = new_key(store)
    store.records.reserve_budget(BudgetCharge("open", key_id, TODAY, 15 * 10**9, clock()), limit=10**12)
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, clock=clock, grants=GRANTS) as gateway:
        refused = post(gateway.url, key, make_body(1))
        assert (refused.status_code, int(refused.headers["retry-after"])) == (429, 2)
        assert (
            "limit $0.0200, spent $0.0000, reserved $0.0150, this call up to $0." in refused.json()["error"]["message"]
        )
        clock.advance(3_601)
        # It was not settled within an hour, so it counts as spent: not enough to be refused, and never forgotten.
        answer(upstream, {"usage": {"input_tokens": 1, "output_tokens": 1}})
        assert post(gateway.url, key, make_body(1)).status_code == 200
        gateway.recorded_sessions()
    assert store.records.get_budget_day(key_id, TODAY).spent > 15 * 10**9


def answer(upstream: RawUpstream, body: object, *, status: str = "200 OK", kind: str = "application/json") -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\ncontent-length: {len(raw)}\r\n\r\n"
    upstream.parts = (head.encode(), raw)


CHAT_STREAM = b'data: {"id":"c","model":"gpt-5.2","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\ndata: [DONE]\n\n'
USAGE = {"usage": {"input_tokens": 1_000, "output_tokens": 1_000}}


@pytest.mark.parametrize(
    ("path", "body", "reply", "kind"),
    [
        ("/anthropic/v1/messages", {"model": "claude-of-tomorrow"}, USAGE, "application/json"),
        ("/anthropic//v1/messages", {}, USAGE, "application/json"),
        ("/anthropic/v1//messages/", {}, USAGE, "application/json"),
        ("/openai/v1/chat/completions", {"model": "gpt-5.2", "stream": True}, CHAT_STREAM, "text/event-stream"),
        ("/anthropic/v1/messages", {}, b"<html>" * 1_000, "text/html"),
        (
            "/openai/v1/embeddings",
            {"model": "text-embedding-3-large"},
            {"usage": {"prompt_tokens": 900, "total_tokens": 900}},
            "",
        ),
    ],
)
def test_no_form_of_a_call_is_free(path: str, body: dict[str, Any], reply: object, kind: str) -> None:
    store = MemoryStore()
    key, key_id = new_key(store)
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, grants=GRANTS) as gateway:
        answer(upstream, reply, kind=kind)
        assert post(gateway.url, key, make_body(1, words=100, **body), path).status_code == 200
        gateway.recorded_sessions()
    row = today(store, key_id)
    assert row.spent > 0
    assert row.reserved == 0


COMPLETION = {"choices": [{"text": "word " * 10}]}
COMPLETIONS = b"data: %s\n\n" % json.dumps(COMPLETION).encode() * 100 + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("path", "reply", "kind", "status", "dollars"),
    [
        # 1,000 words of a model without a price, at 10 dollars for a million tokens.
        ("/openai/v1/completions", COMPLETIONS, "text/event-stream", "200 OK", 0.01),
        (
            "/openai/v1/images/generations",
            {"data": [{"url": "https://any.invalid"}]},
            "application/json",
            "200 OK",
            0.04,
        ),
        ("/openai/v1/audio/speech", b"ID3" * 100_000, "audio/mpeg", "200 OK", 0.04),
        ("/anthropic/v1/messages", USAGE, "application/json", "201 Created", 0.02),
        ("/openai/v1/embeddings", USAGE, "application/json", "202 Accepted", 0.02),
        # These cost nothing.
        ("/anthropic/v1/messages/count_tokens", {"input_tokens": 5}, "application/json", "200 OK", 0.0),
        ("/openai/v1/moderations", {"results": []}, "application/json", "200 OK", 0.0),
        ("/openai/v1/responses/resp_1/cancel", {"id": "resp_1"}, "application/json", "200 OK", 0.0),
        ("/openai/v1/images/generations", {"error": {}}, "application/json", "400 Bad Request", 0.0),
    ],
)
def test_a_call_whose_response_has_no_usage_is_charged_by_estimate(
    path: str, reply: object, kind: str, status: str, dollars: float
) -> None:
    store = MemoryStore()
    key, key_id = new_key(store)
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, grants=GRANTS) as gateway:
        answer(upstream, reply, kind=kind, status=status)
        post(gateway.url, key, {"model": "unheard-of", "prompt": "Hi"}, path)
        gateway.recorded_sessions()
    row = today(store, key_id)
    assert row.spent / 10**12 == pytest.approx(dollars, rel=0.15)
    assert row.reserved == 0


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_response_in_the_background_costs_what_was_reserved_for_it(is_streamed: bool) -> None:
    store, clock = MemoryStore(), ManualClock()
    key, key_id = new_key(store)
    queued = {"id": "resp_1", "status": "queued", "background": True, "model": "gpt-5.2", "output": [], "usage": None}
    event = {"type": "response.created", "response": queued}
    stream = b"event: response.created\ndata: %s\n\n" % json.dumps(event).encode()
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, clock=clock, grants=GRANTS) as gateway:
        answer(
            upstream, stream if is_streamed else queued, kind="text/event-stream" if is_streamed else "application/json"
        )
        body = {"model": "gpt-5.2", "input": "Hi", "background": True, "max_output_tokens": 1_000}
        assert post(gateway.url, key, body, "/openai/v1/responses").status_code == 200
        gateway.recorded_sessions()
        reserved = store.records.get_budget_day(key_id, TODAY).reserved
        assert reserved > 1_000 * 10 * 10**6
        clock.advance(3_601)
        store.records.expire_reservations(clock() - 3_600)
    assert store.records.get_budget_day(key_id, TODAY) == BudgetDay(reserved, 0, 0)


ANTHROPIC_START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","model":"claude-sonnet-5-5","usage":'
    b'{"input_tokens":1000,"output_tokens":1}}}\n\nevent: content_block_start\ndata: {"type":"content_block_start",'
    b'"index":0,"content_block":{"type":"text","text":""}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"'
    + b"word " * 200
    + b'"}}\n\n'
)
CHAT_START = (
    b'data: {"id":"c","model":"gpt-5.2","choices":[{"index":0,"delta":{"content":"' + b"word " * 200 + b'"}}]}\n\n'
)


@pytest.mark.parametrize("who", ["the client", "the upstream"])
@pytest.mark.parametrize(
    ("path", "model", "start"),
    [
        ("/anthropic/v1/messages", MODEL, ANTHROPIC_START),
        ("/openai/v1/chat/completions", "gpt-5.2", CHAT_START),
        ("/openai/v1/chat/completions", "gpt-5.2", b""),
    ],
)
def test_a_stream_that_is_cut_before_its_usage_is_charged_by_estimate(
    who: str, path: str, model: str, start: bytes
) -> None:
    store = MemoryStore()
    key, key_id = new_key(store)
    body = make_body(1, words=1_000, model=model, stream=True)
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, grants=GRANTS) as gateway:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        chunk = b"%x\r\n%s\r\n" % (len(start), start) if start else b""
        upstream.parts = (head, chunk, *([threading.Event()] if who == "the client" else ()))
        with httpx.stream("POST", f"{gateway.url}{path}", json=body, headers={"x-api-key": key}) as response:
            assert response.status_code == 200
            if start:
                assert b"word" in next(response.iter_raw())
        (session,) = gateway.recorded_sessions()
        (failed,) = [event.payload for event in store.read(session) if isinstance(event.payload, LlmCallFailed)]
    row = today(store, key_id)
    assert row.spent == failed.cost_usd * 10**12
    assert row.reserved == 0
    assert failed.is_output_estimated
    # Of the 5,000 bytes of the prompt and of the 200 words of the reply, not of the JSON around them.
    assert 900 < failed.usage.tokens_sent < 3_500
    assert (180 < failed.usage.output < 260) if start else failed.usage.output == 0


def test_a_stream_without_usage_is_charged_by_its_text_and_not_by_its_json() -> None:
    store = MemoryStore()
    key, _ = new_key(store)
    events = [{"id": "c", "choices": [{"index": 0, "delta": {"content": "word "}}]} for _ in range(200)]
    stream = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, grants=GRANTS) as gateway:
        answer(upstream, stream, kind="text/event-stream")
        body = make_body(1, words=100, model="gpt-5.2", stream=True)
        assert post(gateway.url, key, body, "/openai/v1/chat/completions").status_code == 200
        (session,) = gateway.recorded_sessions()
        (failed,) = [event.payload for event in store.read(session) if isinstance(event.payload, LlmCallFailed)]
    assert 180 < failed.usage.output < 260


def test_a_body_that_is_too_large_to_read_is_reserved_and_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("exchange", "key_limits", "app", "recording.exchange_decode"):
        monkeypatch.setattr(f"holdfast.gateway.{module}.BUFFERED_BYTES_MAX", 1_000)
    store = MemoryStore()
    key, key_id = new_key(store)
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, grants=GRANTS) as gateway:
        answer(upstream, b"{}")
        assert post(gateway.url, key, make_body(1, words=200)).status_code == 200
        gateway.recorded_sessions()

        def send_chunks() -> Iterator[bytes]:
            yield from (b"x" * 900, b"y" * 900)

        address, headers = f"{gateway.url}/anthropic/v1/messages", {"x-api-key": key}
        assert httpx.post(address, content=send_chunks(), headers=headers).status_code == 200
        gateway.recorded_sessions()
    row = today(store, key_id)
    assert (row.spent > 0, row.reserved) == (True, 0)


@pytest.mark.parametrize("status", ["429 Too Many Requests", "529 Overloaded"])
def test_a_call_that_the_provider_refused_costs_nothing(status: str) -> None:
    store = MemoryStore()
    key, key_id = new_key(store)
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, grants=GRANTS) as gateway:
        answer(upstream, {"type": "error", "error": {"type": "overloaded_error", "message": "later"}}, status=status)
        post(gateway.url, key, make_body(1))
        gateway.recorded_sessions()
    assert today(store, key_id) == BudgetDay()


def test_a_call_that_never_reaches_its_upstream_frees_its_reservation() -> None:
    store = MemoryStore()
    key, key_id = new_key(store)
    with serve_gateway("http://127.0.0.1:9", store=store, grants=GRANTS, watcher=lambda _: Unwatched()) as gateway:
        assert post(gateway.url, key, make_body(1)).status_code == 502
    assert today(store, key_id) == BudgetDay()


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\ncontent-"], ids=["nothing", "half a head"])
def test_a_call_whose_upstream_took_the_request_and_hung_up_is_charged_by_estimate(part: bytes) -> None:
    """The provider may charge for it, whatever became of its response."""
    store = MemoryStore()
    key, key_id = new_key(store)
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, grants=GRANTS) as gateway:
        upstream.parts = (part,)
        assert post(gateway.url, key, make_body(1)).status_code == 502
        assert len(upstream.bodies) == 1, "a request is never sent twice"
        (session_id,) = gateway.recorded_sessions()
    (failed,) = [event.payload for event in store.read(session_id) if isinstance(event.payload, LlmCallFailed)]
    assert failed.is_output_estimated
    row = today(store, key_id)
    assert failed.cost_usd > 0
    assert row.spent / 10**12 == pytest.approx(float(failed.cost_usd))
    assert row.reserved == 0


def test_a_request_on_an_idle_connection_that_the_upstream_was_closing_is_free() -> None:
    """What is sent on such a connection is not read: the other end answers with a reset."""
    store, usage = MemoryStore(), {"input_tokens": 10, "output_tokens": 1}
    key, key_id = new_key(store)
    reply = json.dumps({"type": "message", "role": "assistant", "model": MODEL, "content": [], "usage": usage}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(reply)
    asked_again = threading.Event()
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, grants=GRANTS) as gateway:
        upstream.parts = (head + reply, asked_again)  # It waits on, and closes when the first byte comes.
        assert post(gateway.url, key, make_body(1)).status_code == 200
        gateway.recorded_sessions()
        spent = today(store, key_id)
        assert post(gateway.url, key, make_body(2)).status_code == 502
        gateway.recorded_sessions()
        assert len(upstream.bodies) == 1
    assert today(store, key_id) == spent


class Unwatched:
    """Records nothing, as a recorder that has died."""

    def on_request(self, exchange: object) -> None: ...

    def on_end(self, exchange: object) -> None: ...


class FailingStore(MemoryStore):
    """A store whose budgets cannot be read while `is_failing`."""

    is_failing = False

    def _fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        if self.is_failing:
            raise StoreError("the store cannot be used now")
        return super()._fetch(query, parameters)


@pytest.mark.parametrize("is_known", [True, False])
def test_while_the_store_is_away_a_key_with_a_budget_is_refused_or_admitted_by_setting(is_known: bool) -> None:
    choices: tuple[tuple[Literal["deny", "allow"], int], ...] = (("deny", 503), ("allow", 200))
    for choice, status in choices:
        store = FailingStore()
        key, _ = new_key(store)
        with (
            raw_upstream() as upstream,
            serve_gateway(upstream.url, store=store, grants=GRANTS, when_unavailable=choice) as gateway,
        ):
            answer(upstream, {"usage": {"input_tokens": 10, "output_tokens": 10}})
            if is_known:
                assert ask(gateway, key).status_code == 200
            store.is_failing = True
            answered = ask(gateway, key)
            assert answered.status_code == status
            assert status == 200 or "the gateway cannot" in answered.json()["error"]["message"]
            store.is_failing = False
            assert ask(gateway, key).status_code == 200


class SlowStore(MemoryStore):
    """A store that answers late while `is_slow`."""

    is_slow = False

    def _fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        if self.is_slow and "holdfast.budgets" in query:
            time.sleep(0.2)
        return super()._fetch(query, parameters)


def test_a_call_that_was_admitted_while_the_store_was_slow_is_charged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its reservation may succeed after the gateway has given up waiting for it."""
    monkeypatch.setattr(key_limits, "STORE_SECONDS_MAX", 0.05)
    store = SlowStore()
    key, key_id = new_key(store)
    with (
        raw_upstream() as upstream,
        serve_gateway(upstream.url, store=store, grants=GRANTS, when_unavailable="allow") as gateway,
    ):
        answer(upstream, USAGE)
        is_reserved = threading.Event()
        upstream.parts = (is_reserved, *upstream.parts)
        store.is_slow = True
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, gateway, key)
            time.sleep(0.9)
            is_reserved.set()
            assert asked.result().status_code == 200
        store.is_slow = False
        gateway.recorded_sessions()
    row = today(store, key_id)
    assert row.spent > 0
    assert row.spent / 10**12 == pytest.approx(sum(spent_by(store, key_id)))
    assert row.reserved == 0
    assert "a budget could not be checked: the store does not answer" in caplog.text


def ask(gateway: ServedGateway, key: str) -> httpx.Response:
    """With the client's own provider key."""
    headers = {"x-holdfast-key": key, "x-api-key": "sk-own"}
    return httpx.post(f"{gateway.url}/anthropic/v1/messages", json=make_body(1, words=10), headers=headers)


# Estimates.


def estimate(body: dict[str, Any], *, usual: int = 0, path: str = "/anthropic/v1/messages") -> float:
    raw = json.dumps(body).encode()
    request = RequestSize(len(raw), raw)
    target = ROUTES.find_target(path)
    return estimate_call_usd(target, request, shipped_models(), at=CLOCK_START, usual_output_tokens=usual)


def test_estimate_has_the_prompt_at_write_price_and_the_output_that_is_usual_or_allowed() -> None:
    prompt = estimate(make_body(1, max_tokens=1))
    assert estimate(make_body(1, max_tokens=10_001)) - prompt == pytest.approx(0.1, rel=0.01)
    assert estimate(make_body(1, max_tokens=10_001), usual=1_001) - prompt == pytest.approx(0.01, rel=0.01)
    assert estimate(make_body(1, max_tokens=1), usual=1_000) == prompt
    assert estimate(make_body(1, max_tokens=1, system=[{"cache_control": {"ttl": "1h"}}])) > 1.5 * prompt
    assert estimate(make_body(1), path="/anthropic/v1/messages/count_tokens") == 0
    chat = {"model": "gpt-5.2", "messages": [], "max_completion_tokens": 1_000}
    path = "/openai/v1/chat/completions"
    assert estimate({**chat, "n": 10}, path=path) > 9 * estimate(chat, path=path)


GEMINI = "/gemini/v1beta/models/gemini-3-pro:generateContent"
PRICED_GEMINI = "/gemini/v1beta/models/gemini-2.5-pro:generateContent"
CONVERSE = "/bedrock/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse"


def settings(**values: int) -> dict[str, Any]:
    return {"generationConfig": values}


@pytest.mark.parametrize(
    ("path", "small", "large", "factor"),
    [
        (GEMINI, settings(maxOutputTokens=9_000), {"generation_config": {"max_output_tokens": 9_000}}, 1),
        (GEMINI, settings(maxOutputTokens=900), settings(maxOutputTokens=900, candidateCount=8), 8),
        # A host ignores the name that it does not know.
        ("/openrouter/v1/chat/completions", {"max_tokens": 9_000}, {"max_tokens": 9_000, "max_output_tokens": 1}, 1),
        ("/openai/v1/completions", {"max_tokens": 900}, {"max_tokens": 900, "best_of": 10}, 10),
        ("/openai/v1/completions", {"max_tokens": 900}, {"max_tokens": 9_000}, 10),
        (CONVERSE, {"inferenceConfig": {"maxTokens": 900}}, {"inferenceConfig": {"maxTokens": 9_000}}, 10),
    ],
)
def test_estimate_knows_the_output_that_every_form_of_request_allows(
    path: str, small: dict[str, Any], large: dict[str, Any], factor: int
) -> None:
    model = {"model": "anthropic/claude-sonnet-4.5"} if "openrouter" in path else {"model": "gpt-5.2"}
    assert estimate({**model, **large}, path=path) == pytest.approx(
        factor * estimate({**model, **small}, path=path), rel=0.1
    )


def test_estimate_of_a_prompt_that_is_not_in_the_request_is_the_largest() -> None:
    body = {"model": "gpt-5.2", "input": "Go on.", "max_output_tokens": 10}
    whole = estimate(body | {"input": "x " * 2_000_000}, path="/openai/v1/responses")
    for name in ("previous_response_id", "conversation"):
        assert estimate({**body, name: "resp_1"}, path="/openai/v1/responses") == pytest.approx(whole, rel=0.01)
        assert estimate({**body, name: None}, path="/openai/v1/responses") < whole / 100
    assert estimate({"contents": [], "cachedContent": "cachedContents/1"}, path=PRICED_GEMINI) > 1
    unpriced = {**body, "model": "unknown-1"}
    assert estimate({**unpriced, "conversation": "conv_1"}, path="/openai/v1/responses") > 1


FILES = {
    "OpenAI, uploaded": ("/openai/v1/responses", {"type": "input_file", "file_id": "file-1"}),
    "OpenAI, by URL": ("/openai/v1/responses", {"type": "input_file", "file_url": "https://any.invalid/a.pdf"}),
    "Anthropic, uploaded": ("/anthropic/v1/messages", {"source": {"type": "file", "file_id": "file_1"}}),
    "Anthropic, by URL": ("/anthropic/v1/messages", {"source": {"type": "url", "url": "https://any.invalid/a.pdf"}}),
    "Gemini": (PRICED_GEMINI, {"fileData": {"fileUri": "https://any.invalid/a.mp4"}}),
    "Gemini, other names": (PRICED_GEMINI, {"file_data": {"file_uri": "gs://any/a.mp4"}}),
    "Bedrock": (CONVERSE, {"document": {"source": {"s3Location": {"uri": "s3://any/a.pdf"}}}}),
}
"""Each refers to a file that the provider reads into the prompt."""


@pytest.mark.parametrize("name", FILES)
def test_estimate_of_a_prompt_with_a_file_that_is_elsewhere_is_the_largest(name: str) -> None:
    path, part = FILES[name]
    model = "gpt-5.2" if name.startswith("OpenAI") else MODEL
    body = {"model": model, "max_tokens": 10, "generationConfig": {"maxOutputTokens": 10}}
    body["inferenceConfig"] = {"maxTokens": 10}
    whole = estimate(body | {"input": "x " * 6_000_000}, path=path)
    assert estimate({**body, "content": [part]}, path=path) == pytest.approx(whole, rel=0.01)
    assert estimate({**body, "content": [{"text": json.dumps(part)}]}, path=path) < whole / 100, "only quoted"
    properties = {key: {"type": "string"} for key in ("file_id", "fileUri", "file_url", "s3Location")}
    tools = [{"name": "read", "input_schema": {"type": "object", "properties": properties}}]
    assert estimate({**body, "tools": tools}, path=path) < whole / 100, "a parameter of a tool"


def test_estimate_counts_images_that_are_elsewhere() -> None:
    path, body = "/openai/v1/chat/completions", {"model": "gpt-5.2", "max_tokens": 1}
    part = {"type": "image_url", "image_url": {"url": "https://any.invalid/a.png"}}
    none, one, ten = (estimate({**body, "messages": [part] * count}, path=path) for count in (0, 1, 10))
    assert one > 10 * none
    assert ten - none == pytest.approx(10 * (one - none), rel=0.01)
    assert (
        estimate({**body, "messages": [{"type": "input_image", "image_url": "https://any.invalid/a.png"}]}, path=path)
        > 10 * none
    )


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("compress", b"\x1f\x9d"),
        ("gzip", b"\x1f\x8b"),
        # Of the two members one is read here, and both by others.
        ("gzip", gzip.compress(b'{"model": "gpt-5.2", ') + gzip.compress(b'"input": "..."}')),
    ],
    ids=["unknown", "cut", "two members"],  # The time is in what is compressed, and must not be in an id.
)
def test_a_body_that_cannot_be_decompressed_counts_as_a_large_one(encoding: str, body: bytes) -> None:
    assert measure_request(body, [(b"content-encoding", encoding.encode())]).size_bytes == 32 * 1024 * 1024


MODELS_IN_PATHS = {
    "/azure/openai/deployments/gpt-5.2-pro/chat/completions": "gpt-5-nano",
    "/gemini/v1beta/models/gemini-3-pro:generateContent": "gemini-2.5-flash-lite",
    "/gemini/v1beta/models/gemini-3-pro%3AgenerateContent": "models/gemini-2.5-flash-lite",
    "/vertex/v1/projects/p/locations/eu/publishers/anthropic/models/claude-opus-4-8:rawPredict": "claude-haiku-4-5",
}
"""With a cheaper model, which those who decide by the path do not look at."""


@pytest.mark.parametrize("path", MODELS_IN_PATHS)
def test_a_model_in_the_path_counts_whatever_the_body_says(path: str) -> None:
    body = {"messages": [], "contents": [], "max_tokens": 1_000, "generationConfig": {"maxOutputTokens": 1_000}}
    cheap = {**body, "model": MODELS_IN_PATHS[path]}
    assert estimate(cheap, path=path) == pytest.approx(estimate(body, path=path), rel=0.1)
    raw = json.dumps(cheap).encode()
    limits = KeyLimitTable({"*": KeyLimits(models=(MODELS_IN_PATHS[path],))}, {})
    with pytest.raises(GatewayRefusedError, match="this key is not for model"):
        limits.check_model("any", ROUTES.find_target(path), RequestSize(len(raw), raw))


def test_a_call_is_charged_at_the_price_of_the_model_in_its_path() -> None:
    store, spent = MemoryStore(), []
    key, key_id = new_key(store)
    grants = {"*": KeyLimits(provider_keys={"azure": "sk-any"}, budget_usd_a_day=5.0)}
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, grants=grants) as gateway:
        answer(upstream, {"choices": [], "usage": {"prompt_tokens": 1_000, "completion_tokens": 1_000}})
        for named in ({}, {"model": "gpt-5-nano"}):
            path = "/azure/openai/deployments/gpt-5.2-pro/chat/completions"
            assert post(gateway.url, key, {"messages": [], **named}, path).status_code == 200
            gateway.recorded_sessions()
            spent.append(today(store, key_id).spent)
    assert spent[1] == 2 * spent[0] > 0


@pytest.mark.parametrize(
    "broken",
    [
        {"max_tokens": "many"},
        {"max_tokens": -5},
        {"max_tokens": 10**400},
        {"model": 3},
        {"n": -1},
        {"model": "x" * 10_000},
        {"n": True},
    ],
    ids=lambda body: str(body)[:30],
)
def test_estimate_of_a_body_that_is_wrong_is_not_free(broken: dict[str, Any]) -> None:
    assert estimate(make_body(1, **broken)) > 0.01
    assert estimate({"contents": [], **broken}, path="/gemini/v1beta/models/gemini-3-pro:generateContent") > 0
