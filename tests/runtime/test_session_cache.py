from decimal import Decimal

from tests.support.agents import MakeAgent, says

from holdfast.clock import ManualClock
from holdfast.economics.keep_alive import NextWake
from holdfast.events.payloads.cache import ExplicitCacheChanged
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.runtime.session_functions import next_wake
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.usage import Usage

CACHED_USAGE = Usage(input=10, cache_read=80_000, cache_write_5m=19_990, output=1_000)


async def test_the_next_wake_says_when_to_continue_and_at_what_cost(agent: MakeAgent) -> None:
    harness = agent(says("ok", usage=CACHED_USAGE), system_prompt="Be kind.")
    async with harness.session as session:
        await session.send("hello")
        harness.clock.advance(100)
        wake = next_wake(session)
    assert (wake.prompt_tokens, wake.within_seconds, wake.or_after_seconds) == (101_000, 185.0, 1200.0)
    assert wake.cold_usd == 101_000 * Decimal("2.5") / 1_000_000
    assert wake.warm_usd < wake.cold_usd / 5


async def test_an_expired_cache_gives_no_deadline(agent: MakeAgent) -> None:
    harness = agent(says("ok", usage=CACHED_USAGE), system_prompt="Be kind.")
    async with harness.session as session:
        await session.send("hello")
        harness.clock.advance(300)
        wake = session.cache.next_wake()
    assert (wake.within_seconds, wake.warm_usd, wake.warm_wakes_max) == (0.0, wake.cold_usd, 0)


async def test_before_the_first_call_nothing_is_warm(agent: MakeAgent) -> None:
    async with agent(system_prompt="Be kind.").session as session:
        assert str(session.cache.next_wake()) == "nothing is warm: come back after 20 min or more for $0.0000"


async def test_another_models_cache_is_cold(agent: MakeAgent) -> None:
    harness = agent(says("ok", usage=CACHED_USAGE), system_prompt="Be kind.")
    async with harness.session as session:
        await session.send("hello")
        await session.switch_model("anthropic:claude-opus-5-5")
        assert session.cache.next_wake().within_seconds == 0


async def test_a_resumed_session_still_knows_when_its_cache_expires(agent: MakeAgent) -> None:
    harness = agent(says("ok", usage=CACHED_USAGE), system_prompt="Be kind.")
    async with harness.session as session:
        await session.send("hello")
    harness.clock.advance(60)
    async with Session.resume(
        session.id, store=harness.store, transport=harness.transport, clock=harness.clock
    ) as again:
        assert again.cache.next_wake().within_seconds == 225.0


async def wake_after_one_call(model: str, system_prompt: str) -> NextWake:
    clock = ManualClock(1_790_000_000.0)
    options: Options = {
        "model": model,
        "system_prompt": system_prompt,
        "padding": "never",
        "allow_uncached": True,
        "store": MemoryStore(),
        "clock": clock,
        "transport": SimulatedProvider(clock=clock),
    }
    async with Session.create(**options) as session:
        await session.send("hello")
        return session.cache.next_wake()


async def test_the_ttl_is_that_of_the_provider() -> None:
    long = "You are a patient tutor. " * 1_000
    assert (await wake_after_one_call("openai:gpt-6-luna", long)).within_seconds == 1785.0
    assert (await wake_after_one_call("openai:gpt-5.4", long)).within_seconds == 24 * 3600 - 15
    assert (await wake_after_one_call("gemini:gemini-4-argon", long)).within_seconds == 165.0
    day = await wake_after_one_call("openai:gpt-5.4", long)
    assert day.or_after_seconds == 24 * 3600


async def test_a_prompt_below_the_minimum_leaves_nothing_warm() -> None:
    for model in ("openai:gpt-5.4", "anthropic:claude-sonnet-5-5"):
        assert (await wake_after_one_call(model, "Be kind.")).within_seconds == 0


async def test_a_model_that_does_not_cache_is_never_warm() -> None:
    wake = await wake_after_one_call("openai:gpt-4o-2024-05-13", "Be kind. " * 3_000)
    assert (wake.within_seconds, wake.cold_usd) == (0, wake.prompt_tokens * Decimal(5) / 1_000_000)


async def test_an_explicit_cache_is_warm_until_it_expires() -> None:
    clock, store = ManualClock(1_790_000_000.0), MemoryStore()
    async with Session.create(
        model="gemini:gemini-3.8-flash",
        system_prompt="You are a patient tutor. " * 1_000,
        profile="seed",
        store=store,
        clock=clock,
        transport=SimulatedProvider(clock=clock),
    ) as session:
        await session.send("hello")
        explicit_cache = next(
            event.payload for event in store.read(session.id) if isinstance(event.payload, ExplicitCacheChanged)
        )
        clock.advance(600)
        assert session.cache.next_wake().within_seconds == explicit_cache.expires_at - clock() - 15


async def test_the_cache_state_has_tokens_ttl_and_expiry(agent: MakeAgent) -> None:
    harness = agent(says("ok", usage=CACHED_USAGE), system_prompt="Be kind.")
    async with harness.session as session:
        assert session.cache.state().tokens == 0
        await session.send("hello")
        sent_at = harness.clock()
        harness.clock.advance(100)
        cached = session.cache.state()
    assert (cached.tokens, cached.ttl_seconds, cached.expires_at) == (99_990, 300, sent_at + 300)


async def test_the_context_use_lists_the_tokens_of_each_layer(agent: MakeAgent) -> None:
    harness = agent(says("ok"), system_prompt="Be kind. " * 20, tools=[sorted_names])
    async with harness.session as session:
        await session.send("hello " * 50)
        use = session.context_use()
        assert [spec.name for spec in session.tools] == ["recall_history", "sorted_names"]
    assert [layer.layer for layer in use.layers] == ["tools", "preset", "history"]
    assert use.tokens == sum(layer.tokens for layer in use.layers)
    assert min(layer.tokens for layer in use.layers) > 40
    assert use.tokens_max == 1_000_000
    assert session.turn_count == 1


def sorted_names(names: list[str]) -> list[str]:
    """The names by their order in the alphabet."""
    return sorted(names)
