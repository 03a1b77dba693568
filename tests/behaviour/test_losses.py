"""What a broken cache cost, worked out by hand from the tokens that the provider has billed."""

from decimal import Decimal

import pytest

from holdfast.canonical.prompt import Mark, Plan
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import shipped_models
from holdfast.ledger.verdicts import Left, Request, judge

OPUS = "anthropic:claude-opus-5-5"  # Reads 0.20, plain input 4, writes 5 for five minutes and 8 for an hour.
AT = 1_794_800_000.0


def moved(*marks: Mark) -> Request:
    return Request(AT + 60, Plan(marks), blocks_before=5, blocks_shared=1)


@pytest.mark.parametrize(
    ("kept", "usage", "lost_tokens", "lost_usd"),
    [
        # The head was written again for an hour, the history for five minutes: 5,000 x 7.80 + 20,000 x 4.80.
        (25_000, Usage(input=10, cache_write_1h=5_000, cache_write_5m=20_100), 25_000, "0.135"),
        # What no mark covers was sent as plain input: 4,000 x 4.80 + 6,000 x 3.80.
        (10_000, Usage(input=8_000, cache_write_5m=4_000), 10_000, "0.042"),
        # 87,000 of the 95,000 that were there are not sent any more: 3,000 x 4.80 + 10 x 3.80.
        (95_000, Usage(input=10, cache_read=5_000, cache_write_5m=3_000), 3_010, "0.014438"),
    ],
)
def test_what_was_lost_is_what_was_billed_anew_above_reading_it(
    kept: int, usage: Usage, lost_tokens: int, lost_usd: str
) -> None:
    left = Left(OPUS, AT, kept, "5m", 4, {}, images=False)
    verdict = judge(left, moved(Mark(0, "1h"), Mark(4, "5m")), usage, shipped_models()[OPUS])
    assert verdict.kind == "prefix_changed"
    assert (verdict.expected_tokens, verdict.read_tokens) == (kept, usage.cache_read)
    assert (verdict.lost_tokens, verdict.lost_usd) == (lost_tokens, Decimal(lost_usd))


def test_writes_of_a_provider_that_marks_by_itself_are_lost_at_the_price_of_writes() -> None:
    sol = "openai:gpt-6-sol"  # Reads 0.20, writes 2.50.
    left = Left(sol, AT, 20_000, None, None, {}, images=False)
    verdict = judge(left, moved(), Usage(input=10, cache_write_other=20_100), shipped_models()[sol])
    assert verdict.lost_usd == Decimal("0.046")
