"""Every named policy over random conversations: valid breakpoints, and no cost below the optimum."""

import functools
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.recordings import TOOL, encode_line

from holdfast.cachemodel.anthropic import check_breakpoints
from holdfast.catalog.lookup import find_model
from holdfast.planning.idle_times import WaitsFor
from holdfast.planning.policies.peers import new_compared_policies
from holdfast.planning.policy import CachePolicy, Ping, PingResult, PlanningMoment
from holdfast.replay.comparison import compare_policies
from holdfast.replay.playback import ReplaySetting, make_replay_setting
from holdfast.replay.recording import Recording
from holdfast.replay.trace_files import parse_trace_line
from holdfast.types.prompt import Breakpoint
from holdfast.types.usage import Usage

MODEL = find_model("anthropic:claude-opus-5-5")
NAMES = tuple(new_compared_policies())

BlockMembers = dict[str, object]
REPLY_STARTS: list[list[BlockMembers]] = [[], [{"type": "text", "text": " "}], [{"type": "thinking", "thinking": "hm"}]]


class CheckedPolicy:
    """A policy whose breakpoints are checked."""

    def __init__(self, policy: CachePolicy) -> None:
        self._policy = policy
        self.call_count = 0

    @property
    def name(self) -> str:
        return self._policy.name

    def choose_breakpoints(self, moment: PlanningMoment) -> tuple[Breakpoint, ...]:
        breakpoints = self._policy.choose_breakpoints(moment)
        check_breakpoints(moment.rules, breakpoints, blocks=len(moment.buffer.blocks))
        assert all(moment.buffer.blocks[breakpoint.block_index].accepts_breakpoint for breakpoint in breakpoints)
        assert list(breakpoints) == sorted(breakpoints, key=lambda breakpoint: breakpoint.block_index)
        self.call_count += 1
        return breakpoints

    def record_usage(self, moment: PlanningMoment, usage: Usage) -> None:
        self._policy.record_usage(moment, usage)

    def next_ping(self, moment: PlanningMoment, pings_so_far: int, waits_for: WaitsFor) -> Ping | None:
        return self._policy.next_ping(moment, pings_so_far, waits_for)

    def record_ping(self, ping: PingResult) -> None:
        self._policy.record_ping(ping)


@st.composite
def conversations(draw: st.DrawFn) -> Recording:
    """Turns of users and parallel tools with pauses, thinking and blank texts, sometimes with a compaction."""
    messages: list[dict[str, object]] = []
    at = 0.0
    for turn in range(draw(st.integers(1, 6))):
        messages.append(make_message("user", [text_block(draw, turn)], at))
        for loop in range(draw(st.integers(0, 3))):
            ids = [f"t{turn}-{loop}-{number}" for number in range(draw(st.integers(1, 12)))]
            reply_start = draw(st.sampled_from(REPLY_STARTS))
            uses: list[BlockMembers] = [{"type": "tool_use", "id": id, "name": "look", "input": {}} for id in ids]
            messages.append(make_message("assistant", [*reply_start, *uses], at + 1))
            at += draw(st.sampled_from([5.0, 20.0, 350.0]))
            results: list[BlockMembers] = [
                {"type": "tool_result", "tool_use_id": id, "content": "seen " * draw(SIZES)} for id in ids
            ]
            messages.append(make_message("tool", results, at))
        messages.append(make_message("assistant", [text_block(draw, turn)], at + 1))
        at += draw(st.sampled_from([10.0, 280.0, 600.0, 3_000.0, 8_000.0]))
    at_message = draw(st.integers(0, 40))
    meta = {"compactions": [{"at_message": at_message, "summary": "so far " * 50}]} if at_message % 3 == 0 else {}
    tools = [TOOL] if draw(st.booleans()) else []
    system = "rule " * draw(st.sampled_from([0, 400, 2_000]))
    recording = parse_trace_line(
        encode_line({"id": "x", "system": system, "tools": tools, "messages": messages, "meta": meta})
    )
    assert isinstance(recording, Recording)
    return recording


SIZES = st.sampled_from([1, 30, 800])


def text_block(draw: st.DrawFn, turn: int) -> dict[str, object]:
    return {"type": "text", "text": f"{turn} words " * draw(SIZES)}


def make_message(role: str, content: list[dict[str, object]], at: float) -> dict[str, object]:
    hours, rest = divmod(at, 3600)
    stamp = f"2026-03-{1 + int(hours) // 24:02d}T{int(hours) % 24:02d}:{int(rest // 60):02d}:{rest % 60:06.3f}Z"
    return {"role": role, "content": content, "ts": stamp}


@functools.cache
def setting(*, upgrade: bool) -> ReplaySetting:
    return msgspec.structs.replace(make_replay_setting(MODEL, ttl_upgrade=upgrade), keep_alive=True)


@settings(max_examples=40, deadline=None)
@given(conversations(), st.booleans())
def test_breakpoints_are_valid_and_no_policy_costs_less_than_the_optimum(recording: Recording, upgrade: bool) -> None:
    policies = [CheckedPolicy(policy) for policy in new_compared_policies().values()]
    comparison = compare_policies(recording, policies, setting(upgrade=upgrade))
    assert [policy.call_count for policy in policies] == [len(recording.calls)] * len(policies)
    # A policy without a breakpoint at the very end of a prompt pays no write for it; the optimum writes all or nothing.
    optimum = Decimal(comparison.optimum_usd) * Decimal("0.99")
    assert {result.policy for result in comparison.results if result.cost_usd < optimum} <= {"langchain-clearing"}


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_shares_no_state_between_sessions(name: str) -> None:
    one, two = new_compared_policies()[name], new_compared_policies()[name]
    assert one is not two
    assert one.name == two.name == name
