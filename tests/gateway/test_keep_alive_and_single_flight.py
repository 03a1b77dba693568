"""Improvements besides rewriting: concurrent requests with one prefix wait for the first, and idle conversations are
kept alive.
"""

import http.client
import json
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.support.served_gateway import TIMEOUT_SECONDS, ServedGateway, raw_upstream, serve_gateway

from holdfast.clock import ManualClock
from holdfast.events.payloads.cache import CachePinged
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed
from holdfast.gateway.key_limits import KeyLimits
from holdfast.gateway.recording.restore import iterate_spending
from holdfast.ledger.calls import iter_calls
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider

SYSTEM = "You look after the harbour, its cranes and its lights. " * 400
SLOW = '{"fault": "slow;seconds=0.3"}\n{"content": "Well."}\n'


def body(*texts: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    return {"model": "claude-sonnet-5-5", "max_tokens": 9, "system": SYSTEM, "messages": messages, **more}


def ask(gateway: ServedGateway, payload: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=TIMEOUT_SECONDS)
    request_headers = {"x-api-key": "any"} if headers is None else headers
    connection.request("POST", "/anthropic/v1/messages", json.dumps(payload), request_headers)
    reply: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    # From here on no request is in progress.
    gateway.recorded_sessions()
    return reply


def ask_concurrently(gateway: ServedGateway, count: int) -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = []
    threads = [
        threading.Thread(
            target=lambda number=number: requests.append(ask(gateway, body(f"What about crane {number}?")))
        )
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [reply["usage"] for reply in requests]


@pytest.mark.parametrize(("improve", "writers"), [(True, 1), (False, 0)])
def test_of_concurrent_requests_with_one_prefix_one_writes_and_the_others_read(improve: bool, writers: int) -> None:
    with serve_provider(SimulatedProvider(script=SLOW * 5)) as url, serve_gateway(url, improve=improve) as gateway:
        usages = ask_concurrently(gateway, 5)
    assert sum(usage["cache_creation_input_tokens"] > 1_000 for usage in usages) == writers
    assert sum(usage["cache_read_input_tokens"] > 1_000 for usage in usages) == (4 if improve else 0)


def test_a_failed_request_leaves_no_cache_for_the_waiting_ones() -> None:
    with serve_provider(SimulatedProvider(script=SLOW * 5)) as url, serve_gateway(url, improve=True) as gateway:
        assert "error" in ask(gateway, body("Crane?"), {"x-api-key": "any", "x-holdfast-fault": "529"})
        usages = ask_concurrently(gateway, 3)
    assert sum(usage["cache_creation_input_tokens"] > 1_000 for usage in usages) == 1


def pings(gateway: ServedGateway) -> list[CachePinged]:
    (session,) = gateway.recorded_sessions()
    return [event.payload for event in gateway.store.read(session) if isinstance(event.payload, CachePinged)]


def test_an_idle_conversation_is_kept_alive_and_the_cost_is_recorded() -> None:
    clock = ManualClock(1_000_000)
    provider = SimulatedProvider(clock=clock)
    with (
        serve_provider(provider) as url,
        serve_gateway(url, improve=True, keep_alive_usd="1", clock=clock) as gateway,
    ):
        ask(gateway, body("one"))
        for _ in range(3):
            clock.advance(200)
            assert gateway.send_due_pings() == 0
            clock.advance(90)
            assert gateway.send_due_pings() == 1
        clock.advance(200)
        later = ask(gateway, body("one", "yes", "two"))
        ping_requests = pings(gateway)
        spending = list(iterate_spending(gateway.store))
    assert sum(entry.calls for entry in spending) == 2
    assert [entry.dollars for entry in spending if not entry.calls] == [float(ping.cost_usd) for ping in ping_requests]
    assert later["usage"]["cache_read_input_tokens"] > 1_000
    assert [ping.usage.cache_write for ping in ping_requests] == [0, 0, 0]
    assert all(ping.usage.cache_read > 1_000 and ping.usage.output == 0 and ping.cost_usd > 0 for ping in ping_requests)


def test_keep_alive_spends_at_most_the_value_of_one_return_and_the_daily_budget() -> None:
    for most, sent in (("1", 11), ("0.003", 2), ("0.0001", 0)):
        clock = ManualClock(1_000_000)
        with (
            serve_provider(SimulatedProvider(clock=clock)) as url,
            serve_gateway(url, improve=True, keep_alive_usd=most, clock=clock) as gateway,
        ):
            ask(gateway, body("one"))
            ping_count = 0
            for _ in range(20):
                clock.advance(290)
                ping_count += gateway.send_due_pings()
        assert ping_count == sent


def test_continued_refused_and_expired_conversations_are_not_kept_alive() -> None:
    clock = ManualClock(1_000_000)
    provider = SimulatedProvider(clock=clock)
    with (
        serve_provider(provider) as url,
        serve_gateway(url, improve=True, keep_alive_usd="1", clock=clock) as gateway,
    ):
        ask(gateway, body("one"))
        ask(gateway, body("one", "yes", "two"))
        clock.advance(290)
        assert gateway.send_due_pings() == 1
        clock.advance(400)
        assert gateway.send_due_pings() == 0
        ask(gateway, {**body("other"), "max_tokens": -1})
        clock.advance(290)
        assert gateway.send_due_pings() == 0


@pytest.mark.parametrize("drain", [True, False])
def test_a_reply_whose_client_disconnected_is_read_to_its_end_on_request(drain: bool) -> None:
    go_on = threading.Event()
    events = (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant",'
        b'"model":"claude-sonnet-5-5","content":[],"stop_reason":null,"usage":{"input_tokens":77,"output_tokens":1}}}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
        b'"usage":{"output_tokens":42}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n',
    )
    response_head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % sum(
        map(len, events)
    )
    with raw_upstream() as upstream, serve_gateway(upstream.url, drain=drain) as gateway:
        upstream.parts = (response_head, events[0], go_on, events[1])
        raw = json.dumps(body("one")).encode()
        with socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS) as connection:
            connection.sendall(
                b"POST /anthropic/v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s"
                % (len(raw), raw)
            )
            while b"message_start" not in connection.recv(65536):
                pass
        if not drain:
            assert upstream.left.wait(TIMEOUT_SECONDS)
        go_on.set()
        (session,) = gateway.recorded_sessions()
        last = list(gateway.store.read(session))[-1].payload
    assert isinstance(last, LlmCallCompleted if drain else LlmCallFailed)
    assert last.usage.output == (42 if drain else 1)


def test_subscription_calls_are_neither_kept_alive_nor_delayed() -> None:
    clock = ManualClock(1_000_000)
    provider = SimulatedProvider(clock=clock)
    with (
        serve_provider(provider) as url,
        serve_gateway(
            url, improve=True, keep_alive_usd="1", clock=clock, grants={"*": KeyLimits(improve=True)}
        ) as gateway,
    ):
        payload = body("one", system=[{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}])
        ask(gateway, payload, {"authorization": "Bearer sk-ant-oat01-mine"})
        clock.advance(290)
        assert gateway.send_due_pings() == 0
        (session,) = gateway.recorded_sessions()
        assert len(list(iter_calls(gateway.store.read(session)))) <= 1
    assert [json.loads(request.body) for request in provider.requests] == [payload]
