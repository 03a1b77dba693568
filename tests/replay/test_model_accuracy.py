"""Why recorded calls missed the cache, how much of that the cache model predicts, and how both are reported."""

import msgspec
import pytest
from tests.support.recordings import encode_line, tool_loop_recording

from holdfast.catalog.lookup import find_model
from holdfast.planning.policy import WaitedFor
from holdfast.replay.cache_misses import (
    COMMAND_PREFIX,
    NO_CONTEXT,
    PLAN_PREFIX,
    SKILL_PREFIX,
    CacheMiss,
    CallContext,
    LossCounts,
    count_losses,
    explain_miss,
    explain_misses,
    find_settings_switches,
    infer_ttls,
)
from holdfast.replay.model_accuracy import ModelFit, format_model_fit, measure_model_fit
from holdfast.replay.playback import make_replay_setting
from holdfast.replay.recording import RecordedCall, Recording
from holdfast.replay.trace_files import parse_trace_line
from holdfast.types.blocks import Text
from holdfast.types.prompt import HistoryEntry, Ttl
from holdfast.types.usage import Usage

MODEL = find_model("anthropic:claude-sonnet-4-6")
UPGRADE = make_replay_setting(MODEL)
PREFIX_TOKENS, FIRST_PROMPT_TOKENS = 1_000, 3_000


def find_miss_reason(
    before: RecordedCall, after: RecordedCall, ttl: Ttl, around: CallContext = NO_CONTEXT
) -> str | None:
    miss = explain_miss(before, after, MODEL.cache, ttl, around=around)
    return miss.reason if miss is not None else None


def make_recording(*idle_seconds: float) -> Recording:
    recording = parse_trace_line(encode_line(tool_loop_recording(idle_seconds)))
    assert isinstance(recording, Recording)
    return recording


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
    kept_entries: int | None = None,
    hour: bool = False,
) -> RecordedCall:
    """A call that writes what it does not read."""
    usage = Usage(cache_read=read, cache_write_1h=(sent - read) * hour, cache_write_5m=(sent - read) * (not hour))
    added = (HistoryEntry("user", (Text(says or "go on"),)),)
    return RecordedCall(at, at, waited_for, added, usage=usage, model=model, kept_entries=kept_entries)


def miss_reasons(*calls: RecordedCall) -> list[str | None]:
    misses = explain_misses(Recording("one", "", (), calls), MODEL.cache)
    return [miss.reason if miss else None for miss in misses]


BEFORE = call(sent=9_000, model="a")
MISSED = call(10, read=PREFIX_TOKENS, sent=9_500, model="a")


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (call(10, read=9_000, sent=9_500, model="a"), None),
        (call(10, read=4_500, sent=9_500, model="a"), None),
        (call(10, read=4_499, sent=9_500, model="a"), "lost"),
        (call(299, read=PREFIX_TOKENS, sent=9_000, model="a"), "lost"),
        (call(300, read=PREFIX_TOKENS, sent=9_500, model="a"), "expired"),
        (call(10, read=PREFIX_TOKENS, sent=8_999, model="a"), "edited"),
        (call(300, read=PREFIX_TOKENS, sent=8_999, model="a"), "expired"),
        (call(10, read=PREFIX_TOKENS, sent=1_999, model="a"), None),
        (call(10, read=PREFIX_TOKENS, sent=5_000, model="a", kept_entries=0), "compacted"),
        (call(900, read=PREFIX_TOKENS, sent=5_000, model="b", kept_entries=0), "model changed"),
        (call(10, read=PREFIX_TOKENS, sent=9_500), "lost"),
    ],
)
def test_the_first_sufficient_reason_is_reported(after: RecordedCall, reason: str | None) -> None:
    assert find_miss_reason(BEFORE, after, "5m") == reason


def test_a_one_hour_ttl_lasts_one_hour() -> None:
    late = call(3_599, read=PREFIX_TOKENS, sent=9_500)
    assert find_miss_reason(BEFORE, late, "1h") == "lost"
    assert find_miss_reason(BEFORE, msgspec.structs.replace(late, at=3_600), "1h") == "expired"


def test_calls_without_usage_are_not_explained() -> None:
    silent = msgspec.structs.replace(MISSED, usage=None)
    assert find_miss_reason(BEFORE, silent, "5m") is None
    assert find_miss_reason(silent, MISSED, "5m") is None


@pytest.mark.parametrize(
    ("around", "miss"),
    [
        (
            CallContext(FIRST_PROMPT_TOKENS, PREFIX_TOKENS),
            CacheMiss("lost", "1000 tokens were read, none of them after the first prompt"),
        ),
        (CallContext(PREFIX_TOKENS), CacheMiss("lost", "1000 tokens were read, none of them after the first prompt")),
        (
            CallContext(PREFIX_TOKENS - 1),
            CacheMiss("unexplained", "1000 tokens were read, up to somewhere within the conversation"),
        ),
        (
            CallContext(FIRST_PROMPT_TOKENS, PREFIX_TOKENS + 1),
            CacheMiss("prefix changed", "1000 tokens of the stable prefix were read, 1001 by an earlier call"),
        ),
        (
            CallContext(FIRST_PROMPT_TOKENS, PREFIX_TOKENS, next_cache_read=9_000),
            CacheMiss("prefix changed", "the next call still read the 9000 tokens of the previous one"),
        ),
        (
            CallContext(FIRST_PROMPT_TOKENS, PREFIX_TOKENS, next_cache_read=9_500),
            CacheMiss("lost", "1000 tokens were read, none of them after the first prompt"),
        ),
        (
            CallContext(FIRST_PROMPT_TOKENS, PREFIX_TOKENS, settings_switch="a plan ended"),
            CacheMiss("prefix changed", "a plan ended"),
        ),
    ],
)
def test_the_surrounding_calls_explain_what_two_calls_alone_do_not(around: CallContext, miss: CacheMiss) -> None:
    assert explain_miss(BEFORE, MISSED, MODEL.cache, "5m", around=around) == miss


def test_a_prompt_that_did_not_grow_is_no_evidence_that_the_entry_still_existed() -> None:
    same = call(10, read=PREFIX_TOKENS, sent=9_000)
    assert find_miss_reason(BEFORE, same, "5m", CallContext(FIRST_PROMPT_TOKENS, next_cache_read=9_000)) == "lost"


def test_if_nothing_was_read_the_stable_prefix_may_be_lost_too() -> None:
    assert (
        find_miss_reason(BEFORE, call(10, sent=9_500), "5m", CallContext(FIRST_PROMPT_TOKENS, PREFIX_TOKENS)) == "lost"
    )


def test_a_stable_prefix_read_less_far_than_before_has_changed() -> None:
    first = call(0, read=0, sent=FIRST_PROMPT_TOKENS)
    lost = call(10, read=PREFIX_TOKENS, sent=9_000)
    again = call(20, read=PREFIX_TOKENS, sent=19_000)
    assert miss_reasons(first, lost, again) == [None, "lost", "lost"]
    assert miss_reasons(
        first, lost, msgspec.structs.replace(again, usage=Usage(cache_read=900, cache_write_5m=18_100))
    ) == [
        None,
        "lost",
        "prefix changed",
    ]
    shared = call(0, read=2_000, sent=FIRST_PROMPT_TOKENS)
    assert miss_reasons(shared, call(10, read=1_999, sent=9_000), call(20, read=2_000, sent=19_000)) == [
        None,
        None,
        "lost",
    ]
    assert miss_reasons(shared, call(10, read=1_400, sent=9_000)) == [None, "prefix changed"]


def test_reads_of_the_conversation_say_nothing_about_the_stable_prefix() -> None:
    calls = (
        call(0, sent=FIRST_PROMPT_TOKENS),
        call(5, read=FIRST_PROMPT_TOKENS, sent=20_000),
        call(10, read=FIRST_PROMPT_TOKENS + 1, sent=20_500),
    )
    assert miss_reasons(*calls, call(15, read=PREFIX_TOKENS, sent=21_000)) == [None, None, "unexplained", "lost"]


def test_another_model_has_its_own_prefix() -> None:
    first, other = call(0, read=2_000, sent=FIRST_PROMPT_TOKENS, model="a"), call(10, read=0, sent=9_000, model="b")
    assert miss_reasons(first, other, call(20, read=1_400, sent=9_500, model="b")) == [None, "model changed", "lost"]


def test_an_entry_that_the_next_call_still_reads_was_not_lost() -> None:
    calls = (
        call(0, sent=FIRST_PROMPT_TOKENS),
        call(5, read=FIRST_PROMPT_TOKENS, sent=9_000),
        call(10, read=PREFIX_TOKENS, sent=9_500),
    )
    assert miss_reasons(*calls, call(15, read=9_000, sent=9_800)) == [None, None, "prefix changed", None]
    assert miss_reasons(*calls, call(15, read=9_500, sent=9_800)) == [None, None, "lost", None]


def recording_of_turns(*turns: tuple[WaitedFor, str]) -> Recording:
    return Recording("one", "", (), tuple(call(says=says, waited_for=waited_for) for waited_for, says in turns))


def test_commands_skills_and_plans_are_settings_switches_at_their_start_and_end() -> None:
    command, skill, plan = (
        f"{COMMAND_PREFIX}review</command-message>",
        f"{SKILL_PREFIX} /skills/look",
        f"{PLAN_PREFIX}\n\nBuild it.",
    )
    recording = recording_of_turns(
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


def test_the_model_is_compared_with_recorded_usage_call_by_call() -> None:
    usages = (
        Usage(input=10, cache_write_5m=3_000),
        Usage(input=10, cache_read=3_010, cache_write_5m=800),
        Usage(input=10, cache_write_5m=4_600),
        Usage(input=10, cache_read=1_000, cache_write_5m=4_000),
    )
    fit = measure_model_fit(with_usage(make_recording(10, 400, 10), *usages), UPGRADE)
    assert fit is not None
    assert fit.calls == 3
    assert {reason: count for reason, count in fit.misses.items() if count} == {"expired": 1, "lost": 1}
    assert {reason: count for reason, count in fit.misses_predicted.items() if count} == {"expired": 1}
    assert (fit.miss_count, fit.predicted_count, fit.explained_count, fit.misses_mispredicted) == (2, 1, 1, 0)
    assert fit.hits_expected == {"settings switches": 0, "elsewhere": 2}
    assert fit.hits_missed == {"settings switches": 0, "elsewhere": 1}


WRITTEN = Usage(cache_write_5m=4_000)


def test_a_predicted_miss_that_was_a_hit_is_counted() -> None:
    fit = measure_model_fit(
        with_usage(make_recording(400), WRITTEN, Usage(cache_read=4_000, cache_write_5m=500)), UPGRADE
    )
    assert fit is not None
    assert (fit.miss_count, fit.predicted_count, fit.misses_mispredicted) == (0, 0, 1)


def changed(recording: Recording, index: int, **changes: object) -> Recording:
    calls = list(recording.calls)
    calls[index] = msgspec.structs.replace(calls[index], **changes)
    return msgspec.structs.replace(recording, calls=tuple(calls))


def test_compactions_and_model_switches_are_predicted_and_no_hit_is_expected_after_a_compaction() -> None:
    recording = with_usage(make_recording(10), WRITTEN, Usage(cache_read=100, cache_write_5m=4_000))
    fit = measure_model_fit(changed(recording, 1, kept_entries=0), UPGRADE)
    assert fit is not None
    assert (fit.misses["compacted"], fit.misses_predicted["compacted"]) == (1, 1)
    assert fit.hits_expected == {"settings switches": 0, "elsewhere": 0}
    models = changed(changed(recording, 0, model="a"), 1, model="b")
    fit = measure_model_fit(models, UPGRADE)
    assert fit is not None
    assert (fit.misses["model changed"], fit.misses_predicted["model changed"]) == (1, 1)
    assert fit.hits_expected == {"settings switches": 0, "elsewhere": 0}
    warm = with_usage(make_recording(400), WRITTEN, Usage(cache_read=3_000, cache_write_5m=1_000))
    fit = measure_model_fit(changed(warm, 1, kept_entries=0), UPGRADE)
    assert fit is not None
    assert (fit.miss_count, fit.misses_mispredicted) == (0, 0)


def test_a_command_is_predicted_to_miss_and_an_edit_is_not() -> None:
    recording = with_usage(make_recording(10), WRITTEN, Usage(cache_read=100, cache_write_5m=4_000))
    command_entries = (HistoryEntry("user", (Text(f"{COMMAND_PREFIX}review"),)),)
    fit = measure_model_fit(changed(recording, 1, added=command_entries, waited_for="user"), UPGRADE)
    assert fit is not None
    assert (fit.misses["prefix changed"], fit.misses_predicted["prefix changed"]) == (1, 1)
    assert fit.hits_expected == fit.hits_missed == {"settings switches": 1, "elsewhere": 0}
    fit = measure_model_fit(
        with_usage(make_recording(10), WRITTEN, Usage(cache_read=100, cache_write_5m=3_000)), UPGRADE
    )
    assert fit is not None
    assert (fit.explained_count, fit.predicted_count) == (1, 0)
    assert fit.hits_expected == {"settings switches": 0, "elsewhere": 0}


def test_model_fits_can_be_added() -> None:
    fit = measure_model_fit(with_usage(make_recording(400), WRITTEN, WRITTEN), UPGRADE)
    assert fit is not None
    both = fit + fit
    assert (both.calls, both.miss_count, both.predicted_count) == (2, 2, 2)
    assert both.recorded == WRITTEN + WRITTEN
    assert fit + ModelFit() == fit


def test_the_report_separates_predicted_explained_and_lost_misses() -> None:
    recording = with_usage(
        make_recording(400, 10, 10), WRITTEN, WRITTEN, Usage(cache_write_5m=4_500), Usage(cache_write_5m=4_400)
    )
    fit = measure_model_fit(recording, UPGRADE)
    assert fit is not None
    lines = dict(format_model_fit(fit))
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


def recording_with_losses(*, user_lost: int, tool_lost: int, idle_seconds: float = 60) -> Recording:
    """A hundred rounds of a message and a tool result; so many of each lose what the previous call cached."""
    calls = [call(sent=9_000, waited_for="start")]
    for number in range(100):
        for waited_for, lost in (("user", user_lost), ("tool", tool_lost)):
            sent = (calls[-1].usage or Usage()).tokens_sent
            read = PREFIX_TOKENS if number < lost else sent
            says = "So?" if waited_for == "user" else "the result"
            calls.append(
                msgspec.structs.replace(
                    call(calls[-1].at + idle_seconds, read=read, sent=sent + 100, says=says), waited_for=waited_for
                )
            )
    return Recording("lossy", "", (), tuple(calls))


def test_losses_far_more_frequent_after_a_user_than_after_a_tool_are_likely_the_clients() -> None:
    fit = measure_model_fit(recording_with_losses(user_lost=10, tool_lost=0), UPGRADE)
    assert fit is not None
    assert fit.loss_counts == LossCounts(100, 10, 100, 0)
    assert (fit.misses["lost"], fit.explained_alone_count, fit.explained_count) == (10, 0, 10)
    lines = dict(format_model_fit(fit))
    assert lines["  likely caused by the client, by when they happen"] == (
        "lost after 10 of 100 user messages, 0 of 100 tool results: 10 times as often"
    )
    assert lines["  explained in total"] == "10 of 10 (100.0%)"
    assert lines["  lost within the TTL, by the provider or an unrecorded change"] == "0 of 10 (0.0%)"


@pytest.mark.parametrize(
    ("user_lost", "tool_lost", "is_likely_client"),
    [(10, 0, True), (5, 0, True), (4, 0, False), (10, 1, True), (9, 1, False), (10, 10, False), (0, 0, False)],
)
def test_losses_that_the_provider_may_have_caused_are_not_attributed_to_the_client(
    user_lost: int, tool_lost: int, is_likely_client: bool
) -> None:
    assert (
        count_losses(recording_with_losses(user_lost=user_lost, tool_lost=tool_lost), MODEL.cache).is_likely_client
        is is_likely_client
    )


def test_three_losses_are_the_minimum_evidence_and_expired_entries_do_not_count() -> None:
    few = LossCounts(after_user=4, lost_after_user=2, after_tool=1_000)
    assert (few.is_likely_client, few.loss_ratio > 100, LossCounts().is_likely_client, LossCounts().loss_ratio) == (
        False,
        True,
        False,
        0.0,
    )
    assert count_losses(recording_with_losses(user_lost=10, tool_lost=0, idle_seconds=300), MODEL.cache) == LossCounts()
    assert count_losses(make_recording(10), MODEL.cache) == LossCounts()


def test_settings_switches_and_explained_misses_are_not_counted_as_losses() -> None:
    settings_switch = call(10, read=PREFIX_TOKENS, sent=9_500, says=f"{COMMAND_PREFIX}review", waited_for="user")
    shorter = call(10, read=PREFIX_TOKENS, sent=8_500, waited_for="user")
    for second in (settings_switch, shorter):
        assert count_losses(Recording("one", "", (), (call(sent=9_000), second)), MODEL.cache) == LossCounts()


def test_any_call_that_missed_the_rest_shows_how_far_the_stable_prefix_was_read() -> None:
    start = call(read=0, sent=9_000, waited_for="start")
    half = call(10, read=6_000, sent=9_500)
    assert miss_reasons(start, half, call(20, read=PREFIX_TOKENS, sent=9_900)) == [None, None, "prefix changed"]
    # A call that missed almost nothing has read the conversation too, so it says nothing about the stable prefix.
    whole = call(10, read=7_001, sent=9_500)
    assert miss_reasons(start, whole, call(20, read=PREFIX_TOKENS, sent=9_900)) == [None, None, "lost"]


def test_recordings_without_usage_are_not_compared() -> None:
    assert measure_model_fit(make_recording(10), UPGRADE) is None
    assert infer_ttls(make_recording(10)) == ()
    assert explain_misses(make_recording(10), MODEL.cache) == (None, None)


def test_calls_without_usage_are_skipped() -> None:
    fit = measure_model_fit(with_usage(make_recording(10, 10, 10), WRITTEN, None, WRITTEN, WRITTEN), UPGRADE)
    assert fit is not None
    assert fit.calls == 1


def test_a_call_that_wrote_nothing_is_assumed_to_keep_the_previous_ttl() -> None:
    hour, nothing, minutes = Usage(cache_write_1h=5), Usage(cache_read=5), Usage(cache_write_5m=5)
    recording = with_usage(
        make_recording(1, 1, 1, 1), nothing, hour, nothing, minutes, Usage(cache_write_1h=9, cache_write_5m=1)
    )
    assert infer_ttls(recording) == ("1h", "1h", "1h", "5m", "5m")
