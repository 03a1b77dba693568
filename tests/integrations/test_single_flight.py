"""Of a wrapped client's concurrent calls with one prefix, one writes the cache and the others wait to read it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import pytest

from holdfast.integrations import wrap
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider

# The first content takes a while, so that all calls are under way before a response begins.
SLOW = '{"fault": "slow;seconds=0.3"}\n{"content": "Yes."}\n'
SYSTEM = "You look after the harbour, its cranes and its lights. " * 400
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}


def request(who: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Question {who}?"}]
    return {"model": "claude-sonnet-4-6", "max_tokens": 20, "system": SYSTEM, "tools": [TOOL], "messages": messages}


def ask_in_threads(url: str) -> list[Any]:
    bare = anthropic.Anthropic(base_url=url, api_key="any", max_retries=0)
    with wrap(bare, store="memory:") as client, ThreadPoolExecutor(4) as pool:
        return [message.usage for message in pool.map(lambda who: client.messages.create(**request(who)), range(4))]


async def ask_in_tasks(url: str) -> list[Any]:
    bare = anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0)
    async with wrap(bare, store="memory:") as client:
        messages = await asyncio.gather(*(client.messages.create(**request(who)) for who in range(4)))
    return [message.usage for message in messages]


@pytest.mark.parametrize("is_async", [False, True])
def test_concurrent_calls_write_their_common_prefix_once(is_async: bool) -> None:
    with serve_provider(SimulatedProvider(script=SLOW * 4)) as url:
        usages = asyncio.run(ask_in_tasks(url)) if is_async else ask_in_threads(url)
    assert sum(usage.cache_creation_input_tokens > 4_000 for usage in usages) == 1
    assert sum(usage.cache_read_input_tokens > 4_000 for usage in usages) == 3


def test_a_call_that_fails_makes_way_for_those_that_wait() -> None:
    with serve_provider(SimulatedProvider(script=SLOW * 4)) as url:
        bare = anthropic.Anthropic(base_url=url, api_key="any", max_retries=0)
        with wrap(bare, store="memory:") as client, ThreadPoolExecutor(2) as pool:
            fault = {"x-holdfast-fault": "529"}
            failing = pool.submit(lambda: client.messages.create(**request(0), extra_headers=fault))
            other = pool.submit(lambda: client.messages.create(**request(1)))
            assert isinstance(failing.exception(), anthropic.APIStatusError)
            assert (other.result().usage.cache_creation_input_tokens or 0) > 4_000
