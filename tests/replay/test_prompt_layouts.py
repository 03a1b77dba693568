"""Where changing text stands decides what it costs, and many tools at once hide nothing from our marks."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.recordings import encode_line, parallel_tools_recording

from holdfast.catalog.lookup import find_model
from holdfast.planning.adaptive_policy import AdaptivePolicy
from holdfast.planning.policies.fixed import FixedPolicy, prefix_and_tail_rule
from holdfast.planning.policy import CachePolicy
from holdfast.replay.playback import Replayer, ReplayResult, make_replay_setting
from holdfast.replay.prompt_layouts import append_volatile_to_system, insert_volatile_messages
from holdfast.replay.recording import Recording
from holdfast.replay.trace_files import parse_trace_line
from holdfast.types.blocks import Text, ToolResult

MODEL = find_model("anthropic:claude-sonnet-4-6")
COUNTINGS = ("blocks", "positions")


def read(line: dict[str, object]) -> Recording:
    recording = parse_trace_line(encode_line(line))
    assert isinstance(recording, Recording)
    return recording


def said(turn: int) -> tuple[str, ...]:
    return f"turn {turn}", f"memory {turn // 2}"


def texts(recording: Recording) -> list[list[str]]:
    """What each call adds in words, results of tools left out."""
    return [
        [block.text for passage in call.added for block in passage.content if isinstance(block, Text)]
        for call in recording.calls
    ]


TALK: dict[str, object] = {
    "id": "talk",
    "messages": [
        {"role": role, "content": f"{role} {number}"}
        for number, role in enumerate(
            ("user", "assistant", "user", "assistant", "tool", "assistant", "user", "assistant")
        )
    ],
}


def test_changing_text_is_said_in_front_of_the_person_once_and_not_inside_a_tool_loop() -> None:
    laid_out = insert_volatile_messages(read(TALK), said, len)
    assert texts(laid_out) == [
        ["turn 1", "memory 0", "user 0"],
        ["turn 2", "memory 1", "user 2"],
        ["tool 4"],
        ["turn 3", "user 6"],
    ]


def test_behind_a_compaction_changing_text_is_said_anew() -> None:
    line = {**TALK, "meta": {"compactions": [{"at_message": 6, "summary": "so far"}]}}
    assert texts(insert_volatile_messages(read(line), said, len))[-1] == ["so far", "turn 3", "memory 1", "user 6"]


def test_changing_text_stands_behind_results_of_tools() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "seen"}
    line = {**TALK, "messages": [{"role": "user", "content": [result, {"type": "text", "text": "stop"}]}, ANSWER]}
    (call,) = insert_volatile_messages(read(line), said, len).calls
    assert isinstance(call.added[0].content[0], ToolResult)
    assert texts(insert_volatile_messages(read(line), said, len)) == [["turn 1", "memory 0", "stop"]]


ANSWER = {"role": "assistant", "content": "well"}


def test_the_first_prompt_is_longer_by_what_changing_text_is_in_it() -> None:
    recording = read({**TALK, "meta": {"first_call_prompt_tokens": 5_000}})
    assert insert_volatile_messages(recording, said, len).first_prompt_tokens == 5_000 + len("turn 1") + len("memory 0")
    assert insert_volatile_messages(read(TALK), said, len).first_prompt_tokens is None


def test_all_changing_text_of_a_turn_stands_in_the_system_prompt_of_the_seed_layout() -> None:
    tails = [call.system_suffix for call in append_volatile_to_system(read(TALK), said).calls]
    assert tails == ["turn 1\nmemory 0", "turn 2\nmemory 1", "turn 2\nmemory 1", "turn 3\nmemory 1"]


def played(recording: Recording, policy: CachePolicy, lookback: str | None = None) -> ReplayResult:
    (found,) = Replayer(recording, make_replay_setting(MODEL, lookback=lookback)).replay((policy,))
    return found


def short_reads(run: ReplayResult, tokens_min: int) -> int:
    """Calls that did not read all that they share with the previous one, though it was long enough to be cached."""
    shared = ((call, call.shared_tokens) for call in run.calls if not call.is_ping)
    return sum(call.usage.cache_read < tokens for call, tokens in shared if tokens >= tokens_min)


def test_changing_text_costs_its_own_tokens_where_we_put_it_and_the_history_in_the_system_prompt() -> None:
    line = parallel_tools_recording(12, 4)
    recording = read(line)
    appended = played(insert_volatile_messages(recording, said, len), AdaptivePolicy())
    in_system = played(append_volatile_to_system(recording, said), AdaptivePolicy())
    floor = MODEL.cache.tokens_min
    assert short_reads(appended, floor) == 0
    assert float(appended.cost_usd) < 1.2 * float(played(recording, AdaptivePolicy()).cost_usd)
    assert float(in_system.cost_usd) > 1.5 * float(appended.cost_usd)


@pytest.mark.parametrize("lookback", COUNTINGS)
def test_twenty_five_tools_at_once_hide_nothing_from_our_marks(lookback: str) -> None:
    run = played(read(parallel_tools_recording(8, 25)), AdaptivePolicy(), lookback)
    assert short_reads(run, MODEL.cache.tokens_min) == 0
    assert not any(call.is_miss for call in run.calls)


def test_a_mark_at_the_end_alone_misses_what_lies_too_many_blocks_back() -> None:
    tail = FixedPolicy("tail", prefix_and_tail_rule("5m", "5m"))
    assert short_reads(played(read(parallel_tools_recording(8, 25)), tail, "blocks"), MODEL.cache.tokens_min) == 8
    assert short_reads(played(read(parallel_tools_recording(8, 25)), tail, "positions"), MODEL.cache.tokens_min) == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.sampled_from(COUNTINGS), st.sampled_from(COUNTINGS))
def test_however_many_tools_and_however_they_are_counted_all_is_found(tools: int, told: str, truth: str) -> None:
    setting = make_replay_setting(MODEL, lookback=told)
    setting = msgspec.structs.replace(setting, provider_rules=make_replay_setting(MODEL, lookback=truth).provider_rules)
    (run,) = Replayer(read(parallel_tools_recording(4, tools)), setting).replay((AdaptivePolicy(),))
    assert short_reads(run, MODEL.cache.tokens_min) == 0
