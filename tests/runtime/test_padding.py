import pytest
from tests.support.agents import Agent, MakeAgent, says

from holdfast.errors import UserError
from holdfast.events.payloads.session import EpochOpened
from holdfast.layers.padding import OPERATING_CONTEXT_PADDING, Padding
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.usage import Usage

HAIKU = "anthropic:claude-haiku-4-5"
"""Its floor is 4,096 tokens."""

WORDS = "Answer in the words of the person who asks. "
MIDDLING = WORDS * 120


def epoch_of(agent: Agent) -> EpochOpened:
    return next(payload for payload in agent.payloads if isinstance(payload, EpochOpened))


def padding_of(agent: Agent) -> str:
    return "".join(said.text for said in epoch_of(agent).system if said.layer == "padding")


async def opened(agent: Agent) -> tuple[str, str]:
    """What a session was padded with, and why."""
    async with agent.session:
        pass
    return padding_of(agent), epoch_of(agent).padding or ""


async def test_a_prompt_below_a_high_floor_is_padded_where_it_pays(agent: MakeAgent) -> None:
    text, reason = await opened(agent(model=HAIKU, system_prompt=MIDDLING))
    assert text
    assert OPERATING_CONTEXT_PADDING.startswith(text)
    assert reason.startswith("padded from about ")
    assert "the floor of 4096 tokens of anthropic:claude-haiku-4-5: it pays in 20 calls: $" in reason


async def test_one_call_never_pays_for_padding(agent: MakeAgent) -> None:
    text, reason = await opened(agent(model=HAIKU, system_prompt=MIDDLING, calls_expected=1))
    assert not text
    assert "does not pay in 1 calls" in reason


async def test_a_short_prompt_of_a_low_floor_is_left_as_it_is(agent: MakeAgent) -> None:
    text, reason = await opened(agent(system_prompt="Be kind."))
    assert not text
    assert reason.startswith("not padded: to reach the floor of 512 tokens of anthropic:claude-sonnet-5-5 does not pay")


async def test_a_prompt_above_the_floor_needs_no_padding(agent: MakeAgent) -> None:
    text, reason = await opened(agent(system_prompt=MIDDLING))
    assert not text
    assert reason.endswith("tokens reach the floor of 512 tokens of anthropic:claude-sonnet-5-5")


async def test_the_highest_floor_among_the_models_of_a_session_is_the_target(agent: MakeAgent) -> None:
    one = agent(system_prompt=MIDDLING, models=[HAIKU, "anthropic:claude-sonnet-5-5"], calls_expected=5)
    text, reason = await opened(one)
    assert "the floor of 4096 tokens of anthropic:claude-haiku-4-5" in reason
    assert not text  # Its own model caches the prompt as it is, and would pay for the padding with every call.
    cheap = agent(model="anthropic:claude-haiku-5-5", system_prompt=MIDDLING, models=[HAIKU], calls_expected=5)
    assert (await opened(cheap))[0]


async def test_a_model_that_does_not_cache_is_not_padded_for(agent: MakeAgent) -> None:
    one = agent(model="openai:gpt-4o-2024-05-13", system_prompt=MIDDLING, allow_uncached=True)
    assert await opened(one) == ("", "not padded: no model of this session caches prompts")


async def test_always_follows_the_heuristic_whatever_it_costs(agent: MakeAgent) -> None:
    text, reason = await opened(agent(system_prompt="Be kind.", padding="always", calls_expected=1))
    assert len(text) // 4 in range(4_490, 5_500)
    assert reason.startswith("padded from 2 to 45")
    assert reason.endswith("tokens (characters / 4), as always up to 4500")
    text, reason = await opened(agent(system_prompt="x" * 18_000, padding="always"))
    assert (text, reason) == ("", "not padded: 4500 tokens (characters / 4) reach 4500 already")


async def test_never_is_never(agent: MakeAgent) -> None:
    one = agent(model=HAIKU, system_prompt=MIDDLING, padding="never")
    assert await opened(one) == ("", "not padded: padding is turned off")


async def test_the_seed_profile_always_pads_unless_it_is_told_otherwise(agent: MakeAgent) -> None:
    assert (await opened(agent(profile="seed", system_prompt="Be kind.")))[0]
    assert not (await opened(agent(profile="seed", system_prompt="Be kind.", padding="never")))[0]


async def test_under_the_seed_profile_what_is_cached_does_not_grow_and_a_bare_prompt_is_never_worth_padding(
    agent: MakeAgent,
) -> None:
    bare: Options = {"model": HAIKU, "system_prompt": WORDS * 4, "padding": "auto", "calls_expected": 100}
    assert not (await opened(agent(profile="seed", **bare)))[0]


async def test_padding_can_be_configured(agent: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_PADDING", "always")
    assert (await opened(agent(system_prompt="Be kind.")))[0]
    monkeypatch.setenv("HOLDFAST_PADDING", "sometimes")
    with pytest.raises(UserError, match="padding must be one of auto, always, never, not 'sometimes'"):
        await opened(agent(system_prompt="Be kind."))


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ({"calls_expected": 0}, "calls_expected must be a whole number of at least 1"),
        ({"calls_expected": True}, "calls_expected must be a whole number of at least 1"),
        ({"models": "anthropic:claude-haiku-4-5"}, "models must be a list"),
        ({"models": [1]}, "models must be a list of texts"),
        ({"padding": "perhaps"}, "padding must be one of"),
        ({"models": ["anthropic:claude-haiku-4-6"]}, "unknown model 'anthropic:claude-haiku-4-6'"),
    ],
)
async def test_a_wrong_wish_for_padding_is_refused_by_name(
    agent: MakeAgent, option: dict[str, object], wanted: str
) -> None:
    with pytest.raises(UserError, match=wanted):
        await opened(agent(**option))


async def test_a_padded_session_says_the_same_in_every_turn_and_after_it_is_resumed(agent: MakeAgent) -> None:
    one = agent(says("a"), says("b"), says("c"), model=HAIKU, system_prompt=MIDDLING)
    async with one.session as session:
        await session.send("one")
        await session.send("two")
    async with Session.resume(session.id, store=one.store, transport=one.transport, padding="never") as again:
        await again.send("three")
    said = [[block["text"] for block in body["system"]] for body in one.bodies]
    assert said == [[MIDDLING, padding_of(one)]] * 3
    assert ["cache_control" in block for block in one.bodies[0]["system"]] == [False, True]


@pytest.mark.parametrize("padding", ["always", "auto"])
async def test_a_padded_prompt_is_read_from_the_cache_on_the_second_turn(padding: Padding) -> None:
    async def usage(wish: Padding) -> Usage:
        given: Options = {"model": HAIKU, "system_prompt": MIDDLING, "padding": wish, "store": MemoryStore()}
        given["transport"] = SimulatedProvider()
        async with Session.create(**given) as session:
            await session.send("hello")
            return (await session.send("and again")).usage

    assert (await usage(padding)).cache_read > 4_096
    assert (await usage("never")).cache_read == 0


async def test_a_switch_to_a_higher_floor_says_that_the_prompt_is_too_short_for_it(agent: MakeAgent) -> None:
    one = agent(says("ok"), system_prompt=MIDDLING)
    async with one.session as session:
        await session.send("hello")
        high, low = session.quote_switch(HAIKU), session.quote_switch("anthropic:claude-opus-5-5")
    assert 0 < high.below_floor_tokens < 4_096
    assert f"its stable part is {high.below_floor_tokens} tokens too short to be cached by itself" in str(high)
    assert low.below_floor_tokens == 0
    assert "too short" not in str(low)
