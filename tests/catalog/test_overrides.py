import datetime
import tomllib
from decimal import Decimal

import pytest

from holdfast.catalog.lookup import Models, apply_model_overrides, find_model, price_at, shipped_models
from holdfast.errors import UserError

SONNET = "anthropic:claude-sonnet-5-5"
COMPLETE_ROW = """
[models."local:qwen"]
context_tokens_max = 32768
output_tokens_max = 4096
tokens_factor = 1.2
cache = { kind = "implicit", tokens_min = 16 }

[[models."local:qwen".prices]]
valid_from = 2026-01-01
input = 0.15
output = 1
cache_read = "0.05"
cache_write_5m = 0.15
cache_write_1h = 0.15
cache_write_other = 0.15
"""


def override_models(toml: str) -> Models:
    return apply_model_overrides(shipped_models(), tomllib.loads(toml)["models"])


def refusal_of(toml: str) -> str:
    with pytest.raises(UserError) as caught:
        override_models(toml)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_can_be_based_on_another() -> None:
    mine = find_model(
        "anthropic:mine", override_models(f'[models."anthropic:mine"]\nlike = "{SONNET}"\noutput_tokens_max = 9')
    )
    sonnet = find_model(SONNET)
    assert mine.id == "anthropic:mine"
    assert mine.output_tokens_max == 9
    assert (mine.context_tokens_max, mine.cache, mine.prices) == (1_000_000, sonnet.cache, sonnet.prices)
    assert mine.checked_on == sonnet.checked_on
    assert mine.source == f"configuration, like {SONNET}"
    assert mine.released is None


def test_a_model_based_on_another_does_not_take_its_aliases() -> None:
    models = override_models('[models."openai:mine"]\nlike = "openai:gpt-5.6-sol"')
    assert models["openai:mine"].aliases == ()
    assert models["openai:gpt-5.6-sol"].aliases == ("gpt-5.6",)


def test_a_model_can_be_based_on_one_configured_before_it() -> None:
    models = override_models(
        f'[models."a:one"]\nlike = "{SONNET}"\noutput_tokens_max = 7\n[models."a:two"]\nlike = "a:one"'
    )
    assert models["a:two"].output_tokens_max == 7


def test_a_row_is_corrected_field_by_field_and_its_source_says_so() -> None:
    models = override_models(f'[models."{SONNET}".cache]\ntokens_min = 2048\nlookback_counting = "positions"')
    before, after = find_model(SONNET), find_model(SONNET, models)
    assert (after.cache.tokens_min, after.cache.lookback_counting) == (2048, "positions")
    assert (after.cache.breakpoints_max, after.cache.invalidates) == (4, before.cache.invalidates)
    assert (after.prices, after.released) == (before.prices, before.released)
    assert after.source == f"{before.source}; corrected by configuration"


def test_every_cache_rule_can_be_set_by_configuration() -> None:
    rules = find_model(
        SONNET,
        override_models(
            f"""[models."{SONNET}".cache]
            tokens_min = 1024
            lookback_positions = 80
            lookback_counting = "positions"
            lookup_first_breakpoints = 1
            lookup_latest_breakpoints = 80
            ttls_seconds = {{ implicit = 240 }}
            explicit_tokens_min = 1024
            effort_breaks_messages = true
            breakpoints_change_binding = true
            binds_thinking = false
            accepts_automatic_breakpoint = false
            ttl_upgrade = false
            invalidates = {{ effort = "messages" }}
            """
        ),
    ).cache
    assert rules.ttls_seconds == {"implicit": 240}
    assert rules.invalidates == {"effort": "messages"}
    assert (rules.lookup_first_breakpoints, rules.lookup_latest_breakpoints, rules.lookback_positions) == (1, 80, 80)
    assert rules.explicit_tokens_min == 1024
    assert rules.effort_breaks_messages
    assert rules.breakpoints_change_binding
    assert (rules.binds_thinking, rules.accepts_automatic_breakpoint, rules.ttl_upgrade) == (False, False, False)


def test_a_complete_row_needs_no_base_and_accepts_amounts_in_any_notation() -> None:
    model = find_model("local:qwen", override_models(COMPLETE_ROW))
    price = price_at(model, datetime.date(2026, 11, 15), 1)
    assert (price.input, price.output, price.cache_read) == (Decimal("0.15"), Decimal(1), Decimal("0.05"))
    assert model.cache.kind == "implicit"
    assert model.source == "configuration"


def test_the_given_models_are_not_modified() -> None:
    models = {SONNET: find_model(SONNET)}
    apply_model_overrides(models, {SONNET: {"output_tokens_max": 5}})
    assert models == {SONNET: find_model(SONNET)}


def test_no_overrides_change_nothing() -> None:
    assert apply_model_overrides(shipped_models(), {}) == shipped_models()


@pytest.mark.parametrize("name", ["mine", ":mine", "anthropic:"])
def test_a_table_must_be_named_provider_and_name(name: str) -> None:
    assert refusal_of(f'[models."{name}"]') == (
        f"model table {name!r} must be named provider:name, such as anthropic:my-model"
    )


@pytest.mark.parametrize("field", ["provider", "name"])
def test_provider_and_name_are_not_repeated_as_fields(field: str) -> None:
    assert refusal_of(f'[models."a:b"]\n{field} = "x"') == (
        f"model 'a:b' in the configuration: field {field!r} is given by the name of the table; remove it"
    )


def test_a_value_that_is_no_table_is_refused() -> None:
    assert refusal_of('[models]\n"a:b" = 3') == (
        """model 'a:b' in the configuration must be a table, as in [models."a:b"]"""
    )


def test_like_must_be_a_name() -> None:
    assert refusal_of('[models."a:b"]\nlike = 3') == (
        "model 'a:b' in the configuration: field 'like' must be the name of a model, provider:name"
    )


def test_like_must_name_a_known_model() -> None:
    message = refusal_of('[models."a:b"]\nlike = "anthropic:claude-sonet-5-5"')
    assert message.startswith("unknown model 'anthropic:claude-sonet-5-5'; did you mean anthropic:claude-sonnet-5-5")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("aliasses = []", "Object contains unknown field `aliasses`; did you mean 'aliases'?"),
        ("cache.knd = 3", "field 'cache': Object contains unknown field `knd`; did you mean 'kind'?"),
        ("prices = [{ y = 3 }]", "field 'prices[0]': Object contains unknown field `y`"),
        ("zzzz = 3", "Object contains unknown field `zzzz`"),
        (
            'input = "x"',
            "field 'input' belongs into prices, such as prices = [{ input = 1.5, ... }], with all of "
            "valid_from, input, output, cache_read, cache_write_5m, cache_write_1h, cache_write_other",
        ),
        ('context_tokens_max = "3"', "field 'context_tokens_max': Expected `int`, got `str`"),
        ("output_tokens_max = 0", "field 'output_tokens_max': Expected `int` >= 1"),
        ("tokens_factor = 0.05", "field 'tokens_factor': Expected `float` >= 0.1"),
        ("tokens_factor = 11", "field 'tokens_factor': Expected `float` <= 10.0"),
        ("cache.tokens_min = -1", "field 'cache.tokens_min': Expected `int` >= 0"),
        ("cache.reads_rounded_to = 0", "field 'cache.reads_rounded_to': Expected `int` >= 1"),
        ('cache.kind = "magic"', "field 'cache.kind': Invalid enum value 'magic'"),
        ('cache.invalidates.x = "y"', "field 'cache.invalidates[...]': Invalid enum value 'y'"),
        ("cache = 3", "field 'cache': Expected `object`, got `int`"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_with_the_reason(line: str, complaint: str) -> None:
    assert refusal_of(f'[models."{SONNET}"]\n{line}') == f"model '{SONNET}' in the configuration: {complaint}"


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("tokens_factor = 1.2\n", "", "Object missing required field `tokens_factor`"),
        ("output = 1\n", "", "field 'prices[0]': Object missing required field `output`"),
        ('"0.05"', '"much"', "field 'prices[0].cache_read': Invalid decimal string"),
        ("input = 0.15", "input = -1", "field 'prices[0]': input must be a finite number of dollars"),
        ("input = 0.15", "input = nan", "field 'prices[0]': input must be a finite number of dollars"),
    ],
)  # fmt: skip
def test_an_invalid_complete_row_is_explained(right: str, wrong: str, complaint: str) -> None:
    message = refusal_of(COMPLETE_ROW.replace(right, wrong))
    assert message.startswith(f"model 'local:qwen' in the configuration: {complaint}")


def test_a_field_similar_to_nothing_gets_no_suggestion() -> None:
    assert "did you mean" not in refusal_of(f'[models."{SONNET}"]\nzzzz = 3')
