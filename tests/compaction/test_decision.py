"""When a session is compacted, by which step, and what is preserved."""

import functools
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.compaction_histories import MODEL, SMALL, History, snapshot_of
from tests.support.long_conversations import LongConversation

from holdfast.compaction.decision import (
    CompactionMonitor,
    CompactionOutlook,
    compute_compaction_numbers,
    estimate_compacted_tokens,
    find_compaction_trigger,
    is_stable_prefix_too_large,
    observe_call,
    observe_compaction,
    observe_refusal,
    observe_user_message,
    recent_groups_tokens_max,
)
from holdfast.compaction.models import CompactionConfig
from holdfast.compaction.tool_results import plan_clearing
from holdfast.economics.breakeven import (
    CacheRates,
    CompactionSizes,
    break_even_calls,
    compaction_pays,
    is_compaction_ripe,
    one_time_cost,
)
from holdfast.engine.compaction.compact import CompactionProposal, propose_compaction
from holdfast.engine.compaction.triggers import clear_tool_results, compact_after_overflow, compact_to_newest_group
from holdfast.errors import UserError
from holdfast.events.payloads.compaction import CompactionNumbers, CompactionSkipped, ContextCompacted
from holdfast.events.payloads.session import SkillLoaded
from holdfast.types.blocks import Text, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry
from holdfast.types.transcript import validate_transcript
from holdfast.types.usage import Usage

RATES = CacheRates(Decimal("0.1"), Decimal("1.25"))
CONFIG = CompactionConfig()
ECONOMICAL = CompactionConfig(mode="economical")
NUMBERS = CompactionNumbers(0, 0, 0, 0, 0, 0.0)


def outlook(prompt: int, **changes: object) -> CompactionOutlook:
    defaults: dict[str, object] = {
        "stable_prefix_tokens": 15_000,
        "window_tokens": 1_000_000,
        "output_tokens_max": 8_000,
        "expected_calls": 40.0,
        "is_cache_cold": False,
        "rates": RATES,
    }
    return CompactionOutlook(prompt, **{**defaults, **changes})  # type: ignore[arg-type]  # whatever a test changes


def event(before: int = 100_000) -> ContextCompacted:
    return ContextCompacted("checkpoint", "soft", 2, 1, 9, "d", before, 20_000, NUMBERS)


def monitor_after(*prompts: int, start: CompactionMonitor = CompactionMonitor()) -> CompactionMonitor:  # noqa: B008
    """The monitor after calls with prompts of these sizes."""
    return functools.reduce(lambda monitor, prompt: observe_call(monitor, Usage(input=prompt)), prompts, start)


@pytest.mark.parametrize(("prompt", "trigger"), [(99_999, None), (124_999, None), (125_000, "soft"), (950_000, "hard")])
def test_the_current_size_decides_and_not_the_tokens_spent(prompt: int, trigger: str | None) -> None:
    assert find_compaction_trigger(outlook(prompt), monitor_after(*[prompt] * 3), CONFIG) == trigger


def test_above_the_limit_a_session_waits_until_carrying_has_cost_as_much_as_removing() -> None:
    # 15,000 tokens of prefix and at most 46,000 after it are needed, so each call of 110,000 carries 49,000 for 4,900;
    # writing 46,000 again costs 52,900 more than reading them: the eleventh call has paid for it.
    for calls, trigger in ((0, None), (9, None), (10, "soft"), (40, "soft")):
        monitor = monitor_after(*[90_000] * 50, *[110_000] * calls)
        assert find_compaction_trigger(outlook(110_000), monitor, CONFIG) == trigger


def test_above_the_limit_a_cold_cache_is_used_at_once() -> None:
    assert find_compaction_trigger(outlook(101_000, is_cache_cold=True), CompactionMonitor(), CONFIG) == "soft"
    assert find_compaction_trigger(outlook(99_000, is_cache_cold=True), CompactionMonitor(), CONFIG) is None


@given(
    st.lists(st.integers(0, 8_000), min_size=1, max_size=120),
    st.integers(2_000, 60_000),
    st.sampled_from([("0.1", "1.25"), ("0.1", "2"), ("0.5", "1")]),
)
def test_a_session_that_is_compacted_at_the_limit_has_paid_at_most_twice_what_removing_costs(
    growth: list[int], prefix: int, prices: tuple[str, str]
) -> None:
    """Rent or buy: the calls above the limit cost no more than one compaction before there is one."""
    rates = CacheRates(Decimal(prices[0]), Decimal(prices[1]))
    monitor, prompt = CompactionMonitor(), 70_000
    for tokens in growth:
        prompt += tokens
        session = outlook(prompt, stable_prefix_tokens=prefix, rates=rates)
        if find_compaction_trigger(session, monitor, CONFIG) is not None:
            break
        after = estimate_compacted_tokens(prompt - prefix, CONFIG)
        carried = sum(max(0, sent - prefix - after) for sent in (*monitor.prompts, prompt) if sent >= 100_000)
        assert rates.read * carried < (rates.write - rates.read) * after
        assert prompt < 125_000
        monitor = monitor_after(prompt, start=monitor)


def test_with_compaction_off_nothing_triggers() -> None:
    assert find_compaction_trigger(outlook(500_000), CompactionMonitor(), CompactionConfig(mode="off")) is None


def test_the_cost_trigger_waits_until_carrying_has_cost_as_much_as_removing() -> None:
    config = ECONOMICAL
    early = outlook(60_000, calls=2, sent_tokens=80_000, base_tokens=35_000)
    late = outlook(60_000, calls=30, sent_tokens=30 * 45_000)
    assert find_compaction_trigger(early, CompactionMonitor(), config) is None
    assert find_compaction_trigger(late, CompactionMonitor(), config) == "money"
    assert (
        find_compaction_trigger(
            outlook(60_000, calls=30, sent_tokens=30 * 45_000, expected_calls=1.0), CompactionMonitor(), config
        )
        is None
    )


def test_a_cold_cache_triggers_only_if_there_is_something_to_gain() -> None:
    cold = outlook(60_000, is_cache_cold=True)
    assert find_compaction_trigger(cold, CompactionMonitor(), ECONOMICAL) == "cache_expired"
    assert find_compaction_trigger(outlook(17_000, is_cache_cold=True), CompactionMonitor(), ECONOMICAL) is None


@pytest.mark.parametrize("prompt", [11_496, 60_000, 99_999])
def test_money_triggers_nothing_unless_it_is_asked_for(prompt: int) -> None:
    for cold in (False, True):
        ripe = outlook(prompt, is_cache_cold=cold, calls=90, sent_tokens=90 * prompt, stable_prefix_tokens=1_000)
        assert find_compaction_trigger(ripe, CompactionMonitor(), CONFIG) is None


@pytest.mark.parametrize(("window", "limit"), [(1_000_000, 100_000), (128_000, 100_000), (64_000, 51_200)])
def test_the_limit_is_eighty_percent_of_a_small_window(window: int, limit: int) -> None:
    for prompt, trigger in ((limit - 1, None), (limit, "soft")):
        session = outlook(prompt, window_tokens=window, is_cache_cold=True)
        assert find_compaction_trigger(session, CompactionMonitor(), CONFIG) == trigger


def test_soon_after_a_compaction_less_is_kept_so_that_it_does_not_repeat_with_every_call() -> None:
    monitor = CompactionMonitor()
    assert recent_groups_tokens_max("soft", monitor, CONFIG) == 100_000
    assert recent_groups_tokens_max("hard", monitor, CONFIG) == 0
    monitor = observe_compaction(monitor, event(), messages=9)
    for _ in range(9):
        monitor = observe_call(monitor, Usage(input=70_000))
        assert recent_groups_tokens_max("soft", monitor, CONFIG) == 25_000
    assert recent_groups_tokens_max("soft", observe_call(monitor, Usage(input=70_000)), CONFIG) == 100_000


def test_nothing_triggers_directly_after_a_compaction() -> None:
    monitor = observe_compaction(CompactionMonitor(), event(), messages=9)
    assert find_compaction_trigger(outlook(130_000), monitor, CONFIG) is None
    monitor = observe_call(monitor, Usage(input=20_000))
    assert find_compaction_trigger(outlook(130_000), monitor, CONFIG) is None
    assert find_compaction_trigger(outlook(130_000), observe_call(monitor, Usage(input=20_000)), CONFIG) == "soft"


def test_two_ineffective_compactions_disable_it_until_the_next_user_message() -> None:
    monitor = CompactionMonitor()
    for _ in range(2):
        monitor = observe_call(observe_compaction(monitor, event(), messages=9), Usage(input=90_000))
        monitor = observe_call(monitor, Usage(input=90_000))
    assert (monitor.strikes, find_compaction_trigger(outlook(130_000), monitor, CONFIG)) == (2, None)
    assert find_compaction_trigger(outlook(130_000), observe_user_message(monitor), CONFIG) == "soft"


def test_an_effective_compaction_resets_the_strikes() -> None:
    monitor = observe_call(observe_compaction(CompactionMonitor(), event(), messages=9), Usage(input=90_000))
    assert monitor.strikes == 1
    assert observe_call(observe_compaction(monitor, event(), messages=20), Usage(input=20_000)).strikes == 0


def test_a_skipped_compaction_is_retried_after_some_calls_except_for_a_large_prefix() -> None:
    refused = observe_refusal(CompactionMonitor(), CompactionSkipped("soft", "", NUMBERS))
    final = observe_refusal(CompactionMonitor(), CompactionSkipped("soft", "", NUMBERS, is_final=True))
    assert not refused.may_act
    for _ in range(10):
        refused, final = observe_call(refused, Usage(input=1)), observe_call(final, Usage(input=1))
    assert (refused.may_act, final.may_act, observe_user_message(final).may_act) == (True, False, True)


def test_a_stable_prefix_above_the_limit_is_detected() -> None:
    assert is_stable_prefix_too_large(outlook(120_000, stable_prefix_tokens=100_000), CONFIG)
    assert not is_stable_prefix_too_large(outlook(120_000, stable_prefix_tokens=99_999), CONFIG)


def test_the_table_of_break_even_calls_holds() -> None:
    for prompt, retained_tokens, calls in ((60_000, 10_000, 4.7), (100_000, 10_000, 2.1), (100_000, 40_000, 11.8)):
        sizes = CompactionSizes(prompt, 15_000, 3_000 + retained_tokens)
        break_even = break_even_calls(sizes, RATES)
        assert break_even == pytest.approx(calls, abs=0.06)
        assert break_even is not None
        assert not compaction_pays(sizes, RATES, break_even * 0.99 + 0.0)
        assert compaction_pays(sizes, RATES, break_even * 1.01 + 1)


def test_with_a_cold_cache_compaction_pays_from_the_first_call() -> None:
    sizes = CompactionSizes(100_000, 15_000, 13_000)
    assert compaction_pays(sizes, RATES, 1, cold=True)
    assert one_time_cost(sizes, RATES, cold=True) == Decimal("-1.25") * 72_000
    assert break_even_calls(sizes, RATES, cold=True) == 0
    assert break_even_calls(CompactionSizes(10_000, 9_000, 2_000), RATES) is None


def test_compaction_is_ripe_once_carrying_has_cost_as_much_as_removing() -> None:
    sizes = CompactionSizes(100_000, 15_000, 10_000)
    assert not is_compaction_ripe(RATES, 114_999, fixed_tokens=sizes.after)
    assert is_compaction_ripe(RATES, 115_000, fixed_tokens=sizes.after)
    assert not is_compaction_ripe(RATES, 115_000, fixed_tokens=sizes.after, lost_tokens=1)


def test_the_numbers_add_up_to_the_prompt() -> None:
    numbers = compute_compaction_numbers(
        outlook(100_000, unit_usd=Decimal("0.000003")),
        summary_tokens=3_000,
        kept_tokens=10_000,
        stable_prefix_tokens=15_000,
    )
    assert numbers.removed_tokens == 72_000
    assert numbers.cost_usd == Decimal("1.15") * 13_000 * Decimal("0.000003")
    assert numbers.saving_per_call_usd == Decimal("0.1") * 72_000 * Decimal("0.000003")
    assert estimate_compacted_tokens(85_000, CONFIG) == 46_000
    assert estimate_compacted_tokens(25_000, CONFIG) == 15_000
    assert estimate_compacted_tokens(20_000, ECONOMICAL) == 9_000


def make_exchange(number: int, text: str, *, name: str = "read_file", bad: bool = False) -> list[HistoryEntry]:
    call = ToolUse(f"c{number}", name, f'{{"path":"src/{number}.py"}}')
    result = ToolResult(f"c{number}", (Text(text),), is_error=bad)
    return [
        HistoryEntry("user", (Text(f"Ask {number}"),), number=3 * number - 2),
        HistoryEntry("assistant", (call,), number=3 * number - 1),
        HistoryEntry("user", (result,), number=3 * number),
    ]


def make_history(*exchanges: list[HistoryEntry]) -> tuple[list[HistoryEntry], list[int]]:
    entries = [entry for exchange in exchanges for entry in exchange]
    return entries, [sum(len(str(block)) for block in entry.content) // 4 for entry in entries]


def test_errors_protected_tools_and_the_last_turns_are_not_cleared() -> None:
    entries, tokens = make_history(
        make_exchange(1, "x" * 40_000),
        make_exchange(2, "y" * 4_000, bad=True),
        make_exchange(3, "z" * 4_000, name="skill_load"),
        make_exchange(4, "n" * 4_000),
        make_exchange(5, "n" * 4_000),
    )
    batch = plan_clearing(entries, tokens, CompactionConfig(), unsent=len(entries))
    assert batch is not None
    assert [result.tool_use_id for result in batch.results] == ["c1"]
    assert (batch.first, batch.last) == (3, 3)
    assert batch.results[0].text.startswith("[The output of read_file src/1.py was cleared: 40000 characters, sha:")
    assert batch.results[0].text.endswith("message m3.]")


def test_a_batch_that_does_not_reach_the_target_is_not_cleared() -> None:
    entries, tokens = make_history(*(make_exchange(number, "x" * 4_000, bad=number > 2) for number in range(1, 9)))
    assert plan_clearing(entries, tokens, CompactionConfig(), unsent=len(entries)) is None
    assert plan_clearing(entries[:1], tokens[:1], CompactionConfig(), unsent=1) is None


def test_unsent_results_are_not_cleared() -> None:
    entries, tokens = make_history(*(make_exchange(number, "x" * 9_000) for number in range(1, 9)))
    batch = plan_clearing(entries, tokens, CompactionConfig(), unsent=len(entries))
    assert batch is not None
    assert [result.tool_use_id for result in batch.results] == ["c1", "c2", "c3", "c4", "c5"]
    assert plan_clearing(entries, tokens, CompactionConfig(), unsent=6) is None


def test_a_skill_whose_body_was_compacted_can_be_loaded_again() -> None:
    history = History(7)
    history.add(SkillLoaded("pdf", "1", "on_demand", 900, "workspace", triggered_by_tool_use_id="gone"))
    for _ in range(30):
        history.turn()
    assert history.state().activations.names == ("pdf",)
    proposal = propose_compaction(snapshot_of(history, MODEL), SMALL, "requested")
    assert isinstance(proposal, CompactionProposal)
    assert [skill.skill_id for skill in proposal.released_skills] == ["pdf"]
    history.add(*proposal.payloads)
    assert history.state().activations.names == ()


async def test_a_prompt_over_the_window_can_be_shortened_step_by_step() -> None:
    long_session = LongConversation()
    async with long_session.create() as session:
        await long_session.send_turns(session, 14)
        conversation = session._open_conversation
        sizes = [len(str(session.history))]
        for step in (clear_tool_results, compact_after_overflow, compact_to_newest_group):
            assert "tokens became" in await step(conversation)
            sizes.append(len(str(session.history)))
            assert validate_transcript(session.history) == ()
        assert "nothing" in await compact_to_newest_group(conversation)
    assert sizes == sorted(sizes, reverse=True)
    compactions = [
        stored.payload for stored in long_session.store.read(session.id) if isinstance(stored.payload, ContextCompacted)
    ]
    assert [compaction.strategy for compaction in compactions] == ["clear", "checkpoint", "checkpoint"]
    assert {compaction.trigger for compaction in compactions} == {"overflow"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "on"}, "mode of a CompactionConfig must be one of off, threshold, economical, not 'on'"),
        ({"preserve_recent_messages": -1}, "preserve_recent_messages of a CompactionConfig must be a whole number"),
        ({"max_estimated_tokens": "x"}, "max_estimated_tokens of a CompactionConfig must be a whole number"),
        (
            {"tail_tokens_max": True},
            "tail_tokens_max of a CompactionConfig must be a whole number of at least 0, not True",
        ),
        ({"share_max": float("nan")}, "share_max of a CompactionConfig must be a number from 0 to 1, not nan"),
        ({"share_max": 20}, "share_max of a CompactionConfig must be a number from 0 to 1, not 20"),
        ({"protected_tools": "read_file"}, "protected_tools of a CompactionConfig must be tool names"),
    ],
)
def test_an_invalid_configuration_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        CompactionConfig(**options)
    assert message in str(caught.value)
