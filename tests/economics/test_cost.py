import datetime
from decimal import Decimal

import msgspec
import pytest

from holdfast.catalog.lookup import find_model, price_at
from holdfast.catalog.schema import Price
from holdfast.economics.cost import PriceMultipliers, cost_usd, price_multipliers, uncached_cost_usd
from holdfast.types.usage import Usage

TODAY = datetime.date(2026, 11, 15)
SONNET_4_6 = price_at(find_model("anthropic:claude-sonnet-4-6"), TODAY, 1)
ONE_OF_EACH = Usage(
    input=1, cache_read=10, cache_write_5m=100, cache_write_1h=1_000, cache_write_other=10_000, output=100_000
)
DISTINCT = Price(
    valid_from=TODAY,
    input=Decimal(2),
    output=Decimal(3),
    cache_read=Decimal(5),
    cache_write_5m=Decimal(7),
    cache_write_1h=Decimal(11),
    cache_write_other=Decimal(13),
)


@pytest.mark.parametrize(
    ("model", "writes", "dollars"),
    [
        ("anthropic:claude-opus-5-5", "cache_write_5m", "0.126"),
        ("anthropic:claude-fable-5-1", "cache_write_5m", "0.295"),
        ("openai:gpt-6-sol", "cache_write_other", "0.071"),
        ("openai:gpt-6.1-sol", "cache_write_other", "0.063"),
        ("gemini:gemini-4-argon", "cache_write_other", "0.058"),
    ],
)
def test_a_call_of_100k_with_80k_read_and_10k_written(model: str, writes: str, dollars: str) -> None:
    usage = msgspec.convert({"input": 10_000, "cache_read": 80_000, writes: 10_000, "output": 1_000}, Usage)
    price = price_at(find_model(model), TODAY, usage.tokens_sent)
    assert cost_usd(usage, price) == Decimal(dollars)


def test_each_bucket_has_its_own_rate() -> None:
    assert cost_usd(ONE_OF_EACH, DISTINCT) * 1_000_000 == 2 + 50 + 700 + 11_000 + 130_000 + 300_000


def test_without_a_cache_everything_sent_costs_the_input_price() -> None:
    assert uncached_cost_usd(ONE_OF_EACH, DISTINCT) * 1_000_000 == 2 * 11_111 + 300_000


def test_no_usage_costs_nothing() -> None:
    assert str(cost_usd(Usage(), DISTINCT)) == str(uncached_cost_usd(Usage(), DISTINCT)) == "0"


def test_multipliers_are_relative_to_plain_input() -> None:
    assert price_multipliers(DISTINCT) == PriceMultipliers(
        read=Decimal("2.5"), write_5m=Decimal("3.5"), write_1h=Decimal("5.5"), write_other=Decimal("6.5")
    )


def test_with_free_input_all_multipliers_are_zero() -> None:
    free = msgspec.structs.replace(DISTINCT, input=Decimal(0))
    assert price_multipliers(free) == PriceMultipliers(Decimal(0), Decimal(0), Decimal(0), Decimal(0))
