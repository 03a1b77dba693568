"""Every named policy, over random conversations: legal marks, and no cost below the least."""

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

Said = dict[str, object]
OPENINGS: list[list[Said]] = [[], [{"type": "text", "text": " "}], [{"type": "thinking", "thinking": "hm"}]]


class Watched:
    """A policy whose marks are checked on their way."""

    def __init__(self, policy: CachePolicy) -> None:
        self._policy = policy
        self.seen = 0

    @property
    def name(self) -> str:
        return self._policy.name

    def choose_breakpoints(self, moment: PlanningMoment) -> tuple[Breakpoint, ...]:
        marks = self._policy.choose_breakpoints(moment)
        check_breakpoints(moment.rules, marks, blocks=len(moment.buffer.blocks))
        assert all(moment.buffer.blocks[mark.block_index].accepts_breakpoint for mark in marks)
        assert list(marks) == sorted(marks, key=lambda mark: mark.block_index)
        self.seen += 1
        return marks

    def record_usage(self, moment: PlanningMoment, usage: Usage) -> None:
        self._policy.record_usage(moment, usage)

    def next_ping(self, moment: PlanningMoment, pings_so_far: int, waits_for: WaitsFor) -> Ping | None:
        return self._policy.next_ping(moment, pings_so_far, waits_for)

    def record_ping(self, ping: PingResult) -> None:
        self._policy.record_ping(ping)


@st.composite
def conversations(draw: st.DrawFn) -> Recording:
    """Turns of people and fans of tools, with pauses, thinking and blank texts; now and then summed up."""
    messages: list[dict[str, object]] = []
    at = 0.0
    for turn in range(draw(st.integers(1, 6))):
        messages.append(said("user", [text(draw, turn)], at))
        for loop in range(draw(st.integers(0, 3))):
            ids = [f"t{turn}-{loop}-{number}" for number in range(draw(st.integers(1, 12)))]
            opening = draw(st.sampled_from(OPENINGS))
            uses: list[Said] = [{"type": "tool_use", "id": id, "name": "look", "input": {}} for id in ids]
            messages.append(said("assistant", [*opening, *uses], at + 1))
            at += draw(st.sampled_from([5.0, 20.0, 350.0]))
            results: list[Said] = [
                {"type": "tool_result", "tool_use_id": id, "content": "seen " * draw(SIZES)} for id in ids
            ]
            messages.append(said("tool", results, at))
        messages.append(said("assistant", [text(draw, turn)], at + 1))
        at += draw(st.sampled_from([10.0, 280.0, 600.0, 3_000.0, 8_000.0]))
    at_message = draw(st.integers(0, 40))
    meta = {"compactions": [{"at_message": at_message, "summary": "so far " * 50}]} if at_message % 3 == 0 else {}
    tools = [TOOL] if draw(st.booleans()) else []
    system = "rule " * draw(st.sampled_from([0, 400, 2_000]))
    read = parse_trace_line(
        encode_line({"id": "x", "system": system, "tools": tools, "messages": messages, "meta": meta})
    )
    assert isinstance(read, Recording)
    return read


SIZES = st.sampled_from([1, 30, 800])


def text(draw: st.DrawFn, turn: int) -> dict[str, object]:
    return {"type": "text", "text": f"{turn} words " * draw(SIZES)}


def said(role: str, content: list[dict[str, object]], at: float) -> dict[str, object]:
    hours, rest = divmod(at, 3600)
    stamp = f"2026-03-{1 + int(hours) // 24:02d}T{int(hours) % 24:02d}:{int(rest // 60):02d}:{rest % 60:06.3f}Z"
    return {"role": role, "content": content, "ts": stamp}


@functools.cache
def setting(*, upgrade: bool) -> ReplaySetting:
    return msgspec.structs.replace(make_replay_setting(MODEL, ttl_upgrade=upgrade), keep_alive=True)


@settings(max_examples=40, deadline=None)
@given(conversations(), st.booleans())
def test_marks_are_legal_and_nothing_costs_less_than_the_optimum(recording: Recording, upgrade: bool) -> None:
    policies = [Watched(policy) for policy in new_compared_policies().values()]
    found = compare_policies(recording, policies, setting(upgrade=upgrade))
    assert [policy.seen for policy in policies] == [len(recording.calls)] * len(policies)
    # What a policy leaves unmarked at the very end of a prompt costs no write; the optimum writes all or nothing.
    floor = Decimal(found.optimum_usd) * Decimal("0.99")
    assert {played.policy for played in found.results if played.cost_usd < floor} <= {"langchain-clearing"}


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_remembers_nothing_of_another_session(name: str) -> None:
    one, two = new_compared_policies()[name], new_compared_policies()[name]
    assert one is not two
    assert one.name == two.name == name
