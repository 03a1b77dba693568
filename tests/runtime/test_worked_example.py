"""A session through layers, breakpoints, adapter and cache model: the exact reads, writes and cost of each call."""

import re
from collections.abc import AsyncGenerator
from decimal import Decimal

import msgspec
import pytest
from tests.support.agents import Agent, MakeAgent, says

from holdfast import tool
from holdfast.cachemodel.machine import run_call
from holdfast.cachemodel.values import CacheCall, CacheEntries, CacheScope, PromptPrefix
from holdfast.catalog.lookup import find_model, price_at, utc_date
from holdfast.economics.cost import cost_usd
from holdfast.events.payloads.calls import LlmCallCompleted, RequestPrepared
from holdfast.events.payloads.session import ContextInjected
from holdfast.providers.adapter import Endpoint
from holdfast.providers.registry import get_adapter
from holdfast.providers.wire_request import OnRetry
from holdfast.types.blocks import ToolUse
from holdfast.types.prompt import LayerText
from holdfast.types.reply import Reply
from holdfast.types.request_buffer import RequestBuffer
from holdfast.types.usage import Usage

MODEL = find_model("anthropic:claude-sonnet-4-6")
ANTHROPIC = get_adapter("anthropic")


def stated_tokens(data: bytes) -> int:
    """Every block states its size, as in `[600]`."""
    match = re.search(rb"\[(\d+)\]", data)
    assert match, data
    return int(match[1])


class MeasuredTransport:
    """A provider that counts the tokens that the blocks state, with the cache model as its cache."""

    def __init__(self, replies: list[Reply]) -> None:
        self.replies = replies
        self.entries = CacheEntries()
        self.agent: Agent | None = None

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        assert self.agent is not None
        request = ANTHROPIC.decode_request(body)
        request_buffer = RequestBuffer(ANTHROPIC, stated_tokens)
        for segment in request.prompt.segments:
            request_buffer.extend(ANTHROPIC.encode_segment(segment))
        total, prefixes = 0, []
        for block, digest, tokens in zip(
            request_buffer.blocks, request_buffer.digests, request_buffer.tokens, strict=True
        ):
            total += tokens
            prefixes.append(PromptPrefix(block.section, digest.digest, total))
        call = CacheCall(CacheScope("w", MODEL.id), tuple(prefixes), request.plan.breakpoints, self.agent.clock())
        outcome, self.entries = run_call(MODEL.cache, self.entries, call)
        reply = msgspec.structs.replace(self.replies.pop(0), usage=outcome.usage)
        for chunk in ANTHROPIC.encode_stream(reply):
            yield chunk

    async def aclose(self) -> None:
        pass


def sized_tool(name: str):  # type: ignore[no-untyped-def]
    schema = {"type": "object", "properties": {"size": {"type": "string"}}}
    return tool(lambda size: "[900]", name=name, description="[600]", input_schema=schema)  # type: ignore[arg-type]


async def play(agent: MakeAgent, *, layout: str = "default") -> Agent:
    memory = {"text": ""}
    transport = MeasuredTransport(
        [
            says("text [30]", ToolUse("t1", "T1", '{"size":"[50]"}')),
            says("text [120]"),
            says("text [80]"),
            says("text [10]"),
        ]
    )
    harness = agent(
        model=MODEL.id,
        system_prompt="S [1500]",
        tools=[sized_tool("T2"), sized_tool("T1")],
        volatile=lambda: [LayerText("environment", "day and branch [40]"), LayerText("memory", memory["text"])],
        transport=transport,
        layout=layout,
        recall_history=False,  # the example has two tools
    )
    transport.agent = harness
    async with harness.session as session:
        turn = session.send("ask [60]")
        harness.session.subscribe(
            lambda event: harness.clock.advance(12) if event.id in first_completed_ids(harness) else None
        )
        await turn
        harness.clock.advance(48)
        memory["text"] = "remember [75]" if layout == "seed" else "remember [35]"
        await session.send("ask [45]")
        harness.clock.advance(20 * 60)
        await session.send("ask [30]")
    return harness


def first_completed_ids(harness: Agent) -> list[str]:
    """The id of the event that ends the first call: the second starts twelve seconds after it."""
    return [event.id for event in harness.events if isinstance(event.payload, LlmCallCompleted)][:1]


def usages(harness: Agent) -> list[Usage]:
    return [event.usage for event in harness.payloads if isinstance(event, LlmCallCompleted)]


def units(harness: Agent) -> list[Decimal]:
    price = price_at(MODEL, utc_date(harness.clock()), 0)
    return [
        cost_usd(msgspec.structs.replace(usage, output=0), price) * 1_000_000 / price.input for usage in usages(harness)
    ]


async def test_every_call_reads_writes_and_costs_what_the_example_says(agent: MakeAgent) -> None:
    harness = await play(agent)
    assert usages(harness) == [
        Usage(cache_write_5m=2_800),
        Usage(cache_read=2_800, cache_write_5m=980),
        Usage(cache_read=3_780, cache_write_5m=200),
        Usage(cache_write_5m=4_090),
    ]
    assert units(harness) == [Decimal(3500), Decimal(1505), Decimal(628), Decimal("5112.5")]


async def test_volatile_text_is_sent_once_and_becomes_history(agent: MakeAgent) -> None:
    harness = await play(agent)
    layers = [event.layer for event in harness.payloads if isinstance(event, ContextInjected)]
    assert layers == ["environment", "memory"]


async def test_the_second_call_equals_the_first_through_its_five_blocks(agent: MakeAgent) -> None:
    harness = await play(agent)
    prepared = [event for event in harness.payloads if isinstance(event, RequestPrepared)]
    assert [event.shared_blocks for event in prepared] == [0, 5, 8, 11]


@pytest.mark.changes_prefix(reason="the seed layout puts volatile text before the history")
async def test_in_the_seed_layout_an_edit_rewrites_everything_after_the_system_prompt(agent: MakeAgent) -> None:
    harness = await play(agent, layout="seed")
    assert usages(harness)[2] == Usage(cache_read=2_700, cache_write_5m=1_280)
    assert units(harness)[2] == 1_870
