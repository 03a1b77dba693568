"""Replaying a recording: what is read, what a pause costs, what pings retain, and how other layouts perform."""

from itertools import pairwise

import msgspec
import pytest
from tests.support.recordings import encode_line, tool_loop_recording

from holdfast.catalog.lookup import find_model
from holdfast.errors import UserError
from holdfast.planning.policies.fixed import FixedPolicy, new_fixed_policies, ping_upgrade_once, prefix_and_tail_rule
from holdfast.planning.policies.peers import new_compared_policies
from holdfast.planning.policy import CachePolicy, Ping, PlanningMoment
from holdfast.replay.comparison import CLEARED_TEXT, append_volatile_to_system, clear_old_results, compare_policies
from holdfast.replay.playback import ReplayedCall, Replayer, ReplayResult, ReplaySetting, make_replay_setting
from holdfast.replay.recording import Recording
from holdfast.replay.trace_files import parse_trace_line
from holdfast.types.prompt import Breakpoint
from holdfast.types.usage import Usage

MODEL = find_model("anthropic:claude-sonnet-4-6")
UPGRADE = make_replay_setting(MODEL)
PINGING = msgspec.structs.replace(UPGRADE, keep_alive=True, open_after_seconds=0.0)


def make_recording(*idle_seconds: float, words: int = 300) -> Recording:
    recording = parse_trace_line(encode_line(tool_loop_recording(idle_seconds, words=words)))
    assert isinstance(recording, Recording)
    return recording


def replay_with(recording: Recording, name: str, setting: ReplaySetting = UPGRADE) -> ReplayResult:
    (result,) = compare_policies(recording, [new_compared_policies()[name]], setting).results
    return result


def calls_of(run: ReplayResult, *, pings: bool = False) -> list[ReplayedCall]:
    return [call for call in run.calls if call.is_ping == pings]


def test_a_warm_call_reads_everything_the_previous_one_sent() -> None:
    run = replay_with(make_recording(10, 10), "tail-5m")
    for before, call in pairwise(run.calls):
        assert call.usage.cache_read == before.usage.tokens_sent == call.shared_tokens
    assert [call.is_miss for call in run.calls] == [False, False, False]


def test_a_pause_beyond_the_ttl_makes_a_call_miss() -> None:
    assert [call.is_miss for call in replay_with(make_recording(10, 400), "tail-5m").calls] == [False, False, True]
    assert [call.is_miss for call in replay_with(make_recording(10, 400), "all-1h").calls] == [False, False, False]
    assert [call.is_miss for call in replay_with(make_recording(10, 3700), "all-1h").calls] == [False, False, True]


def test_an_anchor_bridges_a_pause_only_with_ttl_upgrades() -> None:
    recording = make_recording(10, 400)
    assert not replay_with(recording, "sparse-anchors").calls[2].is_miss
    assert replay_with(recording, "sparse-anchors", make_replay_setting(MODEL, ttl_upgrade=False)).calls[2].is_miss


def test_an_upgrade_ping_reads_the_prompt_writes_the_reply_and_retains_both() -> None:
    recording = make_recording(10, 2000)
    run = replay_with(recording, "upgrade-ping", PINGING)
    (ping,) = calls_of(run, pings=True)
    before, after = calls_of(run)[1:]
    assert ping.at - before.at == 285
    assert ping.usage.cache_read == before.usage.tokens_sent
    assert 0 < ping.usage.cache_write_1h < 200
    assert 0 < ping.usage.input < 60
    assert after.usage.cache_read == ping.usage.cache_read + ping.usage.cache_write_1h


def test_nothing_is_pinged_without_keep_alive() -> None:
    assert calls_of(replay_with(make_recording(10, 2000), "upgrade-ping"), pings=True) == []


def test_pings_after_the_last_call_are_paid_for_too() -> None:
    setting = msgspec.structs.replace(PINGING, open_after_seconds=600.0)
    assert len(calls_of(replay_with(make_recording(10), "upgrade-ping", setting), pings=True)) == 1


def test_no_ping_is_sent_before_the_reply_has_arrived() -> None:
    recording = make_recording(10, 2000)
    slow = msgspec.structs.replace(recording.calls[1], replied_at=recording.calls[1].at + 290)
    slowed = msgspec.structs.replace(recording, calls=(recording.calls[0], slow, recording.calls[2]))
    assert calls_of(replay_with(slowed, "upgrade-ping", PINGING), pings=True) == []


class AlwaysPinging(FixedPolicy):
    """Keeps the cache warm forever by repeating the same request."""

    def __init__(self) -> None:
        super().__init__("patient", prefix_and_tail_rule("5m", "5m"), lambda moment, count: Ping(290.0, "5m", "idle"))


def test_plain_pings_repeat_the_request_and_write_nothing() -> None:
    (run,) = Replayer(make_recording(1000), PINGING).replay([AlwaysPinging()])
    pings = calls_of(run, pings=True)
    first, last = calls_of(run)
    assert [ping.at - first.at for ping in pings] == [290, 580, 870]
    assert {ping.usage for ping in pings} == {Usage(cache_read=first.usage.tokens_sent)}
    assert not last.is_miss


def test_after_an_upgrade_the_same_ping_is_sent_again() -> None:
    class Twice(FixedPolicy):
        def __init__(self) -> None:
            super().__init__("twice", prefix_and_tail_rule("5m", "5m"), lambda moment, count: Ping(285.0, "1h", "idle"))

    (run,) = Replayer(make_recording(800), PINGING).replay([Twice()])
    first, second = calls_of(run, pings=True)
    assert first.usage.cache_write_1h > 0
    assert second.usage.cache_write == 0
    assert second.usage.cache_read == first.usage.cache_read + first.usage.cache_write_1h


def test_after_a_compaction_only_the_stable_prefix_is_shared() -> None:
    line = tool_loop_recording([10, 10])
    line["meta"] = {"compactions": [{"at_message": 3, "summary": "Crates came in."}]}
    recording = parse_trace_line(encode_line(line))
    assert isinstance(recording, Recording)
    first, second = replay_with(recording, "tail-5m").calls[:2]
    assert first.usage.tokens_sent > second.shared_tokens == second.usage.cache_read > 1_024


def test_policies_get_the_idle_time_and_its_cause_but_not_the_providers_true_rules() -> None:
    seen: list[PlanningMoment] = []

    class ObservingPolicy(FixedPolicy):
        def __init__(self) -> None:
            super().__init__("curious", prefix_and_tail_rule("5m", "5m"))

        def choose_breakpoints(self, moment: PlanningMoment) -> tuple[Breakpoint, ...]:
            seen.append(moment)
            return super().choose_breakpoints(moment)

    Replayer(make_recording(10, 400), make_replay_setting(MODEL, ttl_upgrade=False, lookback="positions")).replay(
        [ObservingPolicy()]
    )
    assert [moment.idle_seconds for moment in seen] == [None, 10, 400]
    assert [moment.waited_for for moment in seen] == ["start", "tool", "tool"]
    assert {moment.rules.ttl_upgrade for moment in seen} == {True}
    assert {moment.rules.lookback_counting for moment in seen} == {"positions"}


def test_policies_replayed_together_do_not_affect_each_other() -> None:
    recording = make_recording(10, 400, 10, 3700, 20)
    together = compare_policies(recording, new_compared_policies().values(), PINGING).results
    assert [run.policy for run in together] == list(new_compared_policies())
    assert {run.policy: run for run in together} == {
        name: replay_with(recording, name, PINGING) for name in new_compared_policies()
    }


def test_the_unrecorded_part_of_the_first_prompt_is_added_to_the_system_prompt() -> None:
    line = tool_loop_recording([10])
    line["meta"] = {"first_call_prompt_tokens": 30_000}
    recording = parse_trace_line(encode_line(line))
    assert isinstance(recording, Recording)
    assert replay_with(recording, "tail-5m").calls[0].usage.tokens_sent == 30_000


def test_overestimated_prompts_are_scaled_down() -> None:
    line = tool_loop_recording([10])
    line["meta"] = {"first_call_prompt_tokens": 700}
    recording = parse_trace_line(encode_line(line))
    assert isinstance(recording, Recording)
    assert replay_with(recording, "none").calls[0].usage.tokens_sent == pytest.approx(700, abs=5)


def test_a_model_without_breakpoints_is_refused() -> None:
    with pytest.raises(UserError, match="takes no cache breakpoints"):
        make_replay_setting(find_model("openai:gpt-5.1"))


def test_a_volatile_system_block_loses_the_history_when_the_user_speaks() -> None:
    line = tool_loop_recording([10, 10])
    line["messages"][4]["role"] = "user"  # type: ignore[index]
    recording = parse_trace_line(encode_line(line))
    assert isinstance(recording, Recording)
    system_suffixes = [call.system_suffix for call in append_volatile_to_system(recording).calls]
    assert system_suffixes[0] == system_suffixes[1] != system_suffixes[2]
    without_volatile, with_volatile = replay_with(recording, "langchain"), replay_with(recording, "metis")
    assert not with_volatile.calls[1].is_miss
    assert 0 < with_volatile.calls[2].usage.cache_read < without_volatile.calls[2].usage.cache_read


def test_clearing_removes_all_results_but_the_last_three_once_the_prompt_is_long() -> None:
    recording = make_recording(*[10] * 8, words=12_000)
    cleared = clear_old_results(recording)
    cleared_counts = [sum(CLEARED_TEXT in str(entry) for entry in call.added) for call in cleared.calls]
    assert cleared_counts[0] == 0
    assert cleared_counts[-1] >= 1
    assert cleared.calls[-1].kept_entries is not None
    plain, edited = replay_with(recording, "langchain"), replay_with(recording, "langchain-clearing")
    assert edited.usage.tokens_sent < plain.usage.tokens_sent
    assert edited.calls[-1].usage.cache_read < plain.calls[-1].usage.cache_read


def test_short_conversations_are_not_cleared() -> None:
    recording = make_recording(10, 10, 10, 10, 10)
    assert clear_old_results(recording) == recording


@pytest.mark.parametrize(("name", "breakpoint_count"), [("tail-5m", 3), ("none", 0), ("automatic", 1), ("goose", 4)])
def test_policies_set_their_documented_number_of_breakpoints(name: str, breakpoint_count: int) -> None:
    counts: list[int] = []

    class Counting:
        def __init__(self, policy: CachePolicy) -> None:
            self._policy = policy
            self.name = policy.name
            self.record_usage, self.next_ping, self.record_ping = (
                policy.record_usage,
                policy.next_ping,
                policy.record_ping,
            )

        def choose_breakpoints(self, moment: PlanningMoment) -> tuple[Breakpoint, ...]:
            counts.append(len(breakpoints := self._policy.choose_breakpoints(moment)))
            return breakpoints

    Replayer(make_recording(10, 10), UPGRADE).replay([Counting(new_compared_policies()[name])])
    assert counts[-1] == breakpoint_count


def test_the_fixed_policies_have_distinct_names() -> None:
    assert len({policy.name for policy in new_fixed_policies()}) == len(new_fixed_policies()) == 6


def test_one_upgrade_ping_is_enough() -> None:
    (run,) = Replayer(make_recording(3000), PINGING).replay(
        [FixedPolicy("p", prefix_and_tail_rule("5m", "5m"), ping_upgrade_once)]
    )
    assert len(calls_of(run, pings=True)) == 1
