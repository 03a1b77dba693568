"""The price list compared with genai-prices, which it is generated from, model by model and name by name."""

import datetime
import json
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import genai_prices.data
import pytest
from genai_prices.types import ConditionalPrice, ModelInfo, ModelPrice, Provider, TieredPrices, TimeOfDateConstraint
from hypothesis import given
from hypothesis import strategies as st

from holdfast.catalog.lookup import (
    LISTED_ROWS_MAX,
    Catalog,
    apply_model_overrides,
    find_model,
    find_model_or_none,
    list_known_models,
    load_shipped_catalog,
    price_at,
    pricing_version,
    resolve_model,
    shipped_models,
)
from holdfast.catalog.price_list import (
    LISTED_AS,
    find_listed,
    list_models,
    load_price_list,
    match_provider,
    parse_bare_name,
)
from holdfast.errors import UserError
from holdfast.ledger.analytics.queries import list_size_limits

PROVIDERS: list[Provider] = genai_prices.data.providers
NAMES = sorted({(provider.id, name) for provider in PROVIDERS for row in list_models(provider.id)
                for name in (row.id, *row.names)})  # fmt: skip
DAYS = [datetime.date(2024, 1, 1), datetime.date(2026, 9, 1), datetime.date(2026, 11, 17), datetime.date(2027, 2, 1)]
SIZES = [1, 32_001, 128_001, 200_000, 200_001, 272_001, 600_000]
OUR_NAMES = {"google": "gemini"}

PRICED_BY_HOUR = {"deepseek-chat", "deepseek-flash", "deepseek-reasoner", "deepseek-v4-flash", "deepseek-v4-pro"}
"""Models whose price depends on the hour: ours is that of the most expensive hour."""

WITHOUT_A_KNOWN_PRICE = {
    "cerebras:qwen-3-coder-480b",
    "huggingface_together:ServiceNow-AI/Apriel-1.6-15b-Thinker",
    "huggingface_together:prism-ml/Ternary-Bonsai-27B-AWQ-4bit",
    "huggingface_together:prism-ml/Ternary-Bonsai-27B-gguf",
    "openrouter:gemini-2.5-pro-exp-03-25",
    "openrouter:google/gemini-flash-1.5-8b-exp",
    "openrouter:google/lyria-3-clip-preview",
    "openrouter:google/lyria-3-pro-preview",
}
"""Models that genai-prices lists without a rate and that no provider calls free: $0.00 would be a guess."""


def their_model(provider: str, name: str) -> ModelInfo | None:
    return next(p for p in PROVIDERS if p.id == provider).find_model(name, all_providers=PROVIDERS)


def rows_of(model: ModelInfo) -> list[ConditionalPrice]:
    return model.prices if isinstance(model.prices, list) else [ConditionalPrice(prices=model.prices)]


def rate_of(price: ModelPrice, field: str, size: int) -> Decimal | None:
    rate: Decimal | TieredPrices | None = getattr(price, field)
    if isinstance(rate, TieredPrices):
        return next((tier.price for tier in reversed(rate.tiers) if size > tier.start), rate.base)
    return rate


def billed_by_tokens(model: ModelInfo) -> bool:
    return any("input_mtok" in vars(row.prices) for row in rows_of(model))


def differences(provider: str, name: str) -> Iterator[str]:
    theirs, ours = their_model(provider, name), resolve_model(OUR_NAMES.get(provider, provider), name)
    # The id of a few models is no name that a request could have.
    if theirs is None or not ours.prices or "genai-prices" not in ours.source:
        return
    for day in DAYS:
        their_price = theirs.get_prices(datetime.datetime(day.year, day.month, day.day, 2, tzinfo=datetime.UTC))
        for size in SIZES:
            our_price = price_at(ours, day, size)
            expected = {
                "input": rate_of(their_price, "input_mtok", size) or Decimal(0),
                "output": rate_of(their_price, "output_mtok", size) or Decimal(0),
                "cache_read": rate_of(their_price, "cache_read_mtok", size),
                "cache_write_5m": rate_of(their_price, "cache_write_mtok", size),
                "cache_write_1h": rate_of(their_price, "cache_write_1h_mtok", size),
            }
            yield from (
                f"{provider}:{name} {field} on {day} above {size}: {getattr(our_price, field)}, not {rate}"
                for field, rate in expected.items()
                if rate is not None and getattr(our_price, field) != rate
            )


def test_every_name_that_genai_prices_lists_has_its_price_on_every_day_and_for_every_size() -> None:
    wrong = [line for provider, name in NAMES for line in differences(provider, name)]
    assert [line for line in wrong if line.split()[0].removeprefix("deepseek:") not in PRICED_BY_HOUR] == []


def test_every_model_billed_by_tokens_is_priced() -> None:
    unpriced = {f"{p.id}:{row.id}" for p in PROVIDERS for row in list_models(p.id) if not row.prices}
    assert sum(len(list_models(p.id)) for p in PROVIDERS) == sum(len(p.models) for p in PROVIDERS)
    by_tokens = {f"{p.id}:{m.id}" for p in PROVIDERS for m in p.models if billed_by_tokens(m)}
    assert unpriced & by_tokens == set()
    other_units = {
        f"{p.id}:{m.id}" for p in PROVIDERS for m in p.models if not billed_by_tokens(m) and vars(rows_of(m)[0].prices)
    }
    assert unpriced - other_units == WITHOUT_A_KNOWN_PRICE


def test_only_these_models_have_a_price_by_the_hour_and_ours_is_the_highest() -> None:
    by_hour = {
        model.id
        for provider in PROVIDERS
        for model in provider.models
        if any(isinstance(row.constraint, TimeOfDateConstraint) for row in rows_of(model))
    }
    assert by_hour == PRICED_BY_HOUR
    for name in by_hour:
        row = resolve_model("deepseek", name)
        assert "hours" in row.assumed
        theirs = their_model("deepseek", name)
        assert theirs is not None
        highest = max(Decimal(str(price.prices.input_mtok)) for price in rows_of(theirs))
        assert price_at(row, datetime.date(2026, 11, 17), 1).input == highest


@given(
    st.sampled_from(NAMES),
    st.sampled_from(["", "-20250929", "-2025-09-29", "@20250929", "-latest", ":free", "-v1:0", "-preview", "x", "/x"]),
    st.sampled_from(["", "us.", "anthropic/", "publishers/google/models/", "x", "X-"]),
)
def test_a_name_that_is_not_listed_matches_the_same_model_as_in_genai_prices(
    listed: tuple[str, str], suffix: str, prefix: str
) -> None:
    provider, name = listed[0], f"{prefix}{listed[1]}{suffix}"
    theirs, ours = their_model(provider, name), find_listed(provider, name)
    if theirs is not None:
        assert ours is not None
        assert ours.model.id == theirs.id
    elif ours is not None:
        assert prefix.startswith("publishers/")  # Paths are understood by us alone.


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("arn:aws:bedrock:us-east-1:1:inference-profile/eu.anthropic.claude-opus-4-1-20250805-v1:0", "claude-opus-4-1"),
        ("global.anthropic.claude-opus-4-6-v1", "claude-opus-4-6"),
        ("anthropic/claude-opus-4.5", "claude-opus-4-5"),
        ("anthropic/claude-3.7-sonnet:thinking", "claude-3-7-sonnet"),
        ("publishers/anthropic/models/claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("databricks-claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("openai/gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
    ],
)
def test_every_route_names_the_same_model(name: str, bare: str) -> None:
    assert parse_bare_name(name) == bare


@pytest.mark.parametrize(
    ("provider", "name", "maker"),
    [
        ("openrouter", "anthropic/claude-opus-4.5", "anthropic:claude-opus-4-5"),
        ("openrouter", "google/gemini-2.5-pro", "gemini:gemini-2.5-pro"),
        ("openrouter", "openai/gpt-5", "openai:gpt-5"),
        ("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic:claude-sonnet-4-5"),
        ("aws", "anthropic.claude-haiku-4-5-20251001-v1:0", "anthropic:claude-haiku-4-5"),
        ("vertex", "claude-opus-4-1@20250805", "anthropic:claude-opus-4-1"),
        ("azure", "gpt-4.1", "openai:gpt-4.1"),
    ],
)
def test_a_route_has_the_cache_rules_of_the_maker_and_its_own_price(provider: str, name: str, maker: str) -> None:
    row = resolve_model(provider, name)
    assert (row.id, row.cache) == (f"{provider}:{name}", find_model(maker).cache)
    assert row.prices
    assert "cache" in row.assumed
    assert f"rules of {maker}" in row.source
    assert row.checked_on == load_price_list().dated
    assert row.supports_prompt_caching == (provider != "openrouter")


def test_rates_that_the_list_lacks_follow_the_documented_multiples_and_are_marked() -> None:
    row = resolve_model("openrouter", "anthropic/claude-3.7-sonnet:thinking")
    price = row.prices[0]
    assert (price.input, price.cache_read, price.cache_write_5m, price.cache_write_1h) == (
        Decimal(3),
        Decimal("0.3"),
        Decimal("3.75"),
        Decimal(6),
    )
    assert {"cache_read", "cache_write_5m", "cache_write_1h"} <= set(row.assumed)


def test_a_read_without_a_listed_or_documented_rate_is_plain_input() -> None:
    row = resolve_model("openai", "gpt-4")
    assert row.prices[0].cache_read == row.prices[0].input
    assert "cache_read" in row.assumed


@pytest.mark.parametrize(
    ("provider", "name", "kind", "floor"),
    [
        ("anthropic", "claude-nova-9", "explicit", 4096),
        ("openai", "gpt-9-sol", "hybrid", 1024),
        ("gemini", "gemini-9-flash", "implicit", 4096),
        ("openrouter", "acme/model-1", "none", 0),
        ("zzz", "qqq", "none", 0),
    ],
)
def test_an_unlisted_model_is_unpriced_and_has_the_rules_of_its_family(
    provider: str, name: str, kind: str, floor: int
) -> None:
    row = resolve_model(provider, name)
    assert (row.id, row.prices, row.cache.kind, row.cache.tokens_min) == (f"{provider}:{name}", (), kind, floor)
    assert {"cache", "limits"} <= set(row.assumed)
    assert find_model_or_none(row.id, shipped_models()) is None
    with pytest.raises(UserError, match="unknown model"):
        find_model(row.id)


def test_every_family_has_a_complete_row_and_the_last_one_takes_every_model() -> None:
    families = load_shipped_catalog().families
    for family in families:
        apply_model_overrides(shipped_models(), {"p:m": {"prices": (), **family.row}})
        assert family.source
    assert families[-1].pattern == ""
    assert families[-1].row["cache"] == {"kind": "none", "tokens_min": 0}


def test_a_row_of_our_own_wins_over_the_list() -> None:
    own = find_model("anthropic:claude-opus-5-5")
    assert own.assumed == ()
    assert resolve_model("anthropic", "claude-opus-5-5") is own
    configured = apply_model_overrides(
        shipped_models(), {"openai:gpt-4o-mini": {"like": "openai:gpt-4o", "output_tokens_max": 7}}
    )
    assert resolve_model("openai", "gpt-4o-mini", configured).output_tokens_max == 7


def test_a_client_of_one_wire_format_may_reach_the_models_of_another_provider() -> None:
    row = find_model_or_none("openai-chat:deepseek-chat", shipped_models())
    assert row is not None
    assert row.prices == tuple(
        type(price)(**{**{field: getattr(price, field) for field in price.__struct_fields__}, "source": own.source})
        for price, own in zip(resolve_model("deepseek", "deepseek-chat").prices, row.prices, strict=True)
    )
    assert "prices" in row.assumed
    assert "by the model's name alone" in row.source


def test_a_user_who_types_another_providers_model_is_asked_what_was_meant() -> None:
    with pytest.raises(UserError, match="unknown model 'openai-chat:deepseek-chat'"):
        find_model("openai-chat:deepseek-chat")


def test_our_provider_names_are_in_the_list() -> None:
    assert {match_provider(name) for name in LISTED_AS} <= set(load_price_list().providers)


def test_the_price_list_is_part_of_the_pricing_version() -> None:
    assert pricing_version(dict(shipped_models())) != pricing_version(shipped_models())


def test_the_size_limits_of_listed_prices_are_known_to_the_analytics() -> None:
    listed = {price.prompt_tokens_over for p in PROVIDERS for row in list_models(p.id) for price in row.prices} - {0}
    assert set(load_price_list().size_limits) == listed
    assert listed <= set(list_size_limits(shipped_models()))


def test_a_huge_or_empty_name_is_unknown_and_not_kept() -> None:
    assert find_model_or_none("openai:" + "x" * 1_000_000, shipped_models()) is None
    assert find_model_or_none("openai:", shipped_models()) is None
    models = shipped_models()
    assert isinstance(models, Catalog)
    assert all(len(name) < 300 for name, _ in models.listed_rows)


def test_no_number_of_unknown_names_fills_the_memory() -> None:
    models = apply_model_overrides(shipped_models(), {})
    assert isinstance(models, Catalog)
    for number in range(LISTED_ROWS_MAX + 10):
        assert find_model_or_none(f"zzz:unknown {number}", models) is None
    assert len(models.listed_rows) <= LISTED_ROWS_MAX


def test_a_configured_row_is_found_even_after_the_list_was_asked() -> None:
    models = apply_model_overrides(
        shipped_models(),
        {"openai:mine": {"like": "openai:gpt-4o-mini"}, "openai:gpt-4o-mini": {"like": "openai:gpt-4o"}},
    )
    assert find_model("openai:gpt-4o-mini-2024-07-18", models).prices == find_model("openai:gpt-4o").prices
    assert resolve_model("", "").prices == ()


def test_listed_models_are_those_of_the_provider_each_once() -> None:
    ids = [row.id for row in list_known_models(shipped_models(), "openrouter")]
    assert len(ids) == len(set(ids)) > 800
    assert {id.partition(":")[0] for id in ids} == {"openrouter"}


def run_and_list_modules(program: str) -> dict[str, object]:
    code = f"import json, sys\n{program}\nprint(json.dumps(result))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path("/"))
    result: dict[str, object] = json.loads(output.stdout)
    return result


def test_a_model_with_a_row_of_its_own_does_not_read_the_price_list() -> None:
    result = run_and_list_modules(
        """
from holdfast.catalog import lookup, price_list
lookup.find_model("anthropic:claude-opus-5-5")
own = price_list.load_price_list.cache_info().currsize
lookup.find_model("groq:openai/gpt-oss-120b")
result = {"own": own, "listed": price_list.load_price_list.cache_info().currsize,
          "providers": price_list.list_models.cache_info().currsize, "package": "genai_prices" in sys.modules}
"""
    )
    assert result == {"own": 0, "listed": 1, "providers": 1, "package": False}
