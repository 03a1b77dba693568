"""A wrapped client's idle conversations are pinged where the planner expects that to pay."""

import asyncio
import gc
import json
import weakref
from typing import Any

import anthropic as anthropic_sdk
import pytest

from holdfast.clock import ManualClock
from holdfast.events.payloads.cache import CachePinged
from holdfast.integrations import recorder_of, wrap
from holdfast.integrations.http_client import find_observer
from holdfast.integrations.keep_alive import ClientKeepAlive
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider

SYSTEM = "You look after the harbour, its cranes and its lights. " * 400
PAUSES = (10, 10, 4000, 4000)


def keep_alive_of(client: Any) -> ClientKeepAlive:
    observer = find_observer(client._client)
    assert observer is not None
    assert observer.keep_alive is not None
    return observer.keep_alive


def request(texts: list[str]) -> dict[str, Any]:
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    return {"model": "claude-sonnet-5-5", "max_tokens": 20, "system": SYSTEM, "messages": messages}


def play(url: str, clock: ManualClock, *, usd: float | None = 1.0) -> tuple[list[Any], list[CachePinged]]:
    bare = anthropic_sdk.Anthropic(base_url=url, api_key="any", max_retries=0)
    client = wrap(bare, store="memory:", clock=clock, keep_alive_usd=usd)
    texts, usages = list[str](), []
    for number, pause in enumerate((*PAUSES, 10)):
        texts.append(f"question {number}")
        message = client.messages.create(**request(texts))
        usages.append(message.usage)
        texts.append(message.content[0].text)
        for _ in range(pause // 10):
            clock.advance(10)
            if usd is not None:
                keep_alive_of(client).send_due_pings()
    events = recorder_of(client).read_events()
    pings = [event.payload for event in events if isinstance(event.payload, CachePinged)]
    client.close()
    return usages, pings


async def play_async(url: str, clock: ManualClock) -> tuple[list[Any], list[CachePinged]]:
    bare = anthropic_sdk.AsyncAnthropic(base_url=url, api_key="any", max_retries=0)
    client = wrap(bare, store="memory:", clock=clock, keep_alive_usd=1.0)
    texts, usages = list[str](), []
    for number, pause in enumerate((*PAUSES, 10)):
        texts.append(f"question {number}")
        message = await client.messages.create(**request(texts))
        usages.append(message.usage)
        texts.append(message.content[0].text)
        for _ in range(pause // 10):
            clock.advance(10)
            await asyncio.to_thread(keep_alive_of(client).send_due_pings)
    events = recorder_of(client).read_events()
    pings = [event.payload for event in events if isinstance(event.payload, CachePinged)]
    await client.close()
    return usages, pings


@pytest.mark.parametrize("is_async", [False, True])
def test_a_conversation_with_long_pauses_is_pinged_as_by_a_gateway_and_recorded(is_async: bool) -> None:
    clock = ManualClock(1_000_000)
    provider = SimulatedProvider(clock=clock)
    with serve_provider(provider) as url:
        usages, pings = asyncio.run(play_async(url, clock)) if is_async else play(url, clock)
    assert [(ping.kind, ping.ttl) for ping in pings] == [("upgrade", "1h"), ("refresh", "1h")]
    assert sum(ping.cost_usd for ping in pings) > 0
    assert usages[-1].cache_read_input_tokens > 7_000
    assert usages[-1].cache_creation_input_tokens < 100
    sent = [json.loads(request.body) for request in provider.requests]
    assert [body["messages"][-1]["content"] for body in sent if body["max_tokens"] == 0] == [
        [{"type": "text", "text": "Wait."}]
    ] * 2


@pytest.mark.parametrize("usd", [None, 0.0001])
def test_nothing_is_pinged_unless_asked_for_and_within_the_daily_limit(usd: float | None) -> None:
    clock = ManualClock(1_000_000)
    with serve_provider(SimulatedProvider(clock=clock)) as url:
        usages, pings = play(url, clock, usd=usd)
    assert not pings
    assert usages[-1].cache_read_input_tokens == 0


def test_a_failed_ping_raises_nothing_and_ends_the_pings() -> None:
    clock = ManualClock(1_000_000)
    with serve_provider(SimulatedProvider(clock=clock)) as url:
        client = wrap(
            anthropic_sdk.Anthropic(base_url=url, api_key="any"), store="memory:", clock=clock, keep_alive_usd=1
        )
        texts = list[str]()
        for pause in (10, 10, 4000, 280):
            texts.append("question")
            texts.append(client.messages.create(**request(texts)).content[0].text)
            clock.advance(pause)
    clock.advance(10)
    keep_alive = keep_alive_of(client)
    assert [keep_alive.send_due_pings() for _ in range(3)] == [1, 0, 0]


def test_an_unused_client_is_collected_and_no_longer_pinged() -> None:
    clock = ManualClock(1_000_000)
    with serve_provider(SimulatedProvider(clock=clock)) as url:
        client = wrap(
            anthropic_sdk.Anthropic(base_url=url, api_key="any"), store="memory:", clock=clock, keep_alive_usd=1
        )
        texts = list[str]()
        for pause in (10, 10, 4000, 10):
            texts.append("question")
            texts.append(client.messages.create(**request(texts)).content[0].text)
            clock.advance(pause)
        keep_alive, reference = keep_alive_of(client), weakref.ref(client)
        del client
        gc.collect()
        assert reference() is None
        clock.advance(280)
        assert keep_alive.send_due_pings() == 0
