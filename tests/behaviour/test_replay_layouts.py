"""Where changing text stands decides what it costs, and many tools at once hide nothing from our marks."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.canonical.blocks import Text, ToolResult
from holdfast.catalog.lookup import find_model
from holdfast.planning.fixed import FixedPolicy, head_and_tail
from holdfast.planning.ours import OurPolicy
from holdfast.planning.policy import Policy
from holdfast.replay.layouts import with_volatile_messages, with_volatile_system
from holdfast.replay.play import Played, Player, setting_for
from holdfast.replay.recording import Recording
from holdfast.replay.traces import read_line
from recordings import fan_line, line_of

MODEL = find_model("anthropic:claude-sonnet-4-6")
COUNTINGS = ("blocks", "positions")


def read(line: dict[str, object]) -> Recording:
    recording = read_line(line_of(line))
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
    laid_out = with_volatile_messages(read(TALK), said, len)
    assert texts(laid_out) == [
        ["turn 1", "memory 0", "user 0"],
        ["turn 2", "memory 1", "user 2"],
        ["tool 4"],
        ["turn 3", "user 6"],
    ]


def test_behind_a_compaction_changing_text_is_said_anew() -> None:
    line = {**TALK, "meta": {"compactions": [{"at_message": 6, "summary": "so far"}]}}
    assert texts(with_volatile_messages(read(line), said, len))[-1] == ["so far", "turn 3", "memory 1", "user 6"]


def test_changing_text_stands_behind_results_of_tools() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "seen"}
    line = {**TALK, "messages": [{"role": "user", "content": [result, {"type": "text", "text": "stop"}]}, ANSWER]}
    (call,) = with_volatile_messages(read(line), said, len).calls
    assert isinstance(call.added[0].content[0], ToolResult)
    assert texts(with_volatile_messages(read(line), said, len)) == [["turn 1", "memory 0", "stop"]]


ANSWER = {"role": "assistant", "content": "well"}


def test_the_first_prompt_is_longer_by_what_changing_text_is_in_it() -> None:
    recording = read({**TALK, "meta": {"first_call_prompt_tokens": 5_000}})
    assert with_volatile_messages(recording, said, len).first_prompt_tokens == 5_000 + len("turn 1") + len("memory 0")
    assert with_volatile_messages(read(TALK), said, len).first_prompt_tokens is None


def test_all_changing_text_of_a_turn_stands_in_the_system_prompt_of_the_seed_layout() -> None:
    tails = [call.system_tail for call in with_volatile_system(read(TALK), said).calls]
    assert tails == ["turn 1\nmemory 0", "turn 2\nmemory 1", "turn 2\nmemory 1", "turn 3\nmemory 1"]


def played(recording: Recording, policy: Policy, lookback: str | None = None) -> Played:
    (found,) = Player(recording, setting_for(MODEL, lookback=lookback)).play((policy,))
    return found


def short_reads(run: Played, tokens_min: int) -> int:
    """Calls that did not read all that they share with the previous one, though it was long enough to be cached."""
    shared = ((call, call.shared_tokens) for call in run.calls if not call.ping)
    return sum(call.usage.cache_read < tokens for call, tokens in shared if tokens >= tokens_min)


def test_changing_text_costs_its_own_tokens_where_we_put_it_and_the_history_in_the_system_prompt() -> None:
    line = fan_line(12, 4)
    recording = read(line)
    appended = played(with_volatile_messages(recording, said, len), OurPolicy())
    in_system = played(with_volatile_system(recording, said), OurPolicy())
    floor = MODEL.cache.tokens_min
    assert short_reads(appended, floor) == 0
    assert float(appended.cost_usd) < 1.2 * float(played(recording, OurPolicy()).cost_usd)
    assert float(in_system.cost_usd) > 1.5 * float(appended.cost_usd)


@pytest.mark.parametrize("lookback", COUNTINGS)
def test_twenty_five_tools_at_once_hide_nothing_from_our_marks(lookback: str) -> None:
    run = played(read(fan_line(8, 25)), OurPolicy(), lookback)
    assert short_reads(run, MODEL.cache.tokens_min) == 0
    assert not any(call.cold for call in run.calls)


def test_a_mark_at_the_end_alone_misses_what_lies_too_many_blocks_back() -> None:
    tail = FixedPolicy("tail", head_and_tail("5m", "5m"))
    assert short_reads(played(read(fan_line(8, 25)), tail, "blocks"), MODEL.cache.tokens_min) == 8
    assert short_reads(played(read(fan_line(8, 25)), tail, "positions"), MODEL.cache.tokens_min) == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.sampled_from(COUNTINGS), st.sampled_from(COUNTINGS))
def test_however_many_tools_and_however_they_are_counted_all_is_found(tools: int, told: str, truth: str) -> None:
    setting = setting_for(MODEL, lookback=told)
    setting = msgspec.structs.replace(setting, truth=setting_for(MODEL, lookback=truth).truth)
    (run,) = Player(read(fan_line(4, tools)), setting).play((OurPolicy(),))
    assert short_reads(run, MODEL.cache.tokens_min) == 0
