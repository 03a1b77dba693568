"""The output of `holdfast skills`, and its exit status."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.skill_folders import DESCRIPTION, write_raw, write_skill

from holdfast.cli.main import command
from holdfast.errors import HoldfastError


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(command, ["skills", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit | HoldfastError):
        raise result.exception
    return result


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty workspace as the working directory, and an empty home beside it."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    return tmp_path


@pytest.fixture
def root(place: Path) -> Path:
    write_skill(
        place / "skills", "good", more="license: MIT\nallowed-tools: Bash(git add:*)\n", body="# Steps\n\n1. Go.\n"
    )
    write_skill(place / "skills", "odd", "name: Other\ndescription: x\nversion: 1\n")
    return place / "skills"


def test_validate_lists_every_finding_in_json(root: Path) -> None:
    result = run("validate", root, "--json")
    assert json.loads(result.stdout) == {
        "skills": [
            {"path": f"{root}/good", "name": "good", "valid": True, "loadable": True, "findings": []},
            {
                "path": f"{root}/odd",
                "name": "Other",
                "valid": False,
                "loadable": False,
                "findings": [
                    {
                        "rule": "name-characters",
                        "line": 2,
                        "message": "the name 'Other' has characters other than lower-case letters, digits and hyphens; "
                        "rename it to other",
                    },
                    {
                        "rule": "name-folder",
                        "line": 2,
                        "message": "the name 'Other' differs from the folder name 'odd'; rename one of them",
                    },
                    {
                        "rule": "unknown-field",
                        "line": 4,
                        "message": "unknown fields: 'version'; known are name, description, license, compatibility, "
                        "metadata, allowed-tools; put others into metadata",
                    },
                ],
            },
        ],
        "valid": 1,
        "invalid": 1,
    }
    assert result.exit_code == 1


def test_validate_is_strict_by_default(root: Path) -> None:
    write_skill(root, "odd", more="version: 1\n")
    assert run("validate", root).exit_code == 1
    seed = run("validate", root, "--mode", "seed")
    assert (seed.exit_code, seed.stdout) == (0, "2 valid, 0 invalid under the seed rules\n")
    lenient = run("validate", root, "--mode", "lenient")
    assert lenient.exit_code == 0
    assert f"warning: {root}/odd/SKILL.md:4: unknown fields: 'version'" in lenient.stdout


def test_all_modes_are_counted_by_one_command(root: Path) -> None:
    result = run("validate", root, "--mode", "all")
    assert result.stdout == "seed: 1 valid, 1 invalid\nstrict: 1 valid, 1 invalid\nlenient: 2 valid, 0 invalid\n"
    assert result.exit_code == 1
    counts = json.loads(run("validate", root, "--mode", "all", "--json").stdout)
    assert counts == {
        "seed": {"valid": 1, "invalid": 1},
        "strict": {"valid": 1, "invalid": 1},
        "lenient": {"valid": 2, "invalid": 0},
    }
    assert run("validate", root / "good", "--mode", "all").exit_code == 0


@pytest.mark.parametrize("argument", ["good", "good/SKILL.md", "good/"])
def test_one_skill_is_checked_alone(root: Path, argument: str) -> None:
    result = run("validate", f"{root}/{argument}")
    assert (result.exit_code, result.stdout) == (0, "1 valid, 0 invalid under the strict rules\n")


def test_a_lower_case_file_is_one_skill_too(root: Path) -> None:
    folder = write_raw(root, "low", b"---\nname: low\ndescription: x\n---\n", file="skill.md")
    assert run("validate", folder).exit_code == 0
    assert run("validate", folder / "skill.md", "--mode", "seed").exit_code == 1


@pytest.mark.parametrize(("name", "rule"), [("none", "not-found"), ("empty", "missing-file"), ("file", "not-a-folder")])
def test_a_folder_without_a_skill_is_invalid(root: Path, name: str, rule: str) -> None:
    (root / "empty").mkdir()
    (root / "file").write_text("x")
    result = run("validate", root / name, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (report["valid"], report["invalid"], report["skills"][0]["name"]) == (0, 1, None)
    assert [(finding["rule"], finding["line"]) for finding in report["skills"][0]["findings"]] == [(rule, None)]


def test_list_shows_what_loads_and_reports_what_does_not(root: Path) -> None:
    result = run("list", root)
    assert result.exit_code == 1
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["name", "source", "tokens", "description"],
        ["good", "workspace", "4", *DESCRIPTION.split()],
    ]
    assert f"left out: {root}/odd/SKILL.md:2: the name 'Other' differs from the folder name" in result.stderr
    assert run("list", root, "--mode", "lenient").exit_code == 0


def test_list_in_json_has_the_fields_that_a_program_needs(root: Path) -> None:
    [skill] = json.loads(run("list", root, "--json").stdout)
    assert skill == {
        "name": "good",
        "description": DESCRIPTION,
        "source": "workspace",
        "path": f"{root}/good",
        "version": skill["version"],
        "tokens": 4,
    }
    assert len(skill["version"]) == 16


def test_without_a_folder_home_and_workspace_are_searched(place: Path) -> None:
    write_skill(place / "home/.holdfast/skills", "mine")
    write_skill(place / "home/.claude/skills", "theirs")
    write_skill(place / "work/.holdfast/skills", "ours")
    rows = [line.split()[:2] for line in run("list").stdout.splitlines()[1:]]
    assert rows == [["mine", "global"], ["ours", "workspace"]]
    assert "theirs" in run("list", "--also", ".claude/skills").stdout
    assert run("show", "mine").exit_code == 0
    assert "theirs" in run("index", "--also", ".claude/skills").stdout
    refused = run("list", place, "--also", ".claude/skills")
    assert str(refused.exception).startswith("--also applies only without DIR")
    (place / "home/.holdfast/config.toml").write_text('also_skills = [".claude/skills"]\n')
    assert "theirs" in run("list").stdout


def test_a_skill_that_no_session_would_load_is_marked(place: Path) -> None:
    write_skill(place / "skills", "manual", body="x" * 120_000)
    result = run("validate", place / "skills")
    assert result.stdout == (
        f"warning: {place}/skills/manual/SKILL.md:1: not loadable: the body has about 30000 tokens, and a session "
        "loads fewer than 30000; move what is not always needed into separate files (body-cap)\n"
        "1 valid (1 not loadable), 0 invalid under the strict rules\n"
    )
    assert result.exit_code == 1
    assert [
        skill["loadable"] for skill in json.loads(run("validate", place / "skills", "--json").stdout)["skills"]
    ] == [False]
    assert "- manual [not loadable]: " in run("index", place / "skills").stdout
    (place / "home/.holdfast").mkdir(parents=True, exist_ok=True)
    (place / "home/.holdfast/config.toml").write_text("skill_tokens_max = 40000\n")
    assert run("validate", place / "skills").exit_code == 0
    assert "[not loadable]" not in run("index", place / "skills").stdout


def test_other_programs_skills_are_read_leniently_unless_a_mode_is_chosen(place: Path) -> None:
    for root in ("home/.claude/skills", "home/.holdfast/skills"):
        write_skill(place / root, root[5:8].strip("."), "name: Odd One\ndescription: x\n")
    listed = run("list", "--also", ".claude/skills")
    assert ("Odd One" in listed.stdout, listed.exit_code) == (True, 1)
    assert "home/.holdfast/skills/ho/SKILL.md" in listed.stderr
    assert "Odd One" not in run("list", "--also", ".claude/skills", "--mode", "seed").stdout
    (place / "home/.holdfast/config.toml").write_text('skills_mode = "lenient"\n')
    assert run("list", "--also", ".claude/skills").exit_code == 0
    assert run("show", place / "home/.holdfast/skills/ho").exit_code == 0


def test_without_any_skill_the_output_is_empty_and_a_note_says_where_skills_are_looked_for(place: Path) -> None:
    assert run("list").stdout.startswith("There are no skills;")
    assert (run("index").stdout, run("index").exit_code) == ("", 0)
    assert run("index").stderr == run("list").stdout
    assert json.loads(run("validate", "--json").stdout) == {"skills": [], "valid": 0, "invalid": 0}


def test_index_prints_the_skill_section_of_a_prompt(root: Path) -> None:
    result = run("index", root / "good")
    assert result.stdout == (
        "## Available skills\n"
        "Use `skill_search(query)` to filter and `skill_load(name)` to read a body.\n"
        f"- good: {DESCRIPTION}\n"
    )
    assert result.exit_code == 0
    assert run("index", root).exit_code == 1
    index = json.loads(run("index", root, "--tokens-max", "1", "--json").stdout)
    assert (index["listed_count"], index["unlisted_count"]) == (0, 1)
    assert index["text"].endswith("(1 more skill is not listed: find it with `skill_search`.)")


def test_show_prints_one_complete_skill(root: Path) -> None:
    result = run("show", root / "good")
    assert result.exit_code == 0
    assert "license: MIT\n" in result.stdout
    assert "metadata" not in result.stdout
    assert result.stdout.endswith("\n\n# Steps\n\n1. Go.\n")
    report = json.loads(run("show", root / "good", "--json").stdout)
    assert (report["body"], report["allowed_tools"]) == ("# Steps\n\n1. Go.\n", ["Bash(git add:*)"])


def test_show_moves_no_cursor(root: Path) -> None:
    write_skill(root, "good", body="a\x1b[2Jb\n")
    assert "\x1b" not in run("show", root / "good").stdout


def test_show_reports_what_it_cannot_show(place: Path, root: Path) -> None:
    write_skill(place / "work/.holdfast/skills", "pdf-forms")
    assert "did you mean pdf-forms?" in str(run("show", "pdf-form").exception)
    assert "`holdfast skills list` shows all" in str(run("show", "xyz").exception)
    assert "contains 2 skills" in str(run("show", root).exception)
    assert "odd/SKILL.md:2: the name 'Other'" in str(run("show", root / "odd").exception)
