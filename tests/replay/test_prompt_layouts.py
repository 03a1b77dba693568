"""The position of volatile text decides its cost, and many parallel tools hide nothing from our breakpoints."""

import msgspec
import pytest
from benchmarks.volatile import insert_volatile_messages
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.recordings import encode_line, parallel_tools_recording

from holdfast.catalog.lookup import find_model
from holdfast.planning.adaptive_policy import AdaptivePolicy
from holdfast.planning.policies.fixed import FixedPolicy, prefix_and_tail_rule
from holdfast.planning.policy import CachePolicy
from holdfast.replay.comparison import append_volatile_to_system
from holdfast.replay.playback import Replayer, ReplayResult, make_replay_setting
from holdfast.replay.recording import Recording
from holdfast.replay.trace_files import parse_trace_line
from holdfast.types.blocks import Text, ToolResult

MODEL = find_model("anthropic:claude-sonnet-4-6")
COUNTINGS = ("blocks", "positions")


def parse_recording(line: dict[str, object]) -> Recording:
    recording = parse_trace_line(encode_line(line))
    assert isinstance(recording, Recording)
    return recording


def volatile_texts(turn: int) -> tuple[str, ...]:
    return f"turn {turn}", f"memory {turn // 2}"


def texts(recording: Recording) -> list[list[str]]:
    """The texts that each call adds, without tool results."""
    return [
        [block.text for entry in call.added for block in entry.content if isinstance(block, Text)]
        for call in recording.calls
    ]


CONVERSATION: dict[str, object] = {
    "id": "conversation",
    "messages": [
        {"role": role, "content": f"{role} {number}"}
        for number, role in enumerate(
            ("user", "assistant", "user", "assistant", "tool", "assistant", "user", "assistant")
        )
    ],
}


def test_volatile_text_is_inserted_before_the_users_message_once_and_not_inside_a_tool_loop() -> None:
    laid_out = insert_volatile_messages(parse_recording(CONVERSATION), volatile_texts, len)
    assert texts(laid_out) == [
        ["turn 1", "memory 0", "user 0"],
        ["turn 2", "memory 1", "user 2"],
        ["tool 4"],
        ["turn 3", "user 6"],
    ]


def test_after_a_compaction_volatile_text_is_inserted_again() -> None:
    line = {**CONVERSATION, "meta": {"compactions": [{"at_message": 6, "summary": "so far"}]}}
    assert texts(insert_volatile_messages(parse_recording(line), volatile_texts, len))[-1] == [
        "so far",
        "turn 3",
        "memory 1",
        "user 6",
    ]


def test_volatile_text_comes_after_tool_results() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "seen"}
    line = {
        **CONVERSATION,
        "messages": [{"role": "user", "content": [result, {"type": "text", "text": "stop"}]}, ANSWER],
    }
    (call,) = insert_volatile_messages(parse_recording(line), volatile_texts, len).calls
    assert isinstance(call.added[0].content[0], ToolResult)
    assert texts(insert_volatile_messages(parse_recording(line), volatile_texts, len)) == [
        ["turn 1", "memory 0", "stop"]
    ]


ANSWER = {"role": "assistant", "content": "well"}


def test_the_first_prompt_grows_by_the_volatile_text() -> None:
    recording = parse_recording({**CONVERSATION, "meta": {"first_call_prompt_tokens": 5_000}})
    assert insert_volatile_messages(recording, volatile_texts, len).first_prompt_tokens == 5_000 + len("turn 1") + len(
        "memory 0"
    )
    assert insert_volatile_messages(parse_recording(CONVERSATION), volatile_texts, len).first_prompt_tokens is None


def test_in_the_seed_layout_all_volatile_text_of_a_turn_is_in_the_system_prompt() -> None:
    system_suffixes = [
        call.system_suffix for call in append_volatile_to_system(parse_recording(CONVERSATION), volatile_texts).calls
    ]
    assert system_suffixes == ["turn 1\nmemory 0", "turn 2\nmemory 1", "turn 2\nmemory 1", "turn 3\nmemory 1"]


def replay_with(recording: Recording, policy: CachePolicy, lookback: str | None = None) -> ReplayResult:
    (result,) = Replayer(recording, make_replay_setting(MODEL, lookback=lookback)).replay((policy,))
    return result


def short_reads(run: ReplayResult, tokens_min: int) -> int:
    """Calls that did not read everything they share with the previous one, though it was long enough to be cached."""
    shared = ((call, call.shared_tokens) for call in run.calls if not call.is_ping)
    return sum(call.usage.cache_read < tokens for call, tokens in shared if tokens >= tokens_min)


def test_volatile_text_costs_its_own_tokens_in_messages_and_the_history_in_the_system_prompt() -> None:
    line = parallel_tools_recording(12, 4)
    recording = parse_recording(line)
    appended = replay_with(insert_volatile_messages(recording, volatile_texts, len), AdaptivePolicy())
    in_system = replay_with(append_volatile_to_system(recording, volatile_texts), AdaptivePolicy())
    tokens_min = MODEL.cache.tokens_min
    assert short_reads(appended, tokens_min) == 0
    assert float(appended.cost_usd) < 1.2 * float(replay_with(recording, AdaptivePolicy()).cost_usd)
    assert float(in_system.cost_usd) > 1.5 * float(appended.cost_usd)


@pytest.mark.parametrize("lookback", COUNTINGS)
def test_twenty_five_parallel_tools_hide_nothing_from_our_breakpoints(lookback: str) -> None:
    run = replay_with(parse_recording(parallel_tools_recording(8, 25)), AdaptivePolicy(), lookback)
    assert short_reads(run, MODEL.cache.tokens_min) == 0
    assert not any(call.is_miss for call in run.calls)


def test_a_single_breakpoint_at_the_end_misses_entries_too_many_blocks_back() -> None:
    tail = FixedPolicy("tail", prefix_and_tail_rule("5m", "5m"))
    assert (
        short_reads(
            replay_with(parse_recording(parallel_tools_recording(8, 25)), tail, "blocks"), MODEL.cache.tokens_min
        )
        == 8
    )
    assert (
        short_reads(
            replay_with(parse_recording(parallel_tools_recording(8, 25)), tail, "positions"), MODEL.cache.tokens_min
        )
        == 0
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.sampled_from(COUNTINGS), st.sampled_from(COUNTINGS))
def test_everything_is_found_for_any_number_of_tools_and_either_way_of_counting(
    tools: int, assumed: str, actual: str
) -> None:
    setting = make_replay_setting(MODEL, lookback=assumed)
    setting = msgspec.structs.replace(
        setting, provider_rules=make_replay_setting(MODEL, lookback=actual).provider_rules
    )
    (run,) = Replayer(parse_recording(parallel_tools_recording(4, tools)), setting).replay((AdaptivePolicy(),))
    assert short_reads(run, MODEL.cache.tokens_min) == 0
