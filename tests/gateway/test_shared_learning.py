"""What conversations taught about pauses and caches is in the store, for later and for other processes."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anthropic as anthropic_sdk
from tests.gateway.test_restarts import ask
from tests.support.served_gateway import ServedGateway, serve_gateway

from holdfast.clock import ManualClock
from holdfast.events.log import EventLog
from holdfast.events.payloads.cache import CacheLearned
from holdfast.integrations import wrap
from holdfast.ledger.learned import summarize_learned
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.server_thread import serve_provider

GUIDE = "You look after the harbour, its cranes and its lights. " * 400
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
PAUSE_SECONDS = 1_200
CALLS = 10


def body(who: str, turns: int) -> dict[str, Any]:
    texts = [f"{who} {turn}" for turn in range(2 * turns + 1)]
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    return {"model": "claude-sonnet-4-6", "max_tokens": 20, "system": GUIDE, "tools": [TOOL], "messages": messages}


def converse(gateway: ServedGateway, clock: ManualClock, who: str) -> None:
    for turn in range(CALLS):
        ask(gateway.url, body(who, turn))
        clock.advance(PAUSE_SECONDS)
    gateway.recorded_sessions()


def ttls(provider: SimulatedProvider) -> set[str]:
    """The TTLs of the last request."""
    sent = json.dumps(json.loads(provider.requests[-1].body))
    return {ttl for ttl in ("5m", "1h") if f'"ttl": "{ttl}"' in sent} or {"5m"}


def learned_calls(log: EventLog) -> dict[str, int]:
    """The calls of each conversation by its newest record."""
    found = {}
    for event in log.learned_events(limit=100):
        assert isinstance(event.payload, CacheLearned)
        found[event.session_id] = event.payload.calls
    return found


def test_a_restarted_gateway_plans_new_conversations_with_the_pauses_of_earlier_ones() -> None:
    clock, store = ManualClock(1_000_000), MemoryStore()
    provider = SimulatedProvider(clock=clock)
    with serve_provider(provider) as url:
        with serve_gateway(url, store=store, clock=clock, improve=True) as gateway:
            ask(gateway.url, body("before", 0))
            assert ttls(provider) == {"5m"}
            converse(gateway, clock, "first")
        assert sorted(learned_calls(store).values()) == [1, CALLS]
        with serve_gateway(url, store=store, clock=clock, improve=True) as gateway:
            ask(gateway.url, body("second", 0))
            assert ttls(provider) == {"1h"}
    assert summarize_learned(store).idle_times[0].pause_share > 0.5


def test_a_gateway_that_has_been_running_learns_from_another_on_the_same_store(tmp_path: Path) -> None:
    clock, address = ManualClock(1_000_000), str(tmp_path / "s.db")
    provider = SimulatedProvider(clock=clock)
    with (
        closing(SqliteStore(address)) as one,
        closing(SqliteStore(address)) as other,
        serve_provider(provider) as url,
        serve_gateway(url, store=one, clock=clock, improve=True) as gateway,
        serve_gateway(url, store=other, clock=clock, improve=True) as replica,
    ):
        ask(replica.url, body("before", 0))
        converse(gateway, clock, "first")
        clock.advance(4_000)
        # A conversation counts as ended once another call shows how late it is.
        ask(gateway.url, body("later", 0))
        gateway.recorded_sessions()
        one.append(()).result()
        assert CALLS in learned_calls(one).values()
        ask(replica.url, body("second", 0))
        assert ttls(provider) == {"1h"}


PROGRAM = """
import sys
import anthropic
from holdfast.clock import ManualClock
from holdfast.integrations import wrap
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider
from tests.gateway.test_shared_learning import CALLS, PAUSE_SECONDS, body
clock = ManualClock(1_000_000)
with serve_provider(SimulatedProvider(clock=clock)) as url:
    client = wrap(anthropic.Anthropic(base_url=url, api_key="any"), store=sys.argv[1], clock=clock)
    for turn in range(CALLS):
        client.messages.create(**body("first", turn))
        clock.advance(PAUSE_SECONDS)
"""


def test_a_wrapped_client_learns_from_one_in_another_process(tmp_path: Path) -> None:
    address = str(tmp_path / "s.db")
    subprocess.run([sys.executable, "-c", PROGRAM, address], check=True, timeout=60)
    clock = ManualClock(1_100_000)
    provider = SimulatedProvider(clock=clock)
    with serve_provider(provider) as url:
        client = wrap(anthropic_sdk.Anthropic(base_url=url, api_key="any"), store=address, clock=clock)
        client.messages.create(**body("second", 0))
        assert ttls(provider) == {"1h"}


def test_a_conversation_that_hops_between_two_gateways_keeps_its_prefix_and_its_tool_order(tmp_path: Path) -> None:
    clock, address = ManualClock(1_000_000), str(tmp_path / "s.db")
    provider = SimulatedProvider(clock=clock)
    tools = [{**TOOL, "name": name} for name in ("look", "open", "shut")]
    with (
        closing(SqliteStore(address)) as one,
        closing(SqliteStore(address)) as other,
        serve_provider(provider) as url,
        serve_gateway(url, store=one, clock=clock, improve=True) as gateway,
        serve_gateway(url, store=other, clock=clock, improve=True) as replica,
    ):
        for turn in range(6):
            asked = (gateway, replica)[turn % 2]
            ask(asked.url, {**body("hop", turn), "tools": tools[turn % 3 :] + tools[: turn % 3]})
            assert asked.shared_plans.wait_until_written(10)
            clock.advance(400)
        calls = [shared.memory.calls for shared in gateway.shared_conversations()]
    sent = [json.loads(request.body) for request in provider.requests]
    assert {tuple(tool["name"] for tool in request["tools"]) for request in sent} == {("look", "open", "shut")}
    # Each gateway continued with what the other had seen, pauses included: two rows, for the last two calls.
    assert calls == [5, 6]
    assert ttls(provider) == {"1h"}
