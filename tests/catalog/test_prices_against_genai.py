"""Our prices compared with those of genai-prices: the catalog lists every difference with its reason."""

import datetime
import runpy
import sys
from decimal import Decimal
from pathlib import Path

import genai_prices.data
import pytest
from genai_prices.types import ModelInfo, TieredPrices

from holdfast.catalog.lookup import find_model, load_shipped_catalog, price_at, shipped_models
from holdfast.catalog.schema import Model, PriceOverride

SCRIPT = Path(__file__).parents[2] / "scripts" / "update_prices.py"
CATALOG = Path(__file__).parents[2] / "src" / "holdfast" / "catalog" / "models.json"
THEIR_PROVIDERS = {"anthropic": "anthropic", "openai": "openai", "gemini": "google", "openrouter": "openrouter"}
THEIR_FIELDS = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cache_read": "cache_read_mtok",
    "cache_write_5m": "cache_write_mtok",
    "cache_write_1h": "cache_write_1h_mtok",
    "cache_write_other": "cache_write_mtok",
}
SIZES = (1, 100_000, 100_001, 200_000, 200_001, 272_000, 272_001)
DAYS = tuple(
    datetime.date(*day)
    for day in (
        *(
            (2025, 5, 1),
            (2025, 6, 9),
            (2025, 6, 10),
            (2026, 3, 12),
            (2026, 3, 13),
            (2026, 7, 29),
            (2026, 7, 30),
        ),
        *((2026, 8, 20), (2026, 8, 21), (2026, 9, 28), (2026, 10, 6), (2026, 10, 7), (2026, 11, 15)),
        *((2026, 11, 30), (2026, 12, 1), (2026, 12, 31), (2027, 1, 1)),
    )
)

Difference = tuple[str, str, datetime.date, int]
"""Model, field, day and prompt size at which the two lists differ."""


def their_model(model: Model) -> ModelInfo | None:
    provider = next(p for p in genai_prices.data.providers if p.id == THEIR_PROVIDERS[model.provider])
    return provider.find_model(model.name)


def their_rate(model: ModelInfo, field: str, day: datetime.date, size: int) -> Decimal:
    moment = datetime.datetime(day.year, day.month, day.day, 12, tzinfo=datetime.UTC)
    rate: Decimal | TieredPrices | None = getattr(model.get_prices(moment), THEIR_FIELDS[field])
    if rate is None:
        # genai-prices omits rates that are billed as a shorter write, or as plain input.
        return their_rate(model, "cache_write_5m" if field == "cache_write_1h" else "input", day, size)
    if isinstance(rate, TieredPrices):
        passed = [tier.price for tier in rate.tiers if size > tier.start]
        return passed[-1] if passed else rate.base
    return rate


def find_differences() -> set[Difference]:
    return {
        (model.id, field, day, size)
        for model in shipped_models().values()
        for theirs in [their_model(model)]
        for day in DAYS
        if model.released is None or day >= model.released
        for size in SIZES
        for ours in [price_at(model, day, size)]
        for field in THEIR_FIELDS
        if theirs is None or their_rate(theirs, field, day, size) != getattr(ours, field)
    }


def covers(override: PriceOverride, difference: Difference) -> bool:
    model, field, day, size = difference
    return (
        override.model == model
        and field in override.changes
        and override.valid_from <= day
        and (override.valid_until is None or day < override.valid_until)
        and (override.prompt_tokens_over is None or size > override.prompt_tokens_over)
    )


def is_comparable(override: PriceOverride) -> bool:
    return bool(set(override.changes) & set(THEIR_FIELDS))


@pytest.fixture(scope="module")
def price_differences() -> set[Difference]:
    return find_differences()


def test_every_difference_is_listed_with_its_reason(price_differences: set[Difference]) -> None:
    overrides = load_shipped_catalog().price_overrides
    listed = {
        difference for difference in price_differences if any(covers(override, difference) for override in overrides)
    }
    unlisted = {(model, field) for model, field, _, _ in price_differences - listed}
    assert unlisted == set()
    assert all(override.reason for override in overrides)


def test_every_listed_difference_still_exists(price_differences: set[Difference]) -> None:
    settled = {
        (override.model, field)
        for override in load_shipped_catalog().price_overrides
        if is_comparable(override)
        for field in override.changes
        if not any(covers(override, difference) for difference in price_differences if difference[1] == field)
    }
    assert settled == set()


def test_the_models_missing_from_the_other_list_are_known() -> None:
    assert {model.name for model in shipped_models().values() if their_model(model) is None} == {
        "claude-fable-5-2",
        "claude-mythos-5-2",
        "claude-mythos-5-1",
        "claude-mythos-5",
        "claude-mythos-preview",
    }


def test_the_models_with_a_different_price_on_some_day_are_known(price_differences: set[Difference]) -> None:
    known_to_both = {id for id, model in shipped_models().items() if their_model(model)}
    assert {(model, field) for model, field, _, _ in price_differences if model in known_to_both} == {
        ("anthropic:claude-sonnet-5-5", "cache_read"),
        ("openai:o3", "cache_read"),
        ("openrouter:anthropic/claude-opus-5.5", "cache_write_1h"),
        ("openrouter:anthropic/claude-sonnet-5.5", "cache_write_1h"),
    }


def test_only_storage_and_long_writes_have_no_field_in_the_other_list() -> None:
    extra = [
        set(override.changes) for override in load_shipped_catalog().price_overrides if not is_comparable(override)
    ]
    assert set().union(*extra) == {"storage_per_hour", "cache_write_12h"}


def test_every_override_is_valid_on_its_first_day() -> None:
    for override in load_shipped_catalog().price_overrides:
        size = (override.prompt_tokens_over or 0) + 1
        price = price_at(find_model(override.model), override.valid_from, size)
        assert {field: getattr(price, field) for field in override.changes} == override.changes
        assert override.reason in price.source


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def test_the_shipped_catalog_is_what_the_script_writes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--check") == 0
    assert capsys.readouterr().out == "models.json: nothing to change\nprices.json: nothing to change\n"


def test_a_drifted_price_is_named_by_the_check_and_fixed_by_the_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    right = CATALOG.read_text("utf-8")
    opus = '"input": "4", "output": "20", "cache_read": "0.2", "cache_write_5m": "5", "cache_write_1h": "8"'
    wrong = right.replace(opus, opus.replace("20", "21"))
    assert wrong != right
    copy = tmp_path / "models.json"
    copy.write_text(wrong, "utf-8")
    assert run(monkeypatch, "--check", "--file", str(copy)) == 1
    assert capsys.readouterr().out == (
        "models.json: prices of anthropic:claude-opus-5-5\nprices.json: nothing to change\n"
    )
    assert copy.read_text("utf-8") == wrong
    assert run(monkeypatch, "--file", str(copy)) == 0
    assert copy.read_text("utf-8") == right
    assert run(monkeypatch, "--file", str(copy)) == 0
    assert copy.read_text("utf-8") == right
