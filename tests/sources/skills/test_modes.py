"""The three validation modes; `strict` is compared with the standard's reference validator."""

from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.skill_folders import library_of, names_in, rules_of, write_raw, write_skill

from holdfast.sources.skills.library import check_skill, load_skill
from holdfast.sources.skills.skill import SKILL_MODES, SkillMode

PLAIN = "name: my-skill\ndescription: A test skill\n"


class Reference(NamedTuple):
    """An input of the reference validator's tests, with its result: nothing, or which of our rules is broken."""

    case: str
    folder: str
    text: str
    broken: str | None = None
    file: str = "SKILL.md"


def document(front: str) -> str:
    return f"---\n{front}---\nBody\n"


def skill_named(name: str) -> str:
    return document(f"name: {name}\ndescription: A test skill\n")


REFERENCE = (
    Reference("valid", "my-skill", f"---\n{PLAIN}---\n# My Skill\n"),
    Reference("upper case", "MySkill", skill_named("MySkill"), "name-characters"),
    Reference("70 characters", "a" * 70, skill_named("a" * 70), "name-length"),
    Reference("leading hyphen", "-my-skill", skill_named("-my-skill"), "name-hyphens"),
    Reference("two hyphens", "my--skill", skill_named("my--skill"), "name-hyphens"),
    Reference("underscore", "my_skill", skill_named("my_skill"), "name-characters"),
    Reference("another folder", "wrong-name", skill_named("correct-name"), "name-folder"),
    Reference("unexpected field", "my-skill", document(PLAIN + "unknown_field: not here\n"), "unknown-field"),
    Reference("all fields", "my-skill", document(PLAIN + "license: MIT\nmetadata:\n  author: Test\n")),
    Reference("allowed tools", "my-skill", document(PLAIN + "allowed-tools: Bash(jq:*) Bash(git:*)\n")),
    Reference("Chinese", "技能", skill_named("技能")),
    Reference("Russian with a hyphen", "мой-навык", skill_named("мой-навык")),
    Reference("Russian", "навык", skill_named("навык")),
    Reference("Russian upper case", "НАВЫК", skill_named("НАВЫК"), "name-characters"),
    Reference("long description", "a", document(f"name: a\ndescription: {'x' * 1100}\n"), "description-length"),
    Reference("compatibility", "my-skill", document(PLAIN + "compatibility: Requires Python 3.11+\n")),
    Reference("long compatibility", "a", document(f"{PLAIN}compatibility: {'x' * 550}\n"), "compatibility-length"),
    Reference("decomposed name", "café", skill_named("cafe\u0301")),
    Reference("no front matter", "my-skill", "# No frontmatter here", "opening"),
    Reference("unclosed", "my-skill", f"---\n{PLAIN}", "closing"),
    Reference("no YAML", "my-skill", document("name: [invalid\ndescription: broken\n"), "yaml"),
    Reference("a list", "my-skill", document("- just\n- a\n- list\n"), "not-a-mapping"),
    Reference("license", "my-skill", f"---\n{PLAIN}license: MIT\n---\n# My Skill\n"),
    Reference("metadata", "my-skill", document(PLAIN + "metadata:\n  author: Test Author\n  version: 1.0\n")),
    Reference("no name", "my-skill", document("description: A test skill\n"), "name-missing"),
    Reference("no description", "my-skill", document("name: my-skill\n"), "description-missing"),
    Reference("lower-case file", "my-skill", f"---\n{PLAIN}---\n# My Skill\n", file="skill.md"),
    Reference("lower-case file without front matter", "my-skill", "lowercase", "opening", "skill.md"),
    Reference("first of several", "skill-a", document("name: skill-a\ndescription: First skill\n")),
    Reference("second of several", "skill-b", document("name: skill-b\ndescription: Second skill\n")),
    Reference("markup", "special-skill", document("name: special-skill\ndescription: Use <foo> & <bar> tags\n")),
)


@pytest.mark.parametrize("case", REFERENCE, ids=lambda case: case.case)
def test_strict_agrees_with_the_reference_validator(tmp_path: Path, case: Reference) -> None:
    report = check_skill(write_raw(tmp_path, case.folder, case.text.encode(), file=case.file), mode="strict")
    assert report.valid == (case.broken is None)
    assert (case.broken in rules_of(report)) == (case.broken is not None)


@pytest.mark.parametrize("mode", SKILL_MODES)
def test_a_path_without_a_skill_is_distinguished(tmp_path: Path, mode: SkillMode) -> None:
    (tmp_path / "file.txt").write_text("test")
    (tmp_path / "empty").mkdir()
    assert rules_of(check_skill(tmp_path / "none", mode=mode)) == ["not-found"]
    assert rules_of(check_skill(tmp_path / "file.txt", mode=mode)) == ["not-a-folder"]
    assert rules_of(check_skill(tmp_path / "empty", mode=mode)) == ["missing-file"]


def test_the_upper_case_file_is_preferred(tmp_path: Path) -> None:
    write_raw(tmp_path, "my-skill", b"lowercase", file="skill.md")
    write_raw(tmp_path, "my-skill", skill_named("my-skill").encode())
    assert names_in(tmp_path, "strict") == ["my-skill"]
    assert load_skill(tmp_path / "my-skill", mode="strict").body == "Body\n"


def test_input_that_the_reference_validator_accepts_is_parsed_alike(tmp_path: Path) -> None:
    front = PLAIN + "metadata:\n  author: Test Author\n  version: 1.0\nallowed-tools: Bash(jq:*) Bash(git:*)\n"
    skill = load_skill(write_skill(tmp_path, "my-skill", front), mode="strict")
    assert skill.metadata == {"author": "Test Author", "version": "1.0"}
    assert skill.allowed_tools == ("Bash(jq:*)", "Bash(git:*)")
    lower = write_raw(tmp_path, "b", skill_named("b").encode(), file="skill.md")
    assert load_skill(lower, mode="strict").description == "A test skill"


def test_a_decomposed_name_is_normalised_to_composed_form(tmp_path: Path) -> None:
    write_raw(tmp_path, "café", skill_named("'  cafe\u0301 '").encode())
    assert names_in(tmp_path, "strict") == ["café"]
    assert names_in(tmp_path, "lenient") == ["café"]


class Verdicts(NamedTuple):
    """The severity of one rule in seed, strict and lenient mode: error, warning or none."""

    rule: str
    front: str
    seed: str | None
    strict: str | None
    lenient: str | None


@pytest.mark.parametrize(
    "case",
    [
        Verdicts("name-folder", "name: other\ndescription: x", "error", "error", "warning"),
        Verdicts("name-length", f"name: {'a' * 65}\ndescription: x", "error", "error", "warning"),
        Verdicts("name-characters", "name: A_b\ndescription: x", "error", "error", "warning"),
        Verdicts("name-hyphens", "name: a--b\ndescription: x", "error", "error", "warning"),
        Verdicts("name-missing", "description: x", "error", "error", "warning"),
        Verdicts("name-missing", "name: {a: b}\ndescription: x", "error", "error", "warning"),
        Verdicts("name-missing", "name: '  '\ndescription: x", "error", "error", "warning"),
        Verdicts("description-missing", "name: a", "error", "error", "error"),
        Verdicts("description-length", f"name: a\ndescription: {'x' * 1025}", "error", "error", "warning"),
        Verdicts(
            "compatibility-length", f"name: a\ndescription: x\ncompatibility: {'x' * 501}", *("error",) * 2, "warning"
        ),
        Verdicts("compatibility-type", "name: a\ndescription: x\ncompatibility:\n  - b", *("error",) * 2, "warning"),
        Verdicts("license-type", "name: a\ndescription: x\nlicense:\n  - b", "error", None, "warning"),
        Verdicts("metadata-type", "name: a\ndescription: x\nmetadata: b", "error", None, "warning"),
        Verdicts("metadata-type", "name: a\ndescription: x\nmetadata:\n  b:\n  - c", "error", None, "warning"),
        Verdicts("allowed-tools-type", "name: a\ndescription: x\nallowed-tools:\n  - b", "error", None, "warning"),
        Verdicts("flow-style", "name: a\ndescription: x\nmetadata: {b: c}", None, "error", None),
        Verdicts("unknown-field", "name: a\ndescription: x\nversion: 1", None, "error", "warning"),
        Verdicts("duplicate-key", "name: b\nname: a\ndescription: x", "warning", "error", "warning"),
        Verdicts("alias", "name: &b a\ndescription: *b", None, "error", "error"),
        Verdicts("alias", "name: a\ndescription: x\nmetadata:\n  <<: {b: c}", None, "error", "error"),
        Verdicts("alias", "name: a\ndescription: *b", "error", "error", "error"),
        Verdicts("alias", "name: a\ndescription: x\nb: &b [*b]", "error", "error", "error"),
        Verdicts("number-length", f"name: a\ndescription: x\nmetadata:\n  b: 1{':1' * 60}", "error", None, None),
        Verdicts("tag", "name: !!str a\ndescription: x", "error", "error", "error"),
        Verdicts("tag", "name: a\ndescription: !!python/object/apply:os.system [ls]", "error", "error", "error"),
        Verdicts("nesting", f"name: a\ndescription: {'[' * 10_000}", "error", "error", "error"),
        Verdicts("yaml", "name: a\ndescription: x\n? [b]\n: c", "error", "error", "error"),
        Verdicts("yaml", "name: a\ndescription: x\n--- b\n", "error", "error", "error"),
        Verdicts("yaml", "name: a\n\tdescription: x\n", "error", "error", "error"),
        Verdicts("opening-blanks", "OPENING", "error", None, "warning"),
        Verdicts("byte-order-mark", "MARK", "warning", "error", "warning"),
        Verdicts("encoding", "ENCODING", "error", "error", "warning"),
        Verdicts("nul", "NUL", "warning", "warning", "warning"),
    ],
    ids=lambda case: case.rule,
)
@pytest.mark.parametrize("mode", SKILL_MODES)
def test_a_mode_sets_the_severity_of_a_broken_rule(tmp_path: Path, case: Verdicts, mode: SkillMode) -> None:
    plain = b"---\nname: a\ndescription: x\n---\nBody"
    raws = {
        "OPENING": plain.replace(b"---\n", b"--- \n", 1),
        "MARK": b"\xef\xbb\xbf" + plain,
        "ENCODING": plain + b"\xff",
        "NUL": plain + b"\0",
    }
    raw = raws.get(case.front) or f"---\n{case.front}\n---\nBody".encode()
    report = check_skill(write_raw(tmp_path, "a", raw), mode=mode)
    expected = {"seed": case.seed, "strict": case.strict, "lenient": case.lenient}[mode]
    severities = {finding.severity for finding in report.findings if finding.rule == case.rule}
    assert severities == ({expected} if expected else set())
    if expected == "error":
        assert not report.valid


@pytest.mark.parametrize(
    ("front", "name", "description"),
    [
        ("name: Other Name\ndescription: x", "Other Name", "x"),
        ("description: x", "a", "x"),
        ("name: a\ndescription: use when: always", "a", "use when: always"),
        ("name: a\ndescription: it's @home: 'x'\nlicense: MIT", "a", "it's @home: 'x'"),
        ("name: a\ndescription: [Beta] draws", "a", "[Beta] draws"),
        ('name: a\ndescription: "one" two', "a", '"one" two'),
    ],
)
def test_lenient_mode_accepts_as_much_as_possible(tmp_path: Path, front: str, name: str, description: str) -> None:
    folder = write_skill(tmp_path, "a", front)
    report = check_skill(folder, mode="lenient")
    assert report.skill is not None
    assert (report.skill.name, report.skill.description) == (name, description)
    assert report.name == name
    assert rules_of(report, "warning")


def test_a_repaired_line_is_named(tmp_path: Path) -> None:
    report = check_skill(write_skill(tmp_path, "a", "name: a\nlicense: MIT\ndescription: use: it\n"), mode="lenient")
    assert [(finding.rule, finding.line) for finding in report.findings] == [("unquoted", 4)]


def test_a_multi_line_value_is_not_repaired(tmp_path: Path) -> None:
    report = check_skill(write_skill(tmp_path, "a", 'name: a\ndescription: "one\n  two: "x"\n'), mode="lenient")
    assert rules_of(report) == ["yaml"]


@pytest.mark.parametrize(
    "name", ['"a\\nb"', "'a: b'", "'a [preloaded]'", "'<b>'", "'a\u202eb'", "'`a`'", "a" * 201, "'a\u2028b'"]
)
def test_lenient_mode_uses_the_folder_name_if_the_skill_name_is_unusable(tmp_path: Path, name: str) -> None:
    folder = write_skill(tmp_path, "a", f"name: {name}\ndescription: x")
    report = check_skill(folder, mode="lenient")
    assert "name-unusable" in rules_of(report, "warning")
    assert (report.skill and report.skill.name) == "a"
    folder = folder.rename(tmp_path / "What [is] this")
    assert load_skill(folder, mode="lenient").name == "what-is-this"
    assert not check_skill(folder, mode="strict").valid


def test_values_of_other_types_are_text_where_they_are_allowed(tmp_path: Path) -> None:
    front = "name: a\ndescription: x\nlicense:\n  - MIT\nmetadata:\n  b:\n    c: 1\n  d:\n"
    front += "allowed-tools:\n  - Read\n  - B(c d)\n"
    folder = write_skill(tmp_path, "a", front)
    for skill in (load_skill(folder, mode="strict"), load_skill(folder, mode="lenient")):
        assert skill.license == '["MIT"]'
        assert skill.metadata == {"b": '{"c":"1"}', "d": ""}
        assert skill.allowed_tools == ("Read", "B(c d)")


def test_invalid_utf8_is_replaced_in_lenient_mode(tmp_path: Path) -> None:
    folder = write_raw(tmp_path, "a", b"---\nname: a\ndescription: x\xff\n---\n\0\n")
    assert load_skill(folder, mode="lenient").description == "x\ufffd"
    assert load_skill(folder, mode="lenient").body == "\ufffd\n"
    report = check_skill(folder, mode="lenient")
    assert [(finding.rule, finding.line) for finding in report.findings] == [("encoding", 3), ("nul", 5)]


def test_two_skills_of_one_name_are_distinguished_by_their_folders(tmp_path: Path) -> None:
    write_skill(tmp_path, "one", "name: same\ndescription: x\n")
    write_skill(tmp_path, "two", "name: same\ndescription: y\n")
    assert names_in(tmp_path, "lenient") == ["same", "two"]
    [second] = [candidate for candidate in library_of(tmp_path, "lenient").reports if candidate.path.endswith("two")]
    assert "duplicate-name" in rules_of(second, "warning")


@pytest.mark.parametrize("mode", ["seed", "strict"])
def test_of_two_indistinguishable_skills_the_first_remains(tmp_path: Path, mode: SkillMode) -> None:
    write_skill(tmp_path / "a", "pdf", body="first")
    write_skill(tmp_path / "b", "pdf", body="second")
    library = library_of(tmp_path, mode)
    assert [skill.body for skill in library.store.list_skills()] == ["first"]
    assert [rules_of(report) for report in library.reports] == [[], ["duplicate-name"]]


def test_lenient_mode_numbers_indistinguishable_skills(tmp_path: Path) -> None:
    for group, body in (("a", "first"), ("b", "second"), ("c", "third")):
        write_skill(tmp_path / group, "pdf", body=body)
    write_skill(tmp_path, "pdf-2", body="always called so")
    library = library_of(tmp_path, "lenient")
    assert [(skill.name, skill.body) for skill in library.store.list_skills()] == [
        ("pdf", "first"),
        ("pdf-2", "always called so"),
        ("pdf-3", "second"),
        ("pdf-4", "third"),
    ]
    assert "until then this one is named 'pdf-3'" in str(library.reports[1].findings[-1])


def test_a_finding_names_position_rule_problem_and_fix(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "a", "name: a\nlicense: MIT\ndescription:\nColour: red\n")
    [first, second] = check_skill(folder).findings
    assert str(first) == (
        f"{folder}/SKILL.md:4: there is no description; describe in one line what the skill does and when to use it"
        " (description-missing)"
    )
    assert (second.line, second.message) == (5, "unknown fields: 'Colour'")
    assert "put others into metadata" in second.fix


def test_many_unknown_fields_are_counted(tmp_path: Path) -> None:
    more = "".join(f"x{number}: y\n" for number in range(9))
    [finding] = check_skill(write_skill(tmp_path, "a", more=more)).findings
    assert finding.message == "unknown fields: 'x0', 'x1', 'x2', 'x3', 'x4' and 4 more"
