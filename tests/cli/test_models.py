import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.terminals import Terminal

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.main import command
from holdfast.errors import UserError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["models", *arguments])


def test_without_options_the_models_checked_by_hand_are_listed_and_the_others_counted() -> None:
    lines = run().output.splitlines()
    assert [line.split()[0] for line in lines[1:-2]] == list(shipped_models())
    opus = next(line for line in lines if line.startswith("anthropic:claude-opus-5-5 "))
    assert opus.split()[1:8] == ["4", "0.2", "5", "8", "20", "512", "5m/1h"]
    assert re.match(r"[\d,]+ models of \d+ providers are priced by genai-prices [\d.]+ of \d{4}-\d\d-\d\d;", lines[-2])


def test_a_search_finds_models_of_every_provider() -> None:
    names = [line.split()[0] for line in run("--search", "gpt-oss-120b").output.splitlines()[1:]]
    assert {"groq:openai/gpt-oss-120b", "openrouter:openai/gpt-oss-120b"} <= set(names)


def test_a_provider_lists_only_its_models_under_the_given_name() -> None:
    rows = json.loads(run("--provider", "bedrock", "--json").output)
    assert len(rows) > 50
    assert {row["model"].partition(":")[0] for row in rows} == {"bedrock"}
    assert all(row["price"] and row["checked_on"] and "genai-prices" in row["source"] for row in rows)


def test_a_single_match_is_shown_with_its_source_date_and_assumptions() -> None:
    output = run("--search", "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0").output
    assert "prices   input 3.3, cache read 0.33, 5m write 4.125, 1h write 6.6, output 16.5" in output
    assert "cache    explicit, floor 1,024 tokens, at most 4 breakpoints" in output
    assert "assumed  cache" in output
    assert "rules of anthropic:claude-sonnet-4-5" in output


def test_a_model_in_no_list_is_shown_as_unpriced() -> None:
    assert "prices   unpriced" in run("--search", "anthropic:claude-of-tomorrow").output


def test_a_free_model_is_free_and_not_unpriced() -> None:
    output = run("--search", "openrouter:meta-llama/llama-3.3-70b-instruct:free").output
    assert "prices   input free" in output


def test_no_match_is_one_line() -> None:
    error = run("--search", "zzzz").exception
    assert isinstance(error, UserError)
    assert str(error) == "no model matches 'zzzz'; to look up the model of a request, write provider:name"


@pytest.mark.parametrize("arguments", [(), ("--provider", "openrouter", "--search", "claude")])
def test_the_table_fits_into_80_columns(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with Terminal("models", *arguments, folder=tmp_path, environ={"HOLDFAST_HOME": str(tmp_path)}) as terminal:
        assert terminal.end() == 0
        lines = terminal.rest().splitlines()
    assert len(lines) > 20
    assert max(map(len, lines)) <= 80


def test_a_provider_is_found_in_any_case_and_a_search_by_all_its_words() -> None:
    assert run("--provider", "OpenRouter", "--search", "sonnet").output == (
        run("--provider", "openrouter", "--search", "Sonnet").output
    )
    names = {row["model"] for row in json.loads(run("--search", "sonnet claude", "--json").output)}
    assert {"anthropic:claude-sonnet-5-5", "openrouter:anthropic/claude-sonnet-5.5"} <= names
    assert all("claude" in name.lower() and "sonnet" in name.lower() for name in names)


@pytest.mark.parametrize("arguments", [("--provider", "zz"), ("--provider", "zz", "--search", "sonnet")])
def test_an_unknown_provider_is_refused_with_those_that_are_known(arguments: tuple[str, ...]) -> None:
    error = run(*arguments).exception
    assert isinstance(error, UserError)
    assert str(error).startswith("no model of the provider 'zz' is known; use one of anthropic, ")
    assert all(f", {name}" in str(error) for name in ("gemini", "openai", "openrouter"))


def test_a_long_source_is_no_column() -> None:
    assert max(map(len, run("--search", "sonnet").output.splitlines())) <= 120
