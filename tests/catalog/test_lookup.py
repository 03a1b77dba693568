import datetime
import re
from decimal import Decimal

import msgspec
import pytest

from holdfast.catalog.lookup import find_model, find_similar_names, price_at, pricing_version, shipped_models, utc_date
from holdfast.catalog.schema import CacheRules, Model, Price
from holdfast.errors import UserError


def price(day: str, *, cost: int, over: int = 0) -> Price:
    rate = Decimal(cost)
    return Price(
        valid_from=datetime.date.fromisoformat(day),
        input=rate,
        output=rate,
        cache_read=rate,
        cache_write_5m=rate,
        cache_write_1h=rate,
        cache_write_other=rate,
        prompt_tokens_over=over,
    )


def model(*prices: Price, name: str = "m", aliases: tuple[str, ...] = ()) -> Model:
    return Model(
        provider="p",
        name=name,
        context_tokens_max=1000,
        output_tokens_max=100,
        cache=CacheRules(kind="none", tokens_min=0),
        prices=prices,
        tokens_factor=1.0,
        aliases=aliases,
    )


TIERED = model(
    price("2026-06-01", cost=5, over=100),
    price("2026-06-01", cost=3),
    price("2026-01-01", cost=1),
    price("2026-01-01", cost=2, over=50),
    price("2026-06-01", cost=9, over=200),
)


def test_a_model_is_found_by_provider_and_name() -> None:
    model_found = find_model("anthropic:claude-sonnet-5-5")
    assert (model_found.provider, model_found.name) == ("anthropic", "claude-sonnet-5-5")
    assert model_found.id == "anthropic:claude-sonnet-5-5"


def test_given_models_are_searched_instead_of_the_shipped_ones() -> None:
    assert find_model("p:m", {"p:m": TIERED}) is TIERED
    with pytest.raises(UserError, match="unknown model 'p:m'"):
        find_model("p:m")
    with pytest.raises(UserError, match="unknown model 'anthropic:claude-opus-5'"):
        find_model("anthropic:claude-opus-5", {"p:m": TIERED})


@pytest.mark.parametrize(
    ("snapshot", "row"),
    [
        ("anthropic:claude-haiku-4-5-20251001", "anthropic:claude-haiku-4-5"),
        ("anthropic:claude-opus-4-5@20251101", "anthropic:claude-opus-4-5"),
        ("anthropic:claude-3-5-haiku-latest", "anthropic:claude-3-5-haiku"),
        ("anthropic:claude-opus-4-20250514", "anthropic:claude-opus-4-0"),
        ("openai:gpt-5.4-2026-03-05", "openai:gpt-5.4"),
        ("openai:gpt-5.6", "openai:gpt-5.6-sol"),
    ],
)
def test_a_snapshot_or_alias_has_the_row_of_its_model_but_keeps_its_name(snapshot: str, row: str) -> None:
    model_found = find_model(snapshot)
    assert model_found.id == snapshot
    assert msgspec.structs.replace(model_found, name=row.partition(":")[2]) == find_model(row)


def test_a_model_of_another_route_has_its_owners_row_under_the_requested_name() -> None:
    row, owner = find_model("openai-chat:gpt-6-sol-2026-09-22"), find_model("openai:gpt-6-sol")
    assert row.id == "openai-chat:gpt-6-sol-2026-09-22"
    assert (row.cache, row.prices) == (owner.cache, owner.prices)


def test_a_snapshot_with_its_own_price_is_not_taken_for_its_model() -> None:
    today = datetime.date(2026, 11, 15)
    assert price_at(find_model("openai:gpt-4o-2024-05-13"), today, 1).input == 5
    assert price_at(find_model("openai:gpt-4o-2024-08-06"), today, 1).input == Decimal("2.5")


def test_an_alias_belongs_to_its_provider() -> None:
    models = {"p:m": model(name="m", aliases=("other",))}
    assert find_model("p:other", models).name == "other"
    with pytest.raises(UserError):
        find_model("q:other", models)


@pytest.mark.parametrize(
    "requested",
    [
        "anthropic:claude-sonet-5-5",
        "claude-sonnet-5-5",
        "openai:claude-sonnet-5-5",
        "ANTHROPIC:CLAUDE-SONNET-5-5",
        "anthropic:sonnet-5-5",
    ],
)
def test_the_nearest_model_is_suggested_first_whatever_is_wrong_with_the_name(requested: str) -> None:
    with pytest.raises(UserError, match=re.escape("did you mean anthropic:claude-sonnet-5-5 or ")):
        find_model(requested)


def test_an_unknown_model_error_suggests_a_name_and_how_to_add_it_in_one_line() -> None:
    models = {"p:alpha-1": model(name="alpha-1"), "p:alpha-2": model(name="alpha-2")}
    with pytest.raises(UserError) as caught:
        find_model("p:alpha-1\n", models)
    assert str(caught.value) == (
        "unknown model 'p:alpha-1\\n'; did you mean p:alpha-1 or p:alpha-2? "
        """To add a model, write [models."provider:name"] with like = "p:alpha-1" into config.toml"""
    )


def test_a_name_without_provider_is_explained_the_format() -> None:
    with pytest.raises(UserError, match=re.escape("'claude-opus-5' (a model is named provider:name); ")):
        find_model("claude-opus-5")


def test_the_format_is_not_explained_if_it_was_used() -> None:
    with pytest.raises(UserError) as caught:
        find_model("anthropic:claude-opus-9")
    assert "is named" not in str(caught.value)


def test_a_name_similar_to_nothing_gets_the_providers_and_an_example() -> None:
    with pytest.raises(UserError) as caught:
        find_model("zzz:qqq")
    assert "known providers: anthropic, claude-code, gemini, openai, openai-chat, openrouter. To add" in str(
        caught.value
    )
    assert 'like = "anthropic:claude-fable-5-2"' in str(caught.value)


def test_an_empty_catalog_still_explains_how_to_add_a_model() -> None:
    with pytest.raises(UserError, match='like = "provider:name"'):
        find_model("zzz:qqq", {})


def test_at_most_three_similar_names_are_suggested_each_once() -> None:
    near = find_similar_names("anthropic:claude-opus-4", shipped_models())
    assert len(near) == len(set(near)) == 3


def test_a_huge_name_is_truncated_in_the_message() -> None:
    with pytest.raises(UserError) as caught:
        find_model("x" * 1_000_000)
    assert repr("x" * 120) in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("day", "size", "cost"),
    [
        ("2025-12-31", 10, 1),
        ("2025-12-31", 51, 2),
        ("2026-01-01", 0, 1),
        ("2026-01-01", 50, 1),
        ("2026-01-01", 51, 2),
        ("2026-05-31", 1000, 2),
        ("2026-06-01", 0, 3),
        ("2026-06-01", 100, 3),
        ("2026-06-01", 101, 5),
        ("2026-06-01", 200, 5),
        ("2026-06-01", 201, 9),
        ("2099-01-01", 51, 3),
    ],
)
def test_the_price_is_the_newest_valid_one_of_the_highest_tier_exceeded(day: str, size: int, cost: int) -> None:
    assert price_at(TIERED, datetime.date.fromisoformat(day), size).input == cost


def test_a_prompt_below_the_lowest_tier_has_its_price() -> None:
    assert price_at(model(price("2026-01-01", cost=7, over=50)), datetime.date(2026, 1, 1), 50).input == 7


def test_a_model_without_prices_says_where_to_add_them() -> None:
    with pytest.raises(UserError) as caught:
        price_at(model(), datetime.date(2026, 1, 1), 1)
    assert str(caught.value) == """no price is known for model 'p:m'; add prices to [models."p:m"]"""


@pytest.mark.parametrize(
    ("at", "day"),
    [(0.0, "1970-01-01"), (1_796_083_199.9, "2026-11-30"), (1_796_083_200.0, "2026-12-01")],
)
def test_a_day_starts_at_midnight_utc(at: float, day: str) -> None:
    assert utc_date(at).isoformat() == day


def test_the_pricing_version_is_the_date_of_the_catalog_and_a_digest() -> None:
    assert re.fullmatch(r"2026-11-15\.[0-9a-f]{8}", pricing_version())
    assert pricing_version() == pricing_version(shipped_models())


def test_the_pricing_version_changes_with_a_rate() -> None:
    assert pricing_version({"p:m": model(price("2026-01-01", cost=1))}) != pricing_version(
        {"p:m": model(price("2026-01-01", cost=2))}
    )


def test_the_pricing_version_does_not_change_with_the_source_of_a_rate() -> None:
    row = price("2026-01-01", cost=1)
    sourced = msgspec.structs.replace(row, source="a page")
    assert pricing_version({"p:m": model(row)}) == pricing_version({"p:m": model(sourced)})


@pytest.mark.parametrize("rate", ["NaN", "Infinity", "-0.01"])
def test_a_price_that_is_no_valid_amount_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="output must be a finite number of dollars, not below 0"):
        msgspec.structs.replace(price("2026-01-01", cost=1), output=Decimal(rate))


def test_a_price_of_zero_is_valid() -> None:
    assert price("2026-01-01", cost=0).input == 0


def test_an_invalid_twelve_hour_rate_is_refused_too() -> None:
    with pytest.raises(ValueError, match="cache_write_12h"):
        msgspec.structs.replace(price("2026-01-01", cost=1), cache_write_12h=Decimal(-1))
