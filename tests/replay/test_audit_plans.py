"""Why recorded calls missed the cache, what that cost, and what our plan would have cost, by sizes and times only."""

import pytest
from msgspec.structs import replace

from holdfast.catalog.lookup import shipped_models
from holdfast.ledger.spending import AuditScope, Spending, SpendingFold
from holdfast.replay.audit import PriceLookup, audit_transcript
from holdfast.replay.recording import RecordedCall, Recording, Transcript
from holdfast.types.usage import Usage

SONNET = "anthropic:claude-sonnet-4-6"
OPUS = "anthropic:claude-opus-4-6"
START = 1_775_000_000.0
READ, SHORT, LONG = 0.30, 3.75, 6.00
"""Dollars per million tokens of Sonnet."""


def call(at: float, read: int, written: int, *, model: str = SONNET, kept_entries: int | None = None) -> RecordedCall:
    usage = Usage(cache_read=read, cache_write_5m=written)
    return RecordedCall(START + at, START + at, "tool", (), None, usage, model, kept_entries)


def audit_calls(*calls: RecordedCall, before: RecordedCall | None = None) -> Spending:
    ids = tuple(str(number) for number in range(len(calls)))
    return audit_transcripts(Transcript(Recording("r", "", (), calls), "r", "p", ids, previous_call=before))


def audit_transcripts(*transcripts: Transcript) -> Spending:
    fold, prices = SpendingFold(), PriceLookup(shipped_models())
    for transcript in transcripts:
        conversation = audit_transcript(transcript, prices, AuditScope(ranges=True))
        assert conversation is not None
        fold.add(conversation)
    return fold.build()


def plan_range(spending: Spending) -> tuple[float, float]:
    assert spending.planned_range_usd is not None
    low, high = spending.planned_range_usd
    assert low <= spending.planned_usd <= high
    return float(low), float(high)


def usd(**tokens: int) -> float:
    rates = {"read": READ, "short": SHORT, "long": LONG}
    return sum(rates[kind] * count for kind, count in tokens.items()) / 1e6


@pytest.mark.parametrize(
    ("second", "cause", "tokens"),
    [
        (call(10, 20_000, 500), None, 0),
        (call(10, 19_999, 501), "provider_side", 1),
        (call(10, 10_000, 10_500), "provider_side", 10_000),
        (call(10, 0, 20_500), "provider_side", 20_000),
        (call(10, 5_000, 15_500), "provider_side", 15_000),
        (call(10, 0, 12_000), "prefix_changed", 12_000),
        (call(400, 0, 20_500), "ttl_expired", 20_000),
        (call(10, 0, 20_500, kept_entries=0), "planned", 20_000),
        (call(10, 0, 20_500, kept_entries=3), None, 0),
        (call(10, 5_000, 15_500, kept_entries=3), None, 0),
        (call(10, 0, 20_500, model=OPUS), "model_switched", 20_000),
        (call(10, 0, 20_500, model=OPUS, kept_entries=3), "model_switched", 20_000),
        (call(10, 0, 20_500, model=OPUS, kept_entries=0), "planned", 20_000),
        (call(10, 0, 500), None, 0),
    ],
)
def test_a_cache_miss_has_a_cause_and_loses_the_tokens_it_rewrote(
    second: RecordedCall, cause: str | None, tokens: int
) -> None:
    report = audit_calls(call(0, 0, 20_000), second)
    assert [(row.cause, row.calls, row.tokens) for row in report.losses] == ([(cause, 1, tokens)] if cause else [])
    if cause and second.model == SONNET:
        assert float(report.total.lost_usd) == pytest.approx(usd(short=tokens) - usd(read=tokens))


def test_an_automatic_cache_that_was_not_read_has_a_cause_and_a_price() -> None:
    sol = "openai:gpt-6-sol"  # Dollars per million tokens: reads 0.20, writes 2.50.
    first = RecordedCall(START, START, "tool", (), None, Usage(cache_write_other=20_480), sol)
    missed = RecordedCall(START + 10, START + 10, "tool", (), None, Usage(cache_write_other=21_000), sol)
    report = audit_calls(first, missed)
    (loss,) = report.losses
    assert (loss.cause, loss.component, loss.tokens) == ("provider_side", "evicted, or changed unseen", 20_480)
    assert float(loss.lost_usd) == pytest.approx(20_480 * 2.30 / 1e6)


def test_losses_that_mostly_follow_a_users_message_are_the_clients() -> None:
    calls, sent = [call(0, 0, 20_000)], 20_000
    for turn in range(4):
        for step in range(12):
            at = 100.0 * turn + 5 * step + 5
            calls.append(call(at, sent, 100))
            sent += 100
        lost = call(100.0 * turn + 99, 10_000, sent - 9_900)
        calls.append(replace(lost, waited_for="user"))
        sent += 100
    report = audit_calls(*calls)
    assert [(row.cause, row.component, row.calls) for row in report.losses] == [
        ("prefix_changed", "tools, system or settings", 4)
    ]


def test_without_cache_writes_there_was_nothing_to_read() -> None:
    plain = [RecordedCall(START + at, START + at, "tool", (), None, Usage(input=20_000), SONNET) for at in (0, 10)]
    report = audit_calls(*plain)
    (cause,) = report.losses
    assert (cause.cause, cause.tokens) == ("no_breakpoint", 20_000)
    # Marking the first prompt would have cost a write's surcharge.
    assert float(cause.lost_usd) == pytest.approx(20_000 * ((3.0 - READ) - (SHORT - 3.0)) / 1e6)
    assert plan_range(report) == pytest.approx((usd(short=20_000, read=20_000),) * 2)


def test_a_resumed_conversation_misses_because_of_the_time_since_its_last_call() -> None:
    report = audit_calls(call(9_000, 0, 21_000), before=call(0, 0, 20_000))
    assert [(row.cause, row.tokens) for row in report.losses] == [("ttl_expired", 20_000)]
    assert report.total.calls == 1
    assert float(report.total.usd) == pytest.approx(usd(short=21_000))


def test_tokens_cached_by_other_sessions_are_read_under_any_plan() -> None:
    report = audit_calls(call(0, 15_000, 5_000))
    assert plan_range(report) == pytest.approx((usd(read=15_000, short=5_000),) * 2)
    assert float(report.optimum_usd or 0) == pytest.approx(usd(read=15_000) + 3.0 * 5_000 / 1e6)


def test_a_prompt_that_grew_is_read_as_far_as_it_was_sent() -> None:
    report = audit_calls(call(0, 0, 20_000), call(10, 20_000, 1_000), call(20, 20_500, 1_500))
    expected = usd(short=20_000) + usd(read=20_000, short=1_000) + usd(read=21_000, short=1_000)
    assert plan_range(report) == pytest.approx((expected, expected))


@pytest.mark.parametrize(
    "second", [call(10, 4_000, 20_000), call(10, 4_000, 9_000), call(10, 4_000, 20_000, kept_entries=0)]
)
def test_a_changed_prompt_is_changed_under_any_plan(second: RecordedCall) -> None:
    assert second.usage is not None
    report = audit_calls(call(0, 0, 20_000), second)
    expected = usd(short=20_000) + usd(read=4_000, short=second.usage.cache_write_5m)
    assert plan_range(report) == pytest.approx((expected, expected))


def test_every_model_has_its_own_cache() -> None:
    first, other = call(0, 0, 20_000), call(10, 0, 20_500, model=OPUS)
    together = plan_range(audit_calls(first, other, call(20, 20_000, 1_000)))
    apart = plan_range(audit_calls(first, call(20, 20_000, 1_000)))[0] + plan_range(audit_calls(other))[0]
    assert together == pytest.approx((apart, apart))


def transcript_with_pauses(name: str, start: float) -> Transcript:
    calls, sent = [], 20_000
    for number in range(12):
        calls.append(call(start + 900.0 * number, 0, sent))
        sent += 500
    ids = tuple(f"{name}{number}" for number in range(12))
    return Transcript(Recording(name, "", (), tuple(calls)), name, "p", ids)


def test_a_session_has_the_same_estimate_whatever_is_audited_with_it() -> None:
    transcripts = [transcript_with_pauses(str(number), number * 1e6) for number in range(3)]
    together = {row.id: row for row in audit_transcripts(*transcripts).sessions}
    for transcript in transcripts:
        (alone,) = audit_transcripts(transcript).sessions
        assert together[alone.id] == alone
        assert alone.planned_usd < alone.amounts.usd


def test_models_without_breakpoints_are_priced_but_not_judged() -> None:
    usage = Usage(input=20_000, output=100)
    calls = [RecordedCall(START + at, START + at, "tool", (), None, usage, "openai:gpt-6-sol") for at in (0, 10)]
    report = audit_calls(*calls)
    (model,) = report.models
    assert not report.takes_breakpoints
    assert report.total.cache_misses == 0
    assert model.usd == report.total.usd > 0
    assert report.planned_usd == report.optimum_usd == report.total.usd


def test_each_call_has_the_price_of_its_day() -> None:
    # Until 13 March 2026 each token of a prompt of more than 200,000 tokens cost twice as much.
    early, late = (audit_calls(call(at - START, 0, 250_000)) for at in (1_771_500_000.0, 1_775_000_000.0))
    assert early.total.usd == 2 * late.total.usd
    assert early.planned_usd == 2 * late.planned_usd
