"""Improvements besides rewriting: concurrent requests with one prefix wait for the first, and idle conversations are
kept alive.
"""

import http.client
import json
import socket
import threading
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from tests.support.served_gateway import TIMEOUT_SECONDS, ServedGateway, raw_upstream, serve_gateway

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import ManualClock
from holdfast.events.payloads.cache import CachePinged
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed
from holdfast.events.records import BudgetCharge
from holdfast.gateway.key_limits import KeyLimits
from holdfast.gateway.recording.restore import iterate_spending, restore_plans
from holdfast.ledger.calls import iter_calls
from holdfast.service.auth.keys import make_key
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.testing.server_thread import serve_provider

SONNET = "anthropic:claude-sonnet-5-5"
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


def ask_concurrently(count: int, *gateways: ServedGateway) -> list[dict[str, Any]]:
    """Each request to another gateway, in turn."""
    requests: list[dict[str, Any]] = []

    def ask_about(number: int) -> None:
        requests.append(ask(gateways[number % len(gateways)], body(f"What about crane {number}?")))

    threads = [threading.Thread(target=ask_about, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [reply["usage"] for reply in requests]


@pytest.mark.parametrize(("improve", "writers"), [(True, 1), (False, 0)])
def test_of_concurrent_requests_with_one_prefix_one_writes_and_the_others_read(improve: bool, writers: int) -> None:
    with serve_provider(SimulatedProvider(script=SLOW * 5)) as url, serve_gateway(url, improve=improve) as gateway:
        usages = ask_concurrently(5, gateway)
    assert sum(usage["cache_creation_input_tokens"] > 1_000 for usage in usages) == writers
    assert sum(usage["cache_read_input_tokens"] > 1_000 for usage in usages) == (4 if improve else 0)


def test_a_failed_request_leaves_no_cache_for_the_waiting_ones() -> None:
    with serve_provider(SimulatedProvider(script=SLOW * 5)) as url, serve_gateway(url, improve=True) as gateway:
        assert "error" in ask(gateway, body("Crane?"), {"x-api-key": "any", "x-holdfast-fault": "529"})
        usages = ask_concurrently(3, gateway)
    assert sum(usage["cache_creation_input_tokens"] > 1_000 for usage in usages) == 1


def test_of_concurrent_requests_to_two_gateways_one_writes_and_the_others_read() -> None:
    store = MemoryStore()
    with (
        serve_provider(SimulatedProvider(script=SLOW * 6)) as url,
        serve_gateway(url, improve=True, store=store) as first,
        serve_gateway(url, improve=True, store=store) as second,
    ):
        usages = ask_concurrently(6, first, second)
    assert sum(usage["cache_creation_input_tokens"] > 1_000 for usage in usages) == 1
    assert sum(usage["cache_read_input_tokens"] > 1_000 for usage in usages) == 5


def pings(gateway: ServedGateway) -> list[CachePinged]:
    (session,) = gateway.recorded_sessions()
    return [event.payload for event in gateway.store.read(session) if isinstance(event.payload, CachePinged)]


class IdleChat:
    """A conversation through a gateway with keep-alive; its pauses take no real time, and pings are sent in them."""

    def __init__(
        self,
        *,
        usd: str = "1",
        upgrades: bool = True,
        store: MemoryStore | None = None,
        grants: dict[str, KeyLimits] | None = None,
    ) -> None:
        row = shipped_models()[SONNET]
        rules = msgspec.structs.replace(row.cache, ttl_upgrade=upgrades)
        models = {**shipped_models(), SONNET: msgspec.structs.replace(row, cache=rules)}
        self.clock = ManualClock(1_000_000)
        self.provider = SimulatedProvider(clock=self.clock, models=models)
        self.stack = ExitStack()
        self.url = self.stack.enter_context(serve_provider(self.provider))
        self.gateway = self.stack.enter_context(
            serve_gateway(self.url, store=store, improve=True, keep_alive_usd=usd, clock=self.clock, grants=grants)
        )
        self.headers: dict[str, str] | None = None
        self.texts: list[str] = []
        self.ping_count = 0

    def __enter__(self) -> "IdleChat":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stack.close()

    def say(self, text: str, *, repeated: str | None = None, pause: float = 10) -> dict[str, Any]:
        """Ask, and then wait; `repeated` replaces the reply in later requests."""
        self.texts.append(text)
        reply = ask(self.gateway, body(*self.texts), self.headers)
        self.texts.append(reply["content"][0]["text"] if repeated is None else repeated)
        self.wait(pause)
        usage: dict[str, Any] = reply["usage"]
        return usage

    def wait(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.advance(min(10, until - self.clock.now))
            self.ping_count += self.gateway.send_due_pings()


def cacheable_text(message: dict[str, Any]) -> tuple[str, str]:
    content = message["content"]
    return message["role"], content if isinstance(content, str) else content[0]["text"]


def test_a_conversation_with_long_pauses_is_kept_alive_and_the_cost_is_recorded() -> None:
    with IdleChat() as chat:
        for number, pause in enumerate((10, 10, 4000, 4000)):
            chat.say(f"question {number}", pause=pause)
        later = chat.say("later")
        ping_requests = pings(chat.gateway)
        spending = list(iterate_spending(chat.gateway.store))
    assert [(ping.kind, ping.ttl) for ping in ping_requests] == [("upgrade", "1h"), ("refresh", "1h")]
    assert all(ping.usage.cache_read > 1_000 and ping.usage.output == 0 for ping in ping_requests)
    assert later["cache_read_input_tokens"] > 7_000
    assert later["cache_creation_input_tokens"] < 100
    assert sum(entry.calls for entry in spending) == 5
    assert [entry.dollars for entry in spending if not entry.calls] == [float(ping.cost_usd) for ping in ping_requests]


@pytest.mark.parametrize("is_spent", [False, True])
def test_a_ping_is_reserved_in_the_budget_of_its_key_and_not_sent_once_that_is_spent(is_spent: bool) -> None:
    made = make_key("gateway", at=0.0, random_bytes=lambda size: bytes(size), name="team")
    with IdleChat(grants={"*": KeyLimits(budget_usd_a_day=5.0)}) as chat:
        records, day = chat.gateway.service.records, "1970-01-12"
        records.add_key(made.row)
        chat.headers = {"x-holdfast-key": made.key, "x-api-key": "any"}
        for number, pause in enumerate((10, 10, 4000, 10)):
            chat.say(f"question {number}", pause=pause)
        earlier = chat.ping_count
        if is_spent:
            records.settle_budget(BudgetCharge("another", made.row.id, day, 5 * 10**12, chat.clock()))
        chat.wait(4000)
        costs = [ping.cost_usd for ping in pings(chat.gateway)]
        calls = [entry.dollars for entry in iterate_spending(chat.gateway.store) if entry.calls]
        row = records.get_budget_day(made.row.id, day)
    assert (chat.ping_count > earlier) is not is_spent
    assert row.reserved == 0
    assert row.spent == pytest.approx((float(sum(costs)) + sum(calls) + 5 * is_spent) * 10**12, abs=1_000)


def test_an_upgrade_ping_holds_the_reply_as_the_client_repeats_it() -> None:
    with IdleChat() as chat:
        for number, pause in enumerate((10, 10, 4000, 400)):
            chat.say(f"question {number}", pause=pause)
        chat.say("later")
        ping, after = (json.loads(request.body)["messages"] for request in chat.provider.requests[-2:])
    assert ping[-1] == {"role": "user", "content": [{"type": "text", "text": "Wait."}]}
    assert ping[-2]["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert cacheable_text(after[len(ping) - 2]) == cacheable_text(ping[-2])


def test_where_ttls_do_not_upgrade_the_last_request_is_repeated() -> None:
    with IdleChat(upgrades=False) as chat:
        for number in range(12):
            chat.say(f"question {number}", pause=420)
        later = chat.say("later")
        ping_requests = pings(chat.gateway)
    assert ping_requests
    assert {(ping.kind, ping.usage.cache_write) for ping in ping_requests[-3:]} == {("refresh", 0)}
    assert later["cache_read_input_tokens"] > 7_000


def test_a_conversation_without_long_pauses_is_not_pinged() -> None:
    """Nothing says that the client returns, so a ping is not expected to pay."""
    with IdleChat() as chat:
        for number in range(6):
            chat.say(f"question {number}", pause=30)
        chat.wait(20_000)
        assert chat.ping_count == 0


def test_a_reply_that_the_client_does_not_repeat_is_not_expected_in_the_cache() -> None:
    with IdleChat() as chat:
        for number, pause in enumerate((10, 10, 4000)):
            chat.say(f"question {number}", pause=pause)
        chat.say("not repeated", repeated="Something else.", pause=400)
        assert chat.ping_count == 1
        usages = [chat.say(f"later {number}") for number in range(3)]
    # The prefix before the reply was refreshed by the ping; from the next call on all of it is read again.
    assert usages[0]["cache_read_input_tokens"] > 7_000
    assert all(usage["cache_creation_input_tokens"] < 100 for usage in usages[1:])


def test_pings_are_part_of_the_memory_that_another_process_restores() -> None:
    with IdleChat() as chat:
        for number, pause in enumerate((10, 10, 4000, 400)):
            chat.say(f"question {number}", pause=pause)
        (ping,) = pings(chat.gateway)
        (restored,) = restore_plans(chat.gateway.store)
    assert restored.memory.used_at == ping.sent_at
    assert restored.memory.anchor is not None
    assert restored.memory.anchor.block == ping.breakpoint_block


@pytest.mark.parametrize("calls_elsewhere", [0, 1, 2])
def test_only_the_gateway_that_had_the_last_call_pings_a_conversation(calls_elsewhere: int) -> None:
    store = MemoryStore()
    with (
        IdleChat(store=store) as chat,
        serve_gateway(chat.url, store=store, improve=True, keep_alive_usd="1", clock=chat.clock) as other,
    ):
        for number, pause in enumerate((10, 10, 4000, 10)):
            chat.say(f"question {number}", pause=pause)
        chat.gateway.shared_conversations()
        for number in range(calls_elsewhere):
            chat.texts.append(f"elsewhere {number}")
            chat.texts.append(ask(other, body(*chat.texts))["content"][0]["text"])
            other.shared_conversations()
        here, elsewhere = chat.ping_count, 0
        for _ in range(400):
            chat.wait(10)
            elsewhere += other.send_due_pings()
        assert (chat.ping_count > here, elsewhere > 0) == (calls_elsewhere == 0, calls_elsewhere > 0)


def test_the_gateway_of_the_call_before_pings_a_conversation_whose_gateway_has_died() -> None:
    store = MemoryStore()
    with (
        IdleChat(store=store, upgrades=False) as chat,
        serve_gateway(chat.url, store=store, improve=True, keep_alive_usd="1", clock=chat.clock) as other,
    ):
        for number, pause in enumerate((420, 10, 420, 10, 420, 100)):
            chat.say(f"question {number}", pause=pause)
        chat.gateway.shared_conversations()
        chat.texts += ["elsewhere", ask(other, body(*chat.texts, "elsewhere"))["content"][0]["text"]]
        other.shared_conversations()
        called_at, before = chat.clock.now, chat.ping_count
        # The other gateway sends no ping any more.
        while chat.clock.now < called_at + 320:
            chat.clock.advance(2.5)
            chat.ping_count += chat.gateway.send_due_pings()
        ((kind, sent_at),) = [(ping.kind, ping.sent_at) for ping in pings(chat.gateway)[before:]]
        later = chat.say("later")
    assert kind == "refresh"
    assert called_at + 285 < sent_at < called_at + 300
    assert later["cache_read_input_tokens"] > 7_000
    assert later["cache_creation_input_tokens"] < 200


def test_a_gateway_that_is_late_does_not_ping_after_another_has_taken_over() -> None:
    store = MemoryStore()
    with (
        IdleChat(store=store, upgrades=False) as chat,
        serve_gateway(chat.url, store=store, improve=True, keep_alive_usd="1", clock=chat.clock) as other,
    ):
        for number, pause in enumerate((420, 10, 420, 10, 420, 100)):
            chat.say(f"question {number}", pause=pause)
        chat.gateway.shared_conversations()
        chat.texts += ["elsewhere", ask(other, body(*chat.texts, "elsewhere"))["content"][0]["text"]]
        other.shared_conversations()
        sent, late = 0, 0
        for _ in range(400):
            chat.clock.advance(2.5)
            sent += chat.gateway.send_due_pings()
            # As a process that was suspended when its ping was due.
            late += other.send_due_pings() if sent else 0
    assert sent > 0
    assert late == 0


def test_a_request_that_another_gateway_answered_again_is_not_pinged() -> None:
    store = MemoryStore()
    with IdleChat(store=store) as chat, serve_gateway(chat.url, store=store, improve=True, clock=chat.clock) as other:
        for number, pause in enumerate((10, 10, 4000, 10)):
            chat.say(f"question {number}", pause=pause)
        chat.gateway.shared_conversations()
        before = chat.ping_count
        ask(other, body(*chat.texts[:-1]))
        other.shared_conversations()
        chat.wait(4_000)
        assert chat.ping_count == before


@pytest.mark.parametrize(("most", "sent"), [("1", 2), ("0.002", 1), ("0.0001", 0)])
def test_keep_alive_stops_when_the_client_does_not_return_and_at_the_daily_limit(most: str, sent: int) -> None:
    with IdleChat(usd=most) as chat:
        for number, pause in enumerate((10, 10, 4000)):
            chat.say(f"question {number}", pause=pause)
        chat.say("last", pause=100_000)
        assert chat.ping_count == sent


def test_continued_refused_and_expired_conversations_are_not_kept_alive() -> None:
    with IdleChat() as chat:
        for number, pause in enumerate((10, 10, 4000, 290)):
            chat.say(f"question {number}", pause=pause)
        assert chat.ping_count == 1
        # The process was suspended: nothing is left to refresh.
        chat.clock.advance(4_000)
        assert chat.gateway.send_due_pings() == 0
        chat.say("next", pause=200)
        chat.texts.append("refused")
        ask(chat.gateway, {**body(*chat.texts), "max_tokens": -1})
        chat.wait(4_000)
        assert chat.ping_count == 1


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
