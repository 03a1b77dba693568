"""A session that goes on with another model: quoted, agreed to, recorded, resumed."""

from decimal import Decimal

import pytest

from holdfast.canonical.blocks import Thinking
from holdfast.clock import ManualClock
from holdfast.errors import UserError
from holdfast.events.payloads import LlmCallCompleted, ModelSwitched
from holdfast.ledger.calls import calls
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore

SONNET, OPUS = "anthropic:claude-sonnet-5-5", "anthropic:claude-opus-5-5"
THINKS = """
{"content": [{"type": "thinking", "thinking": "Easy."}, {"type": "text", "text": "One."}]}
{"content": "Two."}
{"content": "Three."}
"""
PROMPT = "Follow the rules of the house. " * 200


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def options(store: MemoryStore) -> Options:
    clock = ManualClock()
    provider = SimulatedProvider(clock=clock, script=THINKS)
    return {"model": SONNET, "system_prompt": PROMPT, "store": store, "wire": provider, "clock": clock}


def events_of(store: MemoryStore, kind: type) -> list[object]:
    (row,) = store.sessions()
    return [event.payload for event in store.read(row.id) if isinstance(event.payload, kind)]


async def test_the_next_message_goes_to_the_other_model_and_the_history_with_it(
    options: Options, store: MemoryStore
) -> None:
    async with Session.create(**options) as session:
        await session.send("one")
        await session.switch_model(OPUS)
        answer = await session.send("two")
        assert session.model == OPUS
        assert answer.text == "Two."
        assert [message.role for message in session.history] == ["user", "assistant", "user", "assistant"]
        assert not any(isinstance(block, Thinking) for message in session.history for block in message.content)
    models = [call.model for call in events_of(store, LlmCallCompleted) if isinstance(call, LlmCallCompleted)]
    assert models == [SONNET, OPUS]


async def test_the_quote_is_what_the_cold_prefix_then_costs(options: Options, store: MemoryStore) -> None:
    async with Session.create(**options) as session:
        await session.send("one")
        quote = session.quote_switch(OPUS)
        assert (quote.model_before, quote.model_after, session.model) == (SONNET, OPUS, SONNET)
        assert await session.switch_model(OPUS) == quote
        await session.send("two")
    after = [call for call in calls(store.read(session.id)) if call.model == OPUS]
    assert after[0].usage.cache_read == 0
    assert abs(after[0].usage.tokens_sent - quote.prompt_tokens) < 40
    assert abs(after[0].cost_usd - quote.cold_usd) < Decimal("0.001")
    assert quote.warm_usd < quote.cold_usd / 10
    assert quote.dropped == (("thinking", 1),)
    assert str(quote).startswith(f"{OPUS} starts cold: about {quote.prompt_tokens} tokens for $")
    assert "does not cache" not in str(quote)


async def test_what_was_switched_and_left_behind_is_on_the_log(options: Options, store: MemoryStore) -> None:
    async with Session.create(**options) as session:
        await session.send("one")
        quote = await session.switch_model(OPUS)
    (switched,) = events_of(store, ModelSwitched)
    assert isinstance(switched, ModelSwitched)
    assert (switched.before, switched.after, switched.parameters.model) == (SONNET, OPUS, "claude-opus-5-5")
    assert (switched.prompt_tokens, switched.cold_cost_usd) == (quote.prompt_tokens, quote.cold_usd)
    assert (switched.dropped, switched.reworded_passages) == ((("thinking", 1),), 0)


async def test_a_switch_is_no_moved_prefix_and_the_call_after_next_reads_the_cache(
    options: Options, store: MemoryStore
) -> None:
    async with Session.create(**options) as session:
        await session.send("one")
        await session.switch_model(OPUS)
        await session.send("two")
        await session.send("three")
    records = list(calls(store.read(session.id)))
    assert [record.prefix_held for record in records] == [True, True, True]
    assert [record.usage.cache_read > 0 for record in records] == [False, False, True]


async def test_a_resumed_session_goes_on_with_the_model_it_was_switched_to(options: Options) -> None:
    async with Session.create(**options) as session:
        await session.send("one")
        await session.switch_model(OPUS)
        await session.send("two")
    again: Options = {name: value for name, value in options.items() if name not in ("model", "system_prompt")}  # type: ignore[assignment]  # the same options, less two
    async with Session.resume(session.id, **again) as resumed:
        assert resumed.model == OPUS
        answer = await resumed.send("three")
    assert answer.usage.cache_read > 0


async def test_a_switch_to_an_unknown_model_changes_nothing(options: Options, store: MemoryStore) -> None:
    async with Session.create(**options) as session:
        with pytest.raises(UserError, match="did you mean anthropic:claude-opus-5-5"):
            await session.switch_model("anthropic:claude-opus-55")
        assert session.model == SONNET
    assert events_of(store, ModelSwitched) == []


async def test_the_model_is_not_switched_in_the_middle_of_a_turn(options: Options) -> None:
    async with Session.create(**options) as session:
        async for _ in session.stream("one"):
            with pytest.raises(UserError, match="a turn is under way"):
                await session.switch_model(OPUS)
            break


async def test_a_switch_before_the_first_message_is_a_switch_too(options: Options) -> None:
    async with Session.create(**options) as session:
        quote = await session.switch_model(OPUS)
        assert quote.prompt_tokens > 1000
        assert (await session.send("one")).text == "One."
