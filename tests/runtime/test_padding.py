from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.agents import Agent, MakeAgent, ReplayTransport, says

from holdfast.catalog.lookup import find_model, price_at, utc_date
from holdfast.engine.loop import TurnResult
from holdfast.errors import UserError
from holdfast.events.payloads.session import EpochOpened
from holdfast.layers.padding import OPERATING_CONTEXT_PADDING, Padding, SessionPadding
from holdfast.planning.learned import LearnedParameters, SessionLength
from holdfast.providers.registry import get_adapter
from holdfast.runtime.options import Options
from holdfast.runtime.padding import CallForecast, PaddingInputs, count_prefix_tokens, decide_padding, forecast_calls
from holdfast.runtime.session import Session
from holdfast.runtime.session_functions import run_sync
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import ToolUse
from holdfast.types.prompt import LayerText, View
from holdfast.types.tool_spec import tool_spec_from_function
from holdfast.types.usage import Usage

HAIKU = "anthropic:claude-haiku-4-5"
"""Its minimum cacheable prefix is 4,096 tokens."""

WORDS = "Answer in the words of the person who asks. "
MEDIUM_PROMPT = WORDS * 120


def bash(command: str) -> str:
    """Run a command."""
    return command


def weather(city: str) -> str:
    """Look up the weather of a city."""
    return city


def epoch_of(agent: Agent) -> EpochOpened:
    return next(payload for payload in agent.payloads if isinstance(payload, EpochOpened))


def padding_of(agent: Agent) -> str:
    return "".join(layer_text.text for layer_text in epoch_of(agent).system if layer_text.layer == "padding")


async def open_session(agent: Agent) -> tuple[str, str]:
    """The padding of a session, and the reason for it."""
    async with agent.session:
        pass
    return padding_of(agent), epoch_of(agent).padding or ""


async def test_a_prompt_below_a_high_minimum_is_padded_if_it_pays(agent: MakeAgent) -> None:
    text, reason = await open_session(agent(model=HAIKU, system_prompt=MEDIUM_PROMPT, tools=[bash], calls_expected=20))
    assert text
    assert OPERATING_CONTEXT_PADDING.startswith(text)
    assert reason.startswith("padded from about ")
    assert "tokens with the operating guide, past the floor of 4096 tokens of anthropic:claude-haiku-4-5" in reason
    assert ": it pays in 20 calls: $" in reason


async def test_one_call_never_pays_for_padding(agent: MakeAgent) -> None:
    text, reason = await open_session(agent(model=HAIKU, system_prompt=MEDIUM_PROMPT, calls_expected=1))
    assert not text
    assert "does not pay in 1 call: " in reason


async def test_a_short_prompt_is_not_padded_for_a_low_minimum(agent: MakeAgent) -> None:
    text, reason = await open_session(agent(system_prompt="Be kind."))
    assert not text
    assert reason.startswith("not padded: to reach the floor of 512 tokens of anthropic:claude-sonnet-5-5 does not pay")


async def test_a_prompt_above_the_minimum_needs_no_padding(agent: MakeAgent) -> None:
    text, reason = await open_session(agent(system_prompt=MEDIUM_PROMPT))
    assert not text
    assert reason.endswith("tokens reach the floor of 512 tokens of anthropic:claude-sonnet-5-5")


async def test_the_highest_minimum_among_the_models_of_a_session_is_the_target(agent: MakeAgent) -> None:
    harness = agent(system_prompt=MEDIUM_PROMPT, models=[HAIKU, "anthropic:claude-sonnet-5-5"], calls_expected=5)
    text, reason = await open_session(harness)
    assert "the floor of 4096 tokens of anthropic:claude-haiku-4-5" in reason
    assert not text  # Its own model caches the prompt without padding, and would pay for the padding with every call.
    options: Options = {"system_prompt": MEDIUM_PROMPT, "models": [HAIKU], "calls_expected": 5, "tools": [bash]}
    cheap = agent(model="anthropic:claude-haiku-5-5", **options)
    assert (await open_session(cheap))[0]


async def test_no_padding_for_a_model_that_does_not_cache(agent: MakeAgent) -> None:
    harness = agent(model="openai:gpt-4o-2024-05-13", system_prompt=MEDIUM_PROMPT, allow_uncached=True)
    assert await open_session(harness) == ("", "not padded: no model of this session caches prompts")


async def test_always_follows_the_heuristic_at_any_cost(agent: MakeAgent) -> None:
    text, reason = await open_session(agent(system_prompt="Be kind.", padding="always", calls_expected=1))
    assert len(text) // 4 in range(4_490, 5_500)
    assert reason.startswith("padded from 2 to 45")
    assert reason.endswith("tokens (characters / 4), as always up to 4500")
    text, reason = await open_session(agent(system_prompt="x" * 18_000, padding="always"))
    assert (text, reason) == ("", "not padded: 4500 tokens (characters / 4) reach 4500 already")


async def test_never_disables_padding(agent: MakeAgent) -> None:
    harness = agent(model=HAIKU, system_prompt=MEDIUM_PROMPT, padding="never")
    assert await open_session(harness) == ("", "not padded: padding is turned off")


async def test_the_seed_profile_pads_unless_disabled(agent: MakeAgent) -> None:
    assert (await open_session(agent(profile="seed", system_prompt="Be kind.")))[0]
    assert not (await open_session(agent(profile="seed", system_prompt="Be kind.", padding="never")))[0]


async def test_under_the_seed_profile_a_bare_prompt_is_never_worth_padding(
    agent: MakeAgent,
) -> None:
    bare_prompt: Options = {"model": HAIKU, "system_prompt": WORDS * 4, "padding": "auto", "calls_expected": 100}
    assert not (await open_session(agent(profile="seed", **bare_prompt)))[0]


async def test_padding_can_be_configured(agent: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_PADDING", "always")
    assert (await open_session(agent(system_prompt="Be kind.")))[0]
    monkeypatch.setenv("HOLDFAST_PADDING", "sometimes")
    with pytest.raises(UserError, match="padding must be one of auto, always, never, not 'sometimes'"):
        await open_session(agent(system_prompt="Be kind."))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"calls_expected": 0}, "calls_expected must be a whole number of at least 1"),
        ({"calls_expected": True}, "calls_expected must be a whole number of at least 1"),
        ({"models": "anthropic:claude-haiku-4-5"}, "models must be a list"),
        ({"models": [1]}, "models must be a list of texts"),
        ({"padding": "perhaps"}, "padding must be one of"),
        ({"models": ["anthropic:claude-haiku-4-6"]}, "unknown model 'anthropic:claude-haiku-4-6'"),
    ],
)
async def test_a_wrong_padding_option_is_refused_by_name(
    agent: MakeAgent, option: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        await open_session(agent(**option))


async def test_padding_is_the_same_in_every_turn_and_after_a_resume(agent: MakeAgent) -> None:
    created: Options = {"model": HAIKU, "system_prompt": MEDIUM_PROMPT, "tools": [bash], "calls_expected": 20}
    harness = agent(says("a"), says("b"), says("c"), **created)
    async with harness.session as session:
        await session.send("one")
        await session.send("two")
    resumed: Options = {"store": harness.store, "transport": harness.transport, "tools": [bash], "padding": "never"}
    async with Session.resume(session.id, **resumed) as again:
        await again.send("three")
    system_texts = [[block["text"] for block in body["system"]] for body in harness.bodies]
    assert system_texts == [[MEDIUM_PROMPT, padding_of(harness)]] * 3
    assert ["cache_control" in block for block in harness.bodies[0]["system"]] == [False, True]


@pytest.mark.parametrize("padding", ["always", "auto"])
async def test_a_padded_prompt_is_read_from_the_cache_on_the_second_turn(padding: Padding) -> None:
    async def second_turn_usage(wish: Padding) -> Usage:
        options: Options = {"model": HAIKU, "system_prompt": MEDIUM_PROMPT, "padding": wish, "store": MemoryStore()}
        options |= {"transport": SimulatedProvider(), "tools": [bash], "calls_expected": 20}
        async with Session.create(**options) as session:
            await session.send("hello")
            return (await session.send("and again")).usage

    assert (await second_turn_usage(padding)).cache_read > 4_096
    assert (await second_turn_usage("never")).cache_read == 0


async def test_a_switch_to_a_higher_minimum_says_that_the_prompt_is_too_short(agent: MakeAgent) -> None:
    harness = agent(says("ok"), system_prompt=MEDIUM_PROMPT)
    async with harness.session as session:
        await session.send("hello")
        high, low = session.quote_switch(HAIKU), session.quote_switch("anthropic:claude-opus-5-5")
    assert 0 < high.below_floor_tokens < 4_096
    assert f"its stable part is {high.below_floor_tokens} tokens too short to be cached by itself" in str(high)
    assert low.below_floor_tokens == 0
    assert "too short" not in str(low)


def run_one_message(padding: Padding, prompt: str, tools: Sequence[Callable[..., str]]) -> TurnResult:
    options: Options = {"model": HAIKU, "system_prompt": prompt, "tools": tools, "padding": padding}
    options |= {"transport": SimulatedProvider(), "store": MemoryStore()}
    return run_sync("hello", **options)


@pytest.mark.parametrize("prompt", ["Be kind.", MEDIUM_PROMPT])
@pytest.mark.parametrize("tools", [(), (bash,)])
def test_one_call_of_run_sync_costs_no_more_than_without_padding(
    prompt: str, tools: tuple[Callable[..., str], ...]
) -> None:
    auto, never = run_one_message("auto", prompt, tools), run_one_message("never", prompt, tools)
    assert auto.llm_calls == 1
    assert auto.cost_usd <= never.cost_usd


async def record_sessions(store: MemoryStore, *, calls: int, workspace: Path | None = None) -> None:
    """Three sessions with this number of calls, one message each."""
    for _ in range(3):
        steps = (*(says(ToolUse(f"t{number}", "bash", '{"command":"ls"}')) for number in range(calls - 1)), says("ok"))
        options: Options = {"store": store, "transport": ReplayTransport(steps), "tools": [bash], "padding": "never"}
        options["model"] = HAIKU
        if workspace:
            options["workspace"] = workspace
        async with Session.create(**options) as session:
            await session.send("go")


async def decide(store: MemoryStore, *, workspace: Path | None = None) -> SessionPadding:
    options: Options = {"store": store, "transport": ReplayTransport(()), "tools": [bash]}
    options |= {"model": HAIKU, "system_prompt": WORDS * 300}
    if workspace:
        options["workspace"] = workspace
    async with Session.create(**options) as session:
        return session.padding


async def test_sessions_that_were_short_are_a_reason_not_to_pad() -> None:
    long, short = MemoryStore(), MemoryStore()
    await record_sessions(long, calls=12)
    await record_sessions(short, calls=1)
    padded, unpadded = await decide(long), await decide(short)
    assert padded.text
    assert "calls (by 3 earlier sessions): $" in padded.reason
    assert not unpadded.text
    assert "calls (by 3 earlier sessions): $" in unpadded.reason


async def test_the_sessions_of_the_workspace_decide_if_there_are_any(tmp_path: Path) -> None:
    store, here, elsewhere = MemoryStore(), tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    await record_sessions(store, calls=1, workspace=elsewhere)
    assert not (await decide(store, workspace=here)).text
    await record_sessions(store, calls=12, workspace=here)
    assert (await decide(store, workspace=here)).text


async def test_without_a_tool_for_files_or_commands_the_guide_is_not_used(agent: MakeAgent) -> None:
    options: Options = {"model": HAIKU, "system_prompt": MEDIUM_PROMPT, "calls_expected": 20}
    text, reason = await open_session(agent(**options, tools=[weather]))
    assert not text
    assert reason.startswith("not padded: no text fits this agent: it has no skills, and the operating guide is for ")


async def test_a_session_says_what_was_padded_and_why(agent: MakeAgent) -> None:
    harness = agent(model=HAIKU, system_prompt=MEDIUM_PROMPT, tools=[bash], calls_expected=20)
    async with harness.session as session:
        pass
    padding = session.padding
    assert (padding.text, padding.reason) == (padding_of(harness), epoch_of(harness).padding)
    assert (padding.has_guide, padding.skill_names) == (True, ())


def test_messages_of_a_script_become_calls_as_in_earlier_sessions() -> None:
    chats = LearnedParameters(lengths=(SessionLength(calls=40, messages=10, growth_tokens=3_900),) * 3)
    forecast = forecast_calls(chats, messages=2)
    assert {outlook.calls for _, outlook in forecast.lengths} == {2, 8}
    assert {outlook.calls for _, outlook in forecast_calls(chats, messages=2, has_tools=False).lengths} == {2}
    assert sum(probability for probability, _ in forecast.lengths) == pytest.approx(1)


@given(
    st.lists(st.integers(1, 120), min_size=100, max_size=100),
    st.sampled_from([100, 500, 2_000]),
    st.sampled_from([HAIKU, "anthropic:claude-opus-4-7", "anthropic:claude-opus-4-8", "anthropic:claude-sonnet-5-5"]),
    st.integers(1, 300),
)
def test_with_known_lengths_auto_is_close_to_the_better_choice(
    lengths: list[int], growth: int, name: str, words: int
) -> None:
    model, adapter = find_model(name), get_adapter("anthropic")
    learned = LearnedParameters(lengths=tuple(SessionLength(calls, 1, growth * (calls - 1)) for calls in lengths))
    view = View(tools=(tool_spec_from_function(bash),), pinned=(LayerText("preset", WORDS * words),))

    def cost_usd(forecast: CallForecast) -> float:
        """The mean cost of the prompts, call by call, of a session padded for this forecast."""
        decision = decide_padding("auto", view, PaddingInputs((model,), forecast, 0.0), adapter=adapter)
        padded = View(tools=view.tools, pinned=view.pinned + decision.layers)
        prefix, price = (
            round(count_prefix_tokens(padded, adapter) * model.tokens_factor),
            price_at(model, utc_date(0.0), 0),
        )
        total, cached, costs = 0.0, 0, [0.0]
        for number in range(max(lengths)):
            tokens = prefix + growth * (number + 1)
            if tokens >= model.cache.tokens_min:
                total += float(price.cache_read) * cached + 1.25 * float(price.input) * (tokens - cached)
                cached = tokens
            else:
                total += float(price.input) * tokens
            costs.append(total)
        return sum(costs[length] for length in lengths)

    auto = cost_usd(forecast_calls(learned))
    padded, natural = (cost_usd(forecast_calls(learned, calls=calls, grows=False)) for calls in (100_000, 1))
    assert auto <= 1.02 * min(padded, natural)
