"""A store is created only where that is meant, settings are shown, and a unit is withdrawn by command."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.library_projects import LibraryProject

from holdfast.cli.main import command
from holdfast.errors import UserError
from holdfast.instructions.recall.selection import RecallQuery


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LibraryProject:
    monkeypatch.chdir(tmp_path)
    shop = LibraryProject(tmp_path)
    shop.write(mode="stigmem")
    return shop


def run(shop: LibraryProject, *words: str) -> Result:
    return CliRunner().invoke(command, words, env={"HOLDFAST_HOME": str(shop.path / "home")})


@pytest.mark.parametrize(
    "words", [("publish", "folder"), ("check", "folder"), ("recall", "x"), ("shadow",), ("coverage",)]
)
def test_mistyped_store_is_an_error_and_creates_no_file(shop: LibraryProject, words: tuple[str, ...]) -> None:
    result = run(shop, "instructions", *words, "--db", "typo.db")
    assert isinstance(result.exception, UserError)
    assert "there is no store at 'typo.db'" in str(result.exception)
    assert not Path("typo.db").exists()


def test_store_is_created_where_that_is_asked_for(shop: LibraryProject) -> None:
    assert run(shop, "instructions", "publish", "folder", "--db", "new.db", "--create").exit_code == 0
    assert run(shop, "instructions", "recall", "claim a ticket", "--db", "new.db").exit_code == 0


def test_configuration_shows_the_settings_of_instructions(shop: LibraryProject) -> None:
    home = shop.path / "home"
    (home / "config.toml").write_text('[instructions]\ndeployment = "acme"\nencoder = "none"\n')
    shown = json.loads(run(shop, "config", "--json").output)["instructions"]
    assert shown["deployment"] == {"value": "acme", "from": str(home / "config.toml")}
    assert (shown["encoder"]["value"], shown["enabled"]) == ("none", {"value": False, "from": "default"})
    table = run(shop, "config").output
    assert any(line.split()[:2] == ["instructions.deployment", "acme"] for line in table.splitlines())


def test_withdrawn_unit_is_not_recalled_until_it_is_published_again(shop: LibraryProject) -> None:
    with shop.library:
        shop.library.publish(shop.folder)
        assert shop.recalled("review a pull request") == ["code-review"]
        result = shop.run("withdraw", "code-review")
        assert result.output == "withdrawn: instruction:local/main/code-review/v1\n"
        assert shop.recalled("review a pull request") == []
        assert "no active unit" in str(shop.run("withdraw", "code-review").exception)
        shop.clock.advance(60)
        shop.library.publish(shop.folder)
        assert shop.recalled("review a pull request") == ["code-review"]


def test_repeated_question_is_neither_encoded_nor_ranked_again(shop: LibraryProject) -> None:
    with shop.library:
        shop.library.publish(shop.folder)
        instruction_set = shop.library._instruction_set("main")[1]
        question = RecallQuery(intent="review a pull request")
        assert instruction_set.recall(question) is instruction_set.recall(RecallQuery(intent="review a pull request"))
        assert instruction_set.recall(question) is not instruction_set.recall(RecallQuery(intent="claim a ticket"))
