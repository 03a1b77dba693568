"""`holdfast instructions migrate`: proposals for instruction files as they really occur."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.main import command
from holdfast.errors import UserError
from holdfast.instructions.migration.files import read_migration_files
from holdfast.stores.sqlite.store import SqliteStore

AGENTS = """# Weather service

A service that tells the weather of tomorrow, written in Python.

## Never

- Never push to main.
- Never print credentials.

## Testing

Run the tests before every commit, and add one for each mistake that you mend.

```bash
# run everything
make test
```

## Starting work on an issue

Claim the issue first, then make a branch that is called after it and say so in a comment.

## Release notes

Write what changed for users, newest first, and name the issue of every change that is listed there.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "AGENTS.md").write_text(AGENTS)
    return tmp_path


def run(project: Path, *words: str) -> Result:
    return CliRunner().invoke(
        command, ["instructions", "migrate", *words], env={"HOLDFAST_HOME": str(project / "home"), "COLUMNS": "80"}
    )


def migrate(project: Path, *words: str) -> Any:
    result = run(project, "--json", *words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_sections_become_units_with_situations_as_triggers(project: Path) -> None:
    proposal = migrate(project, str(project / "AGENTS.md"))
    by_name = {unit["name"]: unit for unit in proposal["units"]}
    assert list(by_name) == ["weather-service", "testing", "starting-work-on-an-issue", "release-notes"]
    assert "# run everything\nmake test" in by_name["testing"]["content"]
    assert "write or run tests" in by_name["testing"]["entry"]["load_triggers"]["intents"]
    assert by_name["testing"]["spans"] == [{"path": "AGENTS.md", "first_line": 10, "last_line": 17}]


def test_general_rules_go_to_the_stub_and_task_rules_are_preloaded(project: Path) -> None:
    proposal = migrate(project, str(project / "AGENTS.md"))
    assert [rule["text"] for rule in proposal["always_rules"]] == [
        "## Never\n\n  - Never push to main.\n  - Never print credentials."
    ]
    kinds = {unit["name"]: unit["kind"] for unit in proposal["units"]}
    assert kinds["starting-work-on-an-issue"] == "task_type"
    assert kinds["testing"] == "lazy"
    entry = next(
        candidate for candidate in proposal["manifest"]["entries"] if candidate["name"] == "starting-work-on-an-issue"
    )
    assert entry["required_by_task_types"] == ["issue_assigned"]


def test_the_proposal_is_shown_for_review_and_nothing_is_published(project: Path) -> None:
    result = run(project, str(project / "AGENTS.md"), "--out", str(project / "out"))
    assert result.exit_code == 0
    assert "release-notes" in result.stdout
    assert "nothing is published" in result.stdout
    assert sorted(path.name for path in (project / "out").iterdir()) == [
        "manifest.json",
        "release-notes.md",
        "starting-work-on-an-issue.md",
        "testing.md",
        "weather-service.md",
    ]
    assert not (project / "home" / "holdfast.db").exists()


def test_texts_may_be_written_as_units_at_once_without_being_published(project: Path) -> None:
    path = project / "kept.db"
    for _ in range(2):
        assert run(project, str(project / "AGENTS.md"), "--write", "--db", str(path), "--create").exit_code == 0
    with SqliteStore(path) as store:
        (unit,) = store.instructions.list_unit_versions("main", "testing")
        assert (unit.version, unit.status) == ("v1", "active")
        assert "make test" in unit.content
        assert store.instructions.manifest("main") is None


def test_a_non_empty_folder_is_not_overwritten(project: Path) -> None:
    result = run(project, str(project / "AGENTS.md"), "--out", str(project))
    assert isinstance(result.exception, UserError)
    assert "is not empty" in str(result.exception)


def test_imports_are_followed_below_the_root_and_counted_at_their_own_file(project: Path, tmp_path: Path) -> None:
    (project / "docs").mkdir()
    (project / "docs" / "style.md").write_text(
        "# Style\n\nWe write short sentences. See @../CLAUDE.md and @missing.md.\n"
    )
    (project / "CLAUDE.md").write_text("See @docs/style.md and @../outside.md\n\n`@docs/code.md`\n\n@someone\n")
    read = read_migration_files([project / "CLAUDE.md"])
    assert [(file.path, file.imported_by) for file in read.files] == [
        ("CLAUDE.md", None),
        ("docs/style.md", "CLAUDE.md"),
    ]
    assert len(read.warnings) == 2
    assert "'missing.md' was not followed: there is no such file" in read.warnings[0]
    assert "'../outside.md' was not followed: it is outside of the root" in read.warnings[1]
    proposal = migrate(project, str(project / "CLAUDE.md"))
    text = "\n".join(unit["content"] for unit in proposal["units"])
    assert text.count("We write short sentences.") == 1
    assert text.count("See @docs/style.md") == 1


def test_a_link_out_of_the_root_is_not_an_import(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.md"
    secret.write_text("# Secret\n")
    (project / "link.md").symlink_to(secret)
    (project / "CLAUDE.md").write_text("Read @link.md\n")
    read = read_migration_files([project / "CLAUDE.md"])
    assert [file.path for file in read.files] == ["CLAUDE.md"]


def test_imports_are_followed_five_deep(project: Path) -> None:
    for number in range(8):
        (project / f"{number}.md").write_text(f"Part {number}. @{number + 1}.md\n")
    read = read_migration_files([project / "0.md"])
    assert [file.path for file in read.files] == [f"{number}.md" for number in range(6)]


def test_rules_of_a_folder_are_loaded_by_name_with_their_front_matter(project: Path) -> None:
    rules = project / ".cursor" / "rules"
    rules.mkdir(parents=True)
    (rules / "b.mdc").write_text(
        "---\ndescription: How forms are built\nglobs: *.tsx\n---\n\nUse the form hooks for every form of ours.\n"
    )
    (rules / "a.mdc").write_text("---\nalwaysApply: true\n---\n\nAnswer in English, and keep every sentence short.\n")
    proposal = migrate(project, str(rules))
    assert [rule["spans"][0]["path"] for rule in proposal["always_rules"]] == [".cursor/rules/a.mdc"]
    (unit,) = proposal["units"]
    assert unit["entry"]["description"] == "How forms are built"
    assert "work on files such as *.tsx" in unit["entry"]["load_triggers"]["intents"]
    assert unit["content"].startswith("---\ndescription: How forms are built\n")


def test_sections_may_begin_at_lines_of_another_form(project: Path) -> None:
    path = project / "RULES.md"
    path.write_text(
        "".join(f"RULE {number}: the rule about {topic}\n\n{'Words that say more. ' * 8}\n\n" for number, topic in
                enumerate(("tests", "releases", "reviews")))
    )  # fmt: skip
    proposal = migrate(project, str(path), "--at", "^RULE")
    assert len(proposal["units"]) == 3


def test_a_file_with_too_many_sections_for_a_manifest_is_merged(project: Path) -> None:
    path = project / "LONG.md"
    path.write_text("".join(f"## Topic number {n}\n\n{f'What to know about number {n}. ' * 6}\n\n" for n in range(60)))
    proposal = migrate(project, str(path))
    assert proposal["manifest_tokens"] <= 1000
    assert 8 <= len(proposal["units"]) < 60
    assert any("sections were joined with others" in warning for warning in proposal["warnings"])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--at", "("), "not a valid regular expression"),
        (("--agent", "a/b"), "instruction:{deployment}/{agent}"),
        (("--version", "latest"), "is a floating version"),
    ],
)
def test_invalid_input_is_refused_in_one_line(project: Path, words: tuple[str, ...], reason: str) -> None:
    result = run(project, str(project / "AGENTS.md"), *words)
    assert result.exit_code != 0
    assert reason in f"{result.output}{result.exception}"


def test_a_folder_without_rules_is_named(project: Path) -> None:
    (project / "empty").mkdir()
    result = run(project, str(project / "empty"))
    assert isinstance(result.exception, UserError)
    assert "has no files with the suffix" in str(result.exception)
