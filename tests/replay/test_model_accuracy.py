"""Why recorded calls were cold, what of that the model foresees, and how both are told."""

import msgspec
import pytest
from tests.support.recordings import encode_line, tool_loop_recording

from holdfast.catalog.lookup import find_model
from holdfast.planning.policy import WaitedFor
from holdfast.replay.cache_misses import (
    COMMAND_PREFIX,
    PLAN_PREFIX,
    SKILL_PREFIX,
    CacheMiss,
    CallContext,
    LossCounts,
    count_losses,
    explain_miss,
    explain_misses,
    find_miss_reason,
    find_settings_switches,
    infer_ttls,
)
from holdfast.replay.model_accuracy import ModelFit, format_model_fit, measure_model_fit
from holdfast.replay.playback import make_replay_setting
from holdfast.replay.recording import RecordedCall, Recording
from holdfast.replay.trace_files import parse_trace_line
from holdfast.types.blocks import Text
from holdfast.types.prompt import HistoryEntry
from holdfast.types.usage import Usage

MODEL = find_model("anthropic:claude-sonnet-4-6")
UPGRADE = make_replay_setting(MODEL)
HEAD, FIRST = 1_000, 3_000


def recorded(*gaps: float) -> Recording:
    read = parse_trace_line(encode_line(tool_loop_recording(gaps)))
    assert isinstance(read, Recording)
    return read


def with_usage(recording: Recording, *usages: Usage | None) -> Recording:
    pairs = zip(recording.calls, usages, strict=True)
    calls = tuple(msgspec.structs.replace(call, usage=usage) for call, usage in pairs)
    return msgspec.structs.replace(recording, calls=calls)


def call(
    at: float = 0,
    *,
    read: int = 0,
    sent: int = 0,
    says: str = "",
    waited_for: WaitedFor = "tool",
    model: str | None = None,
    kept: int | None = None,
    hour: bool = False,
) -> RecordedCall:
    """A call that writes what it does not read."""
    usage = Usage(cache_read=read, cache_write_1h=(sent - read) * hour, cache_write_5m=(sent - read) * (not hour))
    added = (HistoryEntry("user", (Text(says or "go on"),)),)
    return RecordedCall(at, at, waited_for, added, usage=usage, model=model, kept_entries=kept)


def causes(*calls: RecordedCall) -> list[str | None]:
    found = explain_misses(Recording("one", "", (), calls), MODEL.cache)
    return [cold.reason if cold else None for cold in found]


BEFORE = call(sent=9_000, model="a")
COLD = call(10, read=HEAD, sent=9_500, model="a")


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (call(10, read=9_000, sent=9_500, model="a"), None),
        (call(10, read=4_500, sent=9_500, model="a"), None),
        (call(10, read=4_499, sent=9_500, model="a"), "lost"),
        (call(299, read=HEAD, sent=9_000, model="a"), "lost"),
        (call(300, read=HEAD, sent=9_500, model="a"), "expired"),
        (call(10, read=HEAD, sent=8_999, model="a"), "edited"),
        (call(300, read=HEAD, sent=8_999, model="a"), "expired"),
        (call(10, read=HEAD, sent=1_999, model="a"), None),
        (call(10, read=HEAD, sent=5_000, model="a", kept=0), "compacted"),
        (call(900, read=HEAD, sent=5_000, model="b", kept=0), "model changed"),
        (call(10, read=HEAD, sent=9_500), "lost"),
    ],
)
def test_the_first_reason_that_suffices_is_the_one_that_is_named(after: RecordedCall, reason: str | None) -> None:
    assert find_miss_reason(BEFORE, after, MODEL.cache, "5m") == reason


def test_an_hour_is_an_hour() -> None:
    late = call(3_599, read=HEAD, sent=9_500)
    assert find_miss_reason(BEFORE, late, MODEL.cache, "1h") == "lost"
    assert find_miss_reason(BEFORE, msgspec.structs.replace(late, at=3_600), MODEL.cache, "1h") == "expired"


def test_nothing_is_said_of_calls_without_usage() -> None:
    silent = msgspec.structs.replace(COLD, usage=None)
    assert find_miss_reason(BEFORE, silent, MODEL.cache, "5m") is None
    assert find_miss_reason(silent, COLD, MODEL.cache, "5m") is None


@pytest.mark.parametrize(
    ("around", "cold"),
    [
        (CallContext(FIRST, HEAD), CacheMiss("lost", "1000 tokens were read, none of them after the first prompt")),
        (CallContext(HEAD), CacheMiss("lost", "1000 tokens were read, none of them after the first prompt")),
        (
            CallContext(HEAD - 1),
            CacheMiss("unexplained", "1000 tokens were read, up to somewhere within the conversation"),
        ),
        (
            CallContext(FIRST, HEAD + 1),
            CacheMiss("prefix changed", "1000 tokens of the stable prefix were read, 1001 by an earlier call"),
        ),
        (
            CallContext(FIRST, HEAD, next_cache_read=9_000),
            CacheMiss("prefix changed", "the next call still read the 9000 tokens of the previous one"),
        ),
        (
            CallContext(FIRST, HEAD, next_cache_read=9_500),
            CacheMiss("lost", "1000 tokens were read, none of them after the first prompt"),
        ),
        (CallContext(FIRST, HEAD, settings_switch="a plan ended"), CacheMiss("prefix changed", "a plan ended")),
    ],
)
def test_the_calls_around_tell_what_two_calls_alone_do_not(around: CallContext, cold: CacheMiss) -> None:
    assert explain_miss(BEFORE, COLD, MODEL.cache, "5m", around=around) == cold


def test_a_prompt_that_did_not_grow_is_no_evidence_that_the_entry_was_still_there() -> None:
    same = call(10, read=HEAD, sent=9_000)
    assert find_miss_reason(BEFORE, same, MODEL.cache, "5m", around=CallContext(FIRST, next_cache_read=9_000)) == "lost"


def test_where_nothing_at_all_was_read_the_head_may_be_lost_too() -> None:
    assert find_miss_reason(BEFORE, call(10, sent=9_500), MODEL.cache, "5m", around=CallContext(FIRST, HEAD)) == "lost"


def test_a_head_that_is_read_less_far_than_once_before_has_changed() -> None:
    first = call(0, read=0, sent=FIRST)
    lost = call(10, read=HEAD, sent=9_000)
    again = call(20, read=HEAD, sent=19_000)
    assert causes(first, lost, again) == [None, "lost", "lost"]
    assert causes(first, lost, msgspec.structs.replace(again, usage=Usage(cache_read=900, cache_write_5m=18_100))) == [
        None,
        "lost",
        "prefix changed",
    ]
    shared = call(0, read=2_000, sent=FIRST)
    assert causes(shared, call(10, read=1_999, sent=9_000), call(20, read=2_000, sent=19_000)) == [None, None, "lost"]
    assert causes(shared, call(10, read=1_400, sent=9_000)) == [None, "prefix changed"]


def test_what_was_read_of_the_conversation_tells_nothing_of_the_head() -> None:
    calls = (call(0, sent=FIRST), call(5, read=FIRST, sent=20_000), call(10, read=FIRST + 1, sent=20_500))
    assert causes(*calls, call(15, read=HEAD, sent=21_000)) == [None, None, "unexplained", "lost"]


def test_another_model_has_another_head() -> None:
    first, other = call(0, read=2_000, sent=FIRST, model="a"), call(10, read=0, sent=9_000, model="b")
    assert causes(first, other, call(20, read=1_400, sent=9_500, model="b")) == [None, "model changed", "lost"]


def test_what_the_next_call_still_finds_was_not_lost() -> None:
    calls = (call(0, sent=FIRST), call(5, read=FIRST, sent=9_000), call(10, read=HEAD, sent=9_500))
    assert causes(*calls, call(15, read=9_000, sent=9_800)) == [None, None, "prefix changed", None]
    assert causes(*calls, call(15, read=9_500, sent=9_800)) == [None, None, "lost", None]


def spoken(*turns: tuple[WaitedFor, str]) -> Recording:
    return Recording("one", "", (), tuple(call(says=says, waited_for=waited_for) for waited_for, says in turns))


def test_commands_skills_and_plans_are_turnings_where_they_begin_and_where_they_are_over() -> None:
    command, skill, plan = (
        f"{COMMAND_PREFIX}review</command-message>",
        f"{SKILL_PREFIX} /skills/look",
        f"{PLAN_PREFIX}\n\nBuild it.",
    )
    recording = spoken(
        ("start", plan),
        ("tool", "done"),
        ("user", "and now?"),
        ("user", command),
        ("tool", "seen"),
        ("user", command),
        ("user", "thanks"),
        ("user", "more"),
        ("tool", skill),
        ("tool", "seen"),
        ("user", f"do not {COMMAND_PREFIX}"),
    )
    assert find_settings_switches(recording) == (
        *(None, None, "a plan ended"),
        *("a command begins", None, None, "a command ended", None),
        *("a skill begins", None, "a skill ended"),
    )


def test_the_model_is_held_against_recorded_usage_call_by_call() -> None:
    usages = (
        Usage(input=10, cache_write_5m=3_000),
        Usage(input=10, cache_read=3_010, cache_write_5m=800),
        Usage(input=10, cache_write_5m=4_600),
        Usage(input=10, cache_read=1_000, cache_write_5m=4_000),
    )
    found = measure_model_fit(with_usage(recorded(10, 400, 10), *usages), UPGRADE)
    assert found is not None
    assert found.calls == 3
    assert {reason: count for reason, count in found.misses.items() if count} == {"expired": 1, "lost": 1}
    assert {reason: count for reason, count in found.misses_predicted.items() if count} == {"expired": 1}
    assert (found.miss_count, found.predicted_count, found.explained_count, found.misses_mispredicted) == (2, 1, 1, 0)
    assert found.hits_expected == {"settings switches": 0, "elsewhere": 2}
    assert found.hits_missed == {"settings switches": 0, "elsewhere": 1}


WRITTEN = Usage(cache_write_5m=4_000)


def test_a_call_that_is_taken_for_cold_and_was_not_is_counted() -> None:
    found = measure_model_fit(with_usage(recorded(400), WRITTEN, Usage(cache_read=4_000, cache_write_5m=500)), UPGRADE)
    assert found is not None
    assert (found.miss_count, found.predicted_count, found.misses_mispredicted) == (0, 0, 1)


def changed(recording: Recording, index: int, **changes: object) -> Recording:
    calls = list(recording.calls)
    calls[index] = msgspec.structs.replace(calls[index], **changes)
    return msgspec.structs.replace(recording, calls=tuple(calls))


def test_a_compaction_and_another_model_are_foreseen_but_nothing_is_imagined_behind_a_compaction() -> None:
    recording = with_usage(recorded(10), WRITTEN, Usage(cache_read=100, cache_write_5m=4_000))
    found = measure_model_fit(changed(recording, 1, kept_entries=0), UPGRADE)
    assert found is not None
    assert (found.misses["compacted"], found.misses_predicted["compacted"]) == (1, 1)
    assert found.hits_expected == {"settings switches": 0, "elsewhere": 0}
    models = changed(changed(recording, 0, model="a"), 1, model="b")
    found = measure_model_fit(models, UPGRADE)
    assert found is not None
    assert (found.misses["model changed"], found.misses_predicted["model changed"]) == (1, 1)
    assert found.hits_expected == {"settings switches": 0, "elsewhere": 0}
    warm = with_usage(recorded(400), WRITTEN, Usage(cache_read=3_000, cache_write_5m=1_000))
    found = measure_model_fit(changed(warm, 1, kept_entries=0), UPGRADE)
    assert found is not None
    assert (found.miss_count, found.misses_mispredicted) == (0, 0)


def test_a_command_is_foreseen_to_be_cold_and_an_edit_is_not() -> None:
    recording = with_usage(recorded(10), WRITTEN, Usage(cache_read=100, cache_write_5m=4_000))
    said = (HistoryEntry("user", (Text(f"{COMMAND_PREFIX}review"),)),)
    found = measure_model_fit(changed(recording, 1, added=said, waited_for="user"), UPGRADE)
    assert found is not None
    assert (found.misses["prefix changed"], found.misses_predicted["prefix changed"]) == (1, 1)
    assert found.hits_expected == found.hits_missed == {"settings switches": 1, "elsewhere": 0}
    found = measure_model_fit(with_usage(recorded(10), WRITTEN, Usage(cache_read=100, cache_write_5m=3_000)), UPGRADE)
    assert found is not None
    assert (found.explained_count, found.predicted_count) == (1, 0)
    assert found.hits_expected == {"settings switches": 0, "elsewhere": 0}


def test_likenesses_add_up() -> None:
    one = measure_model_fit(with_usage(recorded(400), WRITTEN, WRITTEN), UPGRADE)
    assert one is not None
    both = one + one
    assert (both.calls, both.miss_count, both.predicted_count) == (2, 2, 2)
    assert both.recorded == WRITTEN + WRITTEN
    assert one + ModelFit() == one


def test_what_is_told_keeps_foreseen_named_and_lost_apart() -> None:
    recording = with_usage(
        recorded(400, 10, 10), WRITTEN, WRITTEN, Usage(cache_write_5m=4_500), Usage(cache_write_5m=4_400)
    )
    found = measure_model_fit(recording, UPGRADE)
    assert found is not None
    lines = dict(format_model_fit(found))
    assert lines["recorded cache misses"] == "3 of 3 (100.0%)"
    assert lines["  predicted from times and bytes"] == "1 of 3 (33.3%); 0 predicted misses were hits"
    assert lines["  explained by the reported usage"] == "2 of 3 (66.7%)"
    assert lines["  lost within the TTL, by the provider or an unrecorded change"] == "1 of 3 (33.3%)"
    assert lines["  unexplained"] == "0 of 3 (0.0%)"
    assert lines["  edited"] == "1, predicted 0"
    assert (
        lines["  missed within the TTL with a prompt that was not shorter"]
        == "0 of 0 settings switches, 1 of 1 (100.0%) elsewhere"
    )
    assert "  compacted" not in lines


def lossy(*, user_lost: int, tool_lost: int, gap: float = 60) -> Recording:
    """A hundred rounds of a message and a tool's result; so many of each lose what the call before had sent."""
    calls = [call(sent=9_000, waited_for="start")]
    for number in range(100):
        for waited_for, lost in (("user", user_lost), ("tool", tool_lost)):
            sent = (calls[-1].usage or Usage()).tokens_sent
            read = HEAD if number < lost else sent
            says = "So?" if waited_for == "user" else "the result"
            calls.append(
                msgspec.structs.replace(
                    call(calls[-1].at + gap, read=read, sent=sent + 100, says=says), waited_for=waited_for
                )
            )
    return Recording("lossy", "", (), tuple(calls))


def test_what_is_lost_behind_a_person_far_more_often_than_behind_a_tool_is_likely_the_clients() -> None:
    found = measure_model_fit(lossy(user_lost=10, tool_lost=0), UPGRADE)
    assert found is not None
    assert found.loss_counts == LossCounts(100, 10, 100, 0)
    assert (found.misses["lost"], found.explained_alone_count, found.explained_count) == (10, 0, 10)
    lines = dict(format_model_fit(found))
    assert lines["  likely caused by the client, by when they happen"] == (
        "lost after 10 of 100 user messages, 0 of 100 tool results: 10 times as often"
    )
    assert lines["  explained in total"] == "10 of 10 (100.0%)"
    assert lines["  lost within the TTL, by the provider or an unrecorded change"] == "0 of 10 (0.0%)"


@pytest.mark.parametrize(
    ("user_lost", "tool_lost", "tell"),
    [(10, 0, True), (5, 0, True), (4, 0, False), (10, 1, True), (9, 1, False), (10, 10, False), (0, 0, False)],
)
def test_what_a_provider_may_as_well_have_lost_is_not_laid_at_the_clients_door(
    user_lost: int, tool_lost: int, tell: bool
) -> None:
    assert count_losses(lossy(user_lost=user_lost, tool_lost=tool_lost), MODEL.cache).is_likely_client is tell


def test_three_losses_are_the_least_that_tell_and_those_that_a_lifetime_explains_do_not() -> None:
    few = LossCounts(after_user=4, lost_after_user=2, after_tool=1_000)
    assert (few.is_likely_client, few.loss_ratio > 100, LossCounts().is_likely_client, LossCounts().loss_ratio) == (
        False,
        True,
        False,
        0.0,
    )
    assert count_losses(lossy(user_lost=10, tool_lost=0, gap=300), MODEL.cache) == LossCounts()
    assert count_losses(recorded(10), MODEL.cache) == LossCounts()


def test_a_turning_of_the_client_and_what_is_named_by_itself_are_not_counted_among_its_habits() -> None:
    turning = call(10, read=HEAD, sent=9_500, says=f"{COMMAND_PREFIX}review", waited_for="user")
    shorter = call(10, read=HEAD, sent=8_500, waited_for="user")
    for second in (turning, shorter):
        assert count_losses(Recording("one", "", (), (call(sent=9_000), second)), MODEL.cache) == LossCounts()


def test_how_far_the_head_was_read_is_known_from_any_call_that_missed_the_rest() -> None:
    start = call(read=0, sent=9_000, waited_for="start")
    half = call(10, read=6_000, sent=9_500)
    assert causes(start, half, call(20, read=HEAD, sent=9_900)) == [None, None, "prefix changed"]
    # One that missed next to nothing has read the conversation too, and tells nothing of the head.
    whole = call(10, read=7_001, sent=9_500)
    assert causes(start, whole, call(20, read=HEAD, sent=9_900)) == [None, None, "lost"]


def test_recordings_without_usage_are_not_held_against_anything() -> None:
    assert measure_model_fit(recorded(10), UPGRADE) is None
    assert infer_ttls(recorded(10)) == ()
    assert explain_misses(recorded(10), MODEL.cache) == (None, None)


def test_calls_without_usage_are_passed_over() -> None:
    found = measure_model_fit(with_usage(recorded(10, 10, 10), WRITTEN, None, WRITTEN, WRITTEN), UPGRADE)
    assert found is not None
    assert found.calls == 1


def test_a_call_that_wrote_nothing_is_taken_to_keep_the_lifetime_before_it() -> None:
    hour, nothing, minutes = Usage(cache_write_1h=5), Usage(cache_read=5), Usage(cache_write_5m=5)
    recording = with_usage(
        recorded(1, 1, 1, 1), nothing, hour, nothing, minutes, Usage(cache_write_1h=9, cache_write_5m=1)
    )
    assert infer_ttls(recording) == ("1h", "1h", "1h", "5m", "5m")
