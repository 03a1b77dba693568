"""The facts of the released catalog, one by one: a change here changes what users see."""

import datetime
from decimal import Decimal

import msgspec
import pytest

from holdfast.catalog.lookup import find_model, load_shipped_catalog, price_at, shipped_models
from holdfast.catalog.schema import Model, Price
from holdfast.economics.cost import price_multipliers

TODAY = datetime.date(2026, 11, 15)
CLAUDE = [model for model in shipped_models().values() if model.provider == "anthropic"]
FIELDS = ("input", "cache_write_5m", "cache_write_1h", "cache_read", "output")

FLOORS = {
    512: "fable-5-2 mythos-5-2 fable-5-1 mythos-5-1 fable-5 mythos-5 opus-5-5 opus-5 sonnet-5-5 haiku-5-5",
    1024: "opus-4-8 sonnet-5 sonnet-4-6 sonnet-4-5 opus-4-1 opus-4-0 sonnet-4-0",
    2048: "opus-4-7 mythos-preview 3-5-haiku",
    4096: "opus-4-6 opus-4-5 haiku-4-5",
}

CLAUDE_PRICES = """
fable-5-2      8     10    16    0.20  40
mythos-5-2     8     10    16    0.20  40
fable-5-1      10    12.5  20    0.25  50
mythos-5-1     10    12.5  20    0.25  50
fable-5        10    12.5  20    1     50
mythos-5       10    12.5  20    1     50
mythos-preview 25    31.25 50    2.5   125
opus-5-5       4     5     8     0.20  20
opus-5         5     6.25  10    0.50  25
opus-4-8       5     6.25  10    0.50  25
opus-4-7       5     6.25  10    0.50  25
opus-4-6       5     6.25  10    0.50  25
opus-4-5       5     6.25  10    0.50  25
opus-4-1       15    18.75 30    1.50  75
opus-4-0       15    18.75 30    1.50  75
sonnet-5-5     2     2.5   4     0.10  10
sonnet-5       2     2.5   4     0.20  10
sonnet-4-6     3     3.75  6     0.30  15
sonnet-4-5     3     3.75  6     0.30  15
sonnet-4-0     3     3.75  6     0.30  15
haiku-5-5      0.10  0.125 0.20  0.01  0.50
haiku-4-5      1     1.25  2     0.10  5
3-5-haiku      0.80  1     1.60  0.08  4
"""

# input, read, write, output; then the same for prompts over 272,000 tokens where they differ
OPENAI_PRICES = """
gpt-6-astra   10   1     12.5  50   20  2    25   75
gpt-6.1-sol   2    0.10  2.5   10   4   0.2  5    15
gpt-6.1-terra 1    0.05  1.25  5    2   0.1  2.5  7.5
gpt-6-sol     2    0.20  2.5   10   4   0.4  5    15
gpt-6-luna    0.10 0.01  0.125 0.50 0.2 0.02 0.25 0.75
gpt-5.6-sol   4    0.40  5     20   8   0.8  10   30
gpt-5.6-terra 2    0.20  2.5   12   4   0.4  5    18
gpt-5.6-luna  0.20 0.02  0.25  1.20 0.4 0.04 0.5  1.8
gpt-5.5       5    0.50  5     30   10  1    10   45
gpt-5.4       2.5  0.25  2.5   15   5   0.5  5    22.5
gpt-5.4-mini  0.75 0.075 0.75  4.5
gpt-5.2       1.75 0.175 1.75  14
gpt-5.1       1.25 0.125 1.25  10
gpt-5         1.25 0.125 1.25  10
gpt-5-mini    0.25 0.025 0.25  2
gpt-4.1       2    0.50  2     8
gpt-4o        2.5  1.25  2.5   10
gpt-4o-2024-05-13 5 5    5     15
o3            2    0.5   2     8
o4-mini       1.1  0.275 1.1   4.4
"""

# input, cached, output, storage an hour
GEMINI_PRICES = """
2026-11-15 1      gemini-4-argon         2    0.10  10   0
2026-11-30 1      gemini-4-argon         2    0.10  10   0
2026-12-01 1      gemini-4-argon         4    0.20  20   0
2026-11-15 1      gemini-3.8-flash       0.75 0.075 3.75 0.50
2026-12-31 1      gemini-3.8-flash       0.75 0.075 3.75 0.50
2027-01-01 1      gemini-3.8-flash       1.50 0.15  7.50 1.00
2026-11-15 1      gemini-3.7-flash       0.75 0.075 3.75 0.50
2027-01-01 1      gemini-3.7-flash       1.50 0.15  7.50 1.00
2026-11-15 1      gemini-3.6-flash       0.75 0.075 3.75 0.50
2027-01-01 1      gemini-3.6-flash       1.50 0.15  7.50 1.00
2026-11-15 1      gemini-3.5-flash       1.50 0.15  9    1.00
2026-11-15 200000 gemini-3.1-pro-preview 2    0.20  12   4.50
2026-11-15 200001 gemini-3.1-pro-preview 4    0.40  18   4.50
2026-11-15 1      gemini-3.1-flash-lite  0.25 0.025 1.50 1.00
2026-11-15 200000 gemini-2.5-pro         1.25 0.125 10   4.50
2026-11-15 200001 gemini-2.5-pro         2.50 0.25  15   4.50
2026-11-15 1      gemini-2.5-flash       0.30 0.03  2.50 1.00
2026-11-15 1      gemini-2.5-flash-lite  0.10 0.01  0.40 1.00
"""


def table(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


def rates(price: Price, fields: tuple[str, ...]) -> list[Decimal]:
    return [getattr(price, field) for field in fields]


def names(flag: str) -> set[str]:
    return {model.name.removeprefix("claude-") for model in CLAUDE if getattr(model.cache, flag)}


def test_minimum_cacheable_tokens_of_each_claude_model() -> None:
    floors = {model.name.removeprefix("claude-"): model.cache.tokens_min for model in CLAUDE}
    assert floors == {name: floor for floor, row in FLOORS.items() for name in row.split()}


@pytest.mark.parametrize(("name", "expected"), [(row[0], row[1:]) for row in table(CLAUDE_PRICES)])
def test_current_claude_prices(name: str, expected: list[str]) -> None:
    price = price_at(find_model(f"anthropic:claude-{name}"), TODAY, 1)
    assert rates(price, FIELDS) == [Decimal(rate) for rate in expected]


def test_every_claude_model_is_in_the_price_table() -> None:
    assert {row[0] for row in table(CLAUDE_PRICES)} == {model.name.removeprefix("claude-") for model in CLAUDE}


@pytest.mark.parametrize("row", table(OPENAI_PRICES), ids=lambda row: row[0])
def test_current_openai_prices(row: list[str]) -> None:
    fields = ("input", "cache_read", "cache_write_other", "output")
    model = find_model(f"openai:{row[0]}")
    short, long = row[1:5], row[5:] or row[1:5]
    assert rates(price_at(model, TODAY, 272_000), fields) == [Decimal(rate) for rate in short]
    assert rates(price_at(model, TODAY, 272_001), fields) == [Decimal(rate) for rate in long]


@pytest.mark.parametrize("row", table(GEMINI_PRICES), ids=lambda row: f"{row[2]} {row[0]} {row[1]}")
def test_gemini_prices_by_date_and_size(row: list[str]) -> None:
    day, size, name, *expected = row
    price = price_at(find_model(f"gemini:{name}"), datetime.date.fromisoformat(day), int(size))
    assert rates(price, ("input", "cache_read", "output", "storage_per_hour")) == [Decimal(rate) for rate in expected]


def test_price_tables_cover_the_whole_catalog() -> None:
    openai = {f"openai:{row[0]}" for row in table(OPENAI_PRICES)}
    gemini = {f"gemini:{row[2]}" for row in table(GEMINI_PRICES)}
    ours = {id for id, model in shipped_models().items() if model.provider not in ("anthropic", "openrouter")}
    assert openai | gemini == ours


ROUTES = {
    "anthropic/claude-opus-5.5": "anthropic:claude-opus-5-5",
    "anthropic/claude-sonnet-5.5": "anthropic:claude-sonnet-5-5",
    "anthropic/claude-haiku-5.5": "anthropic:claude-haiku-5-5",
    "openai/gpt-5.4": "openai:gpt-5.4",
    "openai/gpt-5.4-mini": "openai:gpt-5.4-mini",
}


@pytest.mark.parametrize("route", ROUTES)
def test_route_has_the_rules_and_prices_of_its_model_and_is_off(route: str) -> None:
    row, model = find_model(f"openrouter:{route}"), find_model(ROUTES[route])
    assert not row.supports_prompt_caching
    assert row.cache == msgspec.structs.replace(model.cache, diagnoses_misses=False)
    for size in (1, 300_000):
        ours, theirs = price_at(row, TODAY, size), price_at(model, TODAY, size)
        assert [getattr(ours, field) for field in FIELDS] == [getattr(theirs, field) for field in FIELDS]


def test_cache_diagnostics_exist_for_direct_providers_with_breakpoints() -> None:
    telling = {model.id for model in shipped_models().values() if model.cache.diagnoses_misses}
    direct = {("anthropic", "explicit"), ("openai", "hybrid")}
    assert telling == {row.id for row in shipped_models().values() if (row.provider, row.cache.kind) in direct}


def test_only_routes_are_off_by_default() -> None:
    off = {model.id for model in shipped_models().values() if not model.supports_prompt_caching}
    assert off == {f"openrouter:{route}" for route in ROUTES}


@pytest.mark.parametrize("model", CLAUDE, ids=lambda model: model.name)
def test_every_claude_price_has_the_write_multipliers(model: Model) -> None:
    found = {(price_multipliers(price).write_5m, price_multipliers(price).write_1h) for price in model.prices}
    assert found == {(Decimal("1.25"), Decimal(2))}


@pytest.mark.parametrize("model", CLAUDE, ids=lambda model: model.name)
def test_claude_cache_reads_cost_a_tenth_except_on_cheaper_models(model: Model) -> None:
    cheaper = dict.fromkeys(["fable-5-1", "fable-5-2", "mythos-5-1", "mythos-5-2"], "0.025")
    cheaper |= dict.fromkeys(["opus-5-5", "sonnet-5-5"], "0.05")
    expected = Decimal(cheaper.get(model.name.removeprefix("claude-"), "0.1"))
    assert price_multipliers(price_at(model, TODAY, 1)).read == expected


@pytest.mark.parametrize(("day", "read"), [("2026-09-28", "0.20"), ("2026-10-06", "0.20"), ("2026-10-07", "0.10")])
def test_cache_reads_on_sonnet_5_5_were_halved_on_a_date(day: str, read: str) -> None:
    price = price_at(find_model("anthropic:claude-sonnet-5-5"), datetime.date.fromisoformat(day), 1)
    assert price.cache_read == Decimal(read)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(100_000, "0.10 0.125 0.20 0.01 0.50"), (100_001, "0.50 0.625 1 0.05 2.50")],
)
def test_haiku_5_5_costs_five_times_as_much_above_100k(size: int, expected: str) -> None:
    price = price_at(find_model("anthropic:claude-haiku-5-5"), TODAY, size)
    assert rates(price, FIELDS) == [Decimal(rate) for rate in expected.split()]


@pytest.mark.parametrize(("size", "rate"), [(272_000, "2.50"), (272_001, "5.00")])
def test_only_known_price_of_a_twelve_hour_write(size: int, rate: str) -> None:
    assert price_at(find_model("openai:gpt-6.1-terra"), TODAY, size).cache_write_12h == Decimal(rate)


def test_twelve_hour_write_without_a_known_price_has_none() -> None:
    assert price_at(find_model("openai:gpt-6.1-sol"), TODAY, 1).cache_write_12h is None


@pytest.mark.parametrize("model", shipped_models().values(), ids=lambda model: model.id)
def test_every_row_names_its_source_and_check_date(model: Model) -> None:
    assert model.checked_on == TODAY
    assert model.source.startswith(("Anthropic", "OpenAI", "Gemini API", "OpenRouter's model list"))
    assert all(price.source for price in model.prices)


@pytest.mark.parametrize("model", shipped_models().values(), ids=lambda model: model.id)
def test_every_row_is_consistent(model: Model) -> None:
    assert model.output_tokens_max < model.context_tokens_max
    assert model.cache.tokens_min < model.context_tokens_max
    assert 1 <= model.tokens_factor <= 1.5
    for price in model.prices:
        assert Decimal(0) < price.cache_read <= price.input <= price.cache_write_5m <= price.cache_write_1h
        assert price.input < price.output
        assert model.released is None or price.valid_from >= model.released


@pytest.mark.parametrize("model", CLAUDE, ids=lambda model: model.name)
def test_every_claude_model_takes_four_breakpoints_of_two_ttls_and_looks_back_twenty(model: Model) -> None:
    assert model.cache.kind == "explicit"
    assert model.cache.breakpoints_max == 4
    assert model.cache.lookback_positions == 20
    assert model.cache.lookback_counting == "blocks"
    assert model.cache.ttls_seconds == {"5m": 300, "1h": 3600}
    assert model.cache.accepts_automatic_breakpoint


@pytest.mark.parametrize("model", CLAUDE, ids=lambda model: model.name)
def test_cached_sections_that_a_change_invalidates_on_claude(model: Model) -> None:
    lost = {place: {key for key, at in model.cache.invalidates.items() if at == place} for place in
            ("tools", "system", "messages")}  # fmt: skip
    assert lost == {
        "tools": {"model", "tools"},
        "system": {"system", "web_search", "citations", "speed"},
        "messages": {"tool_choice", "images", "thinking"},
    }


def test_claude_models_that_bind_thinking_to_the_prefix() -> None:
    assert names("binds_thinking") == {
        "fable-5-1", "fable-5-2", "mythos-5-1", "mythos-5-2", "opus-5-5", "sonnet-5-5", "haiku-5-5"
    }  # fmt: skip


def test_claude_models_that_strip_old_thinking() -> None:
    assert names("strips_old_thinking") == {
        "opus-4-0", "opus-4-1", "sonnet-4-0", "sonnet-4-5", "haiku-4-5", "3-5-haiku"
    }  # fmt: skip


def test_claude_models_that_accept_a_prefill() -> None:
    everyone = {model.name.removeprefix("claude-") for model in CLAUDE}
    assert everyone - names("refuses_prefill") == {
        "opus-4-0", "opus-4-1", "opus-4-5", "sonnet-4-0", "sonnet-4-5", "haiku-4-5", "3-5-haiku"
    }  # fmt: skip


def test_claude_models_that_refuse_a_forced_tool_choice() -> None:
    assert names("refuses_forced_tool_choice") == {
        "fable-5-1", "fable-5-2", "mythos-5-1", "mythos-5-2", "sonnet-5-5"
    }  # fmt: skip


def test_claude_models_that_accept_system_messages_in_a_conversation() -> None:
    assert names("accepts_system_messages") == {
        "fable-5", "fable-5-1", "fable-5-2", "mythos-5", "mythos-5-1", "mythos-5-2",
        "opus-4-8", "opus-5", "opus-5-5", "sonnet-5", "sonnet-5-5", "haiku-5-5",
    }  # fmt: skip


def test_claude_models_that_use_the_older_tokenizer() -> None:
    older = {model.name.removeprefix("claude-") for model in CLAUDE if model.tokens_factor == 1.15}
    assert older == {
        "opus-4-0", "opus-4-1", "opus-4-5", "opus-4-6", "sonnet-4-0", "sonnet-4-5", "sonnet-4-6",
        "haiku-4-5", "3-5-haiku",
    }  # fmt: skip


def test_openai_models_belong_to_three_cache_generations() -> None:
    kinds = {
        model.name: (
            model.cache.kind,
            model.cache.breakpoints_max,
            model.cache.reads_rounded_to,
            *model.cache.ttls_seconds,
        )
        for model in shipped_models().values()
        if model.provider == "openai"
    }
    assert kinds["gpt-5.6-luna"] == kinds["gpt-6.1-terra"] == ("hybrid", 4, 1, "30m", "12h")
    assert kinds["gpt-5.5"] == ("implicit", 0, 128, "24h")
    assert kinds["gpt-5.4"] == kinds["gpt-4o"] == ("implicit", 0, 128, "in_memory", "24h")


def test_only_gemini_argon_has_no_explicit_cache() -> None:
    gemini = [model for model in shipped_models().values() if model.provider == "gemini"]
    assert [model.name for model in gemini if not model.cache.explicit_tokens_min] == ["gemini-4-argon"]
    assert {model.cache.tokens_min for model in gemini if "2.5" in model.name} == {2048}
    assert {model.cache.tokens_min for model in gemini if "2.5" not in model.name} == {4096}


def test_catalog_is_dated_and_lists_each_model_once() -> None:
    assert load_shipped_catalog().dated == TODAY
    assert len(shipped_models()) == len(load_shipped_catalog().models) == 58
