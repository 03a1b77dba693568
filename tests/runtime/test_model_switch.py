"""Switching a session to another model: quote, switch, record and resume."""

import asyncio
from decimal import Decimal
from pathlib import Path

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import ProviderError, StoreError, UserError
from holdfast.events.payloads.calls import LlmCallCompleted, ModelSwitched
from holdfast.ledger.calls import iter_calls
from holdfast.providers import connection_pool
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.server import serve_simulator
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Base64Source, Image, Text, Thinking
from holdfast.types.prompt import LayerText

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
    return {"model": SONNET, "system_prompt": PROMPT, "store": store, "transport": provider, "clock": clock}


def events_of(store: MemoryStore, kind: type) -> list[object]:
    (row,) = store.sessions()
    return [event.payload for event in store.read(row.id) if isinstance(event.payload, kind)]


async def test_the_next_message_goes_to_the_other_model_with_the_history(options: Options, store: MemoryStore) -> None:
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


async def test_the_quote_equals_the_cost_of_the_cold_prefix(options: Options, store: MemoryStore) -> None:
    async with Session.create(**options) as session:
        await session.send("one")
        quote = session.quote_switch(OPUS)
        assert (quote.model_before, quote.model_after, session.model) == (SONNET, OPUS, SONNET)
        assert await session.switch_model(OPUS) == quote
        await session.send("two")
    after = [call for call in iter_calls(store.read(session.id)) if call.model == OPUS]
    assert after[0].usage.cache_read == 0
    assert abs(after[0].usage.tokens_sent - quote.prompt_tokens) < 40
    assert abs(after[0].cost_usd - quote.cold_usd) < Decimal("0.001")
    assert quote.warm_usd < quote.cold_usd / 10
    assert quote.dropped == (("thinking", 1),)
    assert str(quote).startswith(f"{OPUS} starts cold: about {quote.prompt_tokens} tokens for $")
    assert "does not cache" not in str(quote)


async def test_the_switch_and_the_dropped_blocks_are_recorded(options: Options, store: MemoryStore) -> None:
    async with Session.create(**options) as session:
        await session.send("one")
        quote = await session.switch_model(OPUS)
    (switched,) = events_of(store, ModelSwitched)
    assert isinstance(switched, ModelSwitched)
    assert (switched.before, switched.after, switched.parameters.model) == (SONNET, OPUS, "claude-opus-5-5")
    assert (switched.prompt_tokens, switched.cache_miss_cost_usd) == (quote.prompt_tokens, quote.cold_usd)
    assert (switched.dropped, switched.reworded_entries) == ((("thinking", 1),), 0)


async def test_a_switch_is_no_prefix_change_and_the_second_call_after_it_reads_the_cache(
    options: Options, store: MemoryStore
) -> None:
    async with Session.create(**options) as session:
        await session.send("one")
        await session.switch_model(OPUS)
        await session.send("two")
        await session.send("three")
    records = list(iter_calls(store.read(session.id)))
    assert [record.is_prefix_unchanged for record in records] == [True, True, True]
    assert [record.usage.cache_read > 0 for record in records] == [False, False, True]


async def test_a_resumed_session_continues_with_the_switched_model(options: Options) -> None:
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
            with pytest.raises(UserError, match="a turn is in progress"):
                await session.switch_model(OPUS)
            break


async def test_a_switch_before_the_first_message_works_too(options: Options) -> None:
    async with Session.create(**options) as session:
        quote = await session.switch_model(OPUS)
        assert quote.prompt_tokens > 1000
        assert (await session.send("one")).text == "One."


# Between providers

LOOP = """
{"content": [{"type": "thinking", "thinking": "A file."}, {"type": "text", "text": "I look."}, \
{"type": "tool_use", "name": "look", "input": {"at": "a.png"}}, {"type": "tool_use", "name": "look", "input": {}}]}
{"content": [{"type": "thinking", "thinking": "Enough."}, {"type": "text", "text": "Both are there."}]}
{"content": "Two."}
{"content": "Three."}
"""
EVERY = [
    SONNET,
    "openai:gpt-6.1-sol",
    "openai-chat:gpt-5.4",
    "gemini:gemini-3.8-flash",
    "openrouter:anthropic/claude-sonnet-5.5",
]


def look(at: str = "here") -> str:
    """Look somewhere."""
    if at == "here":
        raise ValueError("there is nothing here")
    return f"Seen: {at}."


@pytest.fixture
def openrouter_caching_enabled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f'[models."{EVERY[-1]}"]\nsupports_prompt_caching = true\n')
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))


@pytest.mark.usefixtures("openrouter_caching_enabled")
@pytest.mark.parametrize("after", EVERY)
@pytest.mark.parametrize("before", EVERY)
async def test_any_provider_can_take_over_from_any_other_and_then_reads_its_cache(before: str, after: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    provider = SimulatedProvider(clock=clock, script=LOOP)
    session = Session.create(
        model=before,
        system_prompt=PROMPT * 4,
        system_prompt_volatile="Branch: main.",
        tools=[look],
        store=store,
        transport=provider,
        clock=clock,
    )
    async with session:
        await session.send([Image(Base64Source("image/png", "iVBORw0KGgo=")), Text("What is this?")])
        quote = await session.switch_model(after)
        assert (await session.send("And now?")).text == "Two."
        assert (await session.send("Sure?")).text == "Three."
    records = list(iter_calls(store.read(session.id)))
    assert [record.model for record in records] == [before, before, after, after]
    assert [record.is_prefix_unchanged for record in records] == [True] * 4
    assert records[3].usage.cache_read > records[2].usage.tokens_sent * 0.9
    assert abs(records[2].usage.tokens_sent - quote.prompt_tokens) < 0.1 * quote.prompt_tokens
    statuses = [request.status for request in provider.requests]
    assert set(statuses) == {200}


@pytest.mark.usefixtures("openrouter_caching_enabled")
async def test_a_resumed_session_calls_the_provider_it_was_switched_to() -> None:
    store = MemoryStore()
    base_options: Options = {"store": store, "tools": [look], "transport": SimulatedProvider(script=LOOP)}
    created: Options = {**base_options, "model": SONNET, "system_prompt": PROMPT}
    async with Session.create(**created) as session:
        await session.send("What is this?")
        await session.switch_model("openai:gpt-6-luna")
    async with Session.resume(session.id, **base_options) as resumed:
        assert (await resumed.send("And now?")).text == "Two."
    (_, _, last) = iter_calls(store.read(session.id))
    assert last.model == "openai:gpt-6-luna"


async def test_another_provider_needs_a_key_or_an_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = await serve_simulator(SimulatedProvider())
    try:
        base_options: Options = {"model": SONNET, "store": MemoryStore(), "base_url": server.url, "api_key": "any"}
        async with Session.create(**base_options) as session:
            await session.send("one")
            with pytest.raises(UserError, match="no key for openai: set OPENAI_API_KEY"):
                await session.switch_model("openai:gpt-6-luna")
            assert (await session.send("still here?")).text == "Echo: still here?"
            await session.switch_model("openai:gpt-6-luna", base_url=f"{server.url}/v1", api_key="any")
            assert (await session.send("and now?")).text == "Echo: and now?"
    finally:
        await server.aclose()


async def test_a_callers_transport_serves_one_provider_only(options: Options) -> None:
    provider = SimulatedProvider()
    base_options: Options = {**options, "transport": provider.create_transport()}
    async with Session.create(**base_options) as session:
        await session.send("one")
        with pytest.raises(UserError, match=r"was created with a transport to anthropic; pass one to openai too"):
            await session.switch_model("openai:gpt-6-luna")
        await session.switch_model("openai:gpt-6-luna", transport=provider.create_transport(provider="openai"))
        assert (await session.send("and now?")).text == "Echo: and now?"


async def test_options_that_the_other_provider_does_not_support_are_refused_before_the_switch(options: Options) -> None:
    base_options: Options = {**options, "stop_sequences": ["END"]}
    async with Session.create(**base_options) as session:
        await session.send("one")
        with pytest.raises(UserError, match="stop"):
            await session.switch_model("openai:gpt-6-luna")
        assert session.model == SONNET


async def test_the_quote_uses_the_uncached_price_of_a_model_that_does_not_cache() -> None:
    base_options: Options = {"store": MemoryStore(), "transport": SimulatedProvider(), "allow_uncached": True}
    created: Options = {**base_options, "model": "openai:gpt-4o-2024-05-13", "system_prompt": PROMPT}
    async with Session.create(**created) as session:
        answer = await session.send("one")
        quote = session.quote_switch("openai:gpt-6-luna")
        assert abs(quote.warm_usd - answer.cost_usd) < answer.cost_usd / 10


async def test_a_model_without_reasoning_gets_no_reasoning_parameters() -> None:
    provider = SimulatedProvider()
    created: Options = {"store": MemoryStore(), "transport": provider, "model": "openai:gpt-6-luna"}
    created["thinking"] = {"effort": "high"}
    async with Session.create(**created) as session:
        await session.send("one")
        await session.switch_model("openai:gpt-4.1")
        await session.send("two")
    first, second = (request.body.decode() for request in provider.requests)
    assert '"include":["reasoning.encrypted_content"]' in first
    assert '"reasoning":{"effort":"high"}' in first
    assert '"include":[]' in second
    assert "reasoning" not in second


async def test_the_environment_names_the_model_in_use_after_a_switch(tmp_path: Path) -> None:
    provider = SimulatedProvider()
    created: Options = {"store": MemoryStore(), "transport": provider, "model": SONNET, "workspace": tmp_path}
    async with Session.create(**created) as session:
        await session.send("one")
        await session.switch_model(OPUS)
        await session.send("two")
    assert f"Model: {OPUS}" in provider.requests[-1].body.decode()


async def test_a_switch_that_cannot_be_recorded_closes_the_transport_it_opened(
    options: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    server = await serve_simulator(SimulatedProvider())
    store = options["store"]
    assert isinstance(store, MemoryStore)
    try:
        base_options: Options = {"model": SONNET, "store": store, "base_url": server.url, "api_key": "any"}
        async with Session.create(**base_options) as session:
            await session.send("one")
            async with Session.resume(session.id, store=store, base_url=server.url, api_key="any") as other:
                await other.send("two")
            with pytest.raises(StoreError, match="continued elsewhere"):
                await session.switch_model("openai:gpt-6-luna", base_url=f"{server.url}/v1", api_key="any")
            assert session.model == SONNET
    finally:
        await server.aclose()
    assert not connection_pool._hosts.get(asyncio.get_running_loop())


async def test_ephemeral_text_of_the_last_turn_is_dropped_after_a_switch(options: Options) -> None:
    provider = SimulatedProvider(script='{"content": "One."}\n{"content": "Two."}')
    base_options: Options = {
        **options,
        "transport": provider,
        "volatile": lambda: [LayerText("memory", "for this turn only", ephemeral=True)],
    }
    async with Session.create(**base_options) as session:
        await session.send("one")
        await session.switch_model(OPUS)
        await session.send("two")
    assert provider.requests[-1].body.count(b"for this turn only") == 1


async def test_entries_that_must_be_reworded_for_the_other_provider_are_counted(options: Options) -> None:
    def fail() -> str:
        """Fails."""
        raise ValueError("no")

    script = '{"content": [{"type": "tool_use", "name": "fail", "input": {}}]}\n{"content": "Done."}'
    base_options: Options = {**options, "transport": SimulatedProvider(script=script), "tools": [fail]}
    async with Session.create(**base_options) as session:
        await session.send("one")
        assert session.quote_switch("openai:gpt-6-luna").reworded == 1
        assert session.quote_switch(OPUS).reworded == 0


@pytest.mark.parametrize("model", ["openai:gpt-4.1", "openai:gpt-4o-2024-05-13"])
async def test_a_model_without_reasoning_works_unless_reasoning_is_requested(model: str) -> None:
    provider = SimulatedProvider()
    base_options: Options = {"model": model, "store": MemoryStore(), "transport": provider, "allow_uncached": True}
    async with Session.create(**base_options) as session:
        assert (await session.send("one")).text == "Echo: one"
    refused: Options = {**base_options, "thinking": {"effort": "high"}}
    async with Session.create(**refused) as session:
        with pytest.raises(ProviderError, match=r"'reasoning\.effort' is not supported with this model"):
            await session.send("one")
    request_body = provider.requests[0].body.replace(b'"include":[]', b'"include":["reasoning.encrypted_content"]')
    answer = provider.handle("POST", "/v1/responses", headers={"authorization": "Bearer k"}, body=request_body)
    assert answer.status == 400
    assert b"Encrypted content is not supported" in answer.read_body()
