"""What each of the three modes makes of a skill; `strict` beside the inputs of the standard's reference validator."""

from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.skill_folders import library_of, names_in, rules_of, write_raw, write_skill

from holdfast.sources.skills.library import check_skill, load_skill
from holdfast.sources.skills.skill import SKILL_MODES, SkillMode

PLAIN = "name: my-skill\ndescription: A test skill\n"


class Reference(NamedTuple):
    """An input of the reference validator's tests, and what it says of it: nothing, or which of our rules is broken."""

    case: str
    folder: str
    text: str
    broken: str | None = None
    file: str = "SKILL.md"


def document(front: str) -> str:
    return f"---\n{front}---\nBody\n"


def named(name: str) -> str:
    return document(f"name: {name}\ndescription: A test skill\n")


REFERENCE = (
    Reference("valid", "my-skill", f"---\n{PLAIN}---\n# My Skill\n"),
    Reference("upper case", "MySkill", named("MySkill"), "name-characters"),
    Reference("70 characters", "a" * 70, named("a" * 70), "name-length"),
    Reference("leading hyphen", "-my-skill", named("-my-skill"), "name-hyphens"),
    Reference("two hyphens", "my--skill", named("my--skill"), "name-hyphens"),
    Reference("underscore", "my_skill", named("my_skill"), "name-characters"),
    Reference("another folder", "wrong-name", named("correct-name"), "name-folder"),
    Reference("unexpected field", "my-skill", document(PLAIN + "unknown_field: not here\n"), "unknown-field"),
    Reference("all fields", "my-skill", document(PLAIN + "license: MIT\nmetadata:\n  author: Test\n")),
    Reference("allowed tools", "my-skill", document(PLAIN + "allowed-tools: Bash(jq:*) Bash(git:*)\n")),
    Reference("Chinese", "技能", named("技能")),
    Reference("Russian with a hyphen", "мой-навык", named("мой-навык")),
    Reference("Russian", "навык", named("навык")),
    Reference("Russian upper case", "НАВЫК", named("НАВЫК"), "name-characters"),
    Reference("long description", "a", document(f"name: a\ndescription: {'x' * 1100}\n"), "description-length"),
    Reference("compatibility", "my-skill", document(PLAIN + "compatibility: Requires Python 3.11+\n")),
    Reference("long compatibility", "a", document(f"{PLAIN}compatibility: {'x' * 550}\n"), "compatibility-length"),
    Reference("decomposed name", "café", named("cafe\u0301")),
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


@pytest.mark.parametrize("one", REFERENCE, ids=lambda one: one.case)
def test_strict_says_what_the_reference_validator_says(tmp_path: Path, one: Reference) -> None:
    told = check_skill(write_raw(tmp_path, one.folder, one.text.encode(), file=one.file), mode="strict")
    assert told.valid == (one.broken is None)
    assert (one.broken in rules_of(told)) == (one.broken is not None)


@pytest.mark.parametrize("mode", SKILL_MODES)
def test_what_is_no_folder_with_a_skill_in_it_is_told_apart(tmp_path: Path, mode: SkillMode) -> None:
    (tmp_path / "file.txt").write_text("test")
    (tmp_path / "empty").mkdir()
    assert rules_of(check_skill(tmp_path / "none", mode=mode)) == ["not-found"]
    assert rules_of(check_skill(tmp_path / "file.txt", mode=mode)) == ["not-a-folder"]
    assert rules_of(check_skill(tmp_path / "empty", mode=mode)) == ["missing-file"]


def test_the_upper_case_file_is_preferred(tmp_path: Path) -> None:
    write_raw(tmp_path, "my-skill", b"lowercase", file="skill.md")
    write_raw(tmp_path, "my-skill", named("my-skill").encode())
    assert names_in(tmp_path, "strict") == ["my-skill"]
    assert load_skill(tmp_path / "my-skill", mode="strict").body == "Body\n"


def test_what_the_reference_validator_reads_is_read_the_same(tmp_path: Path) -> None:
    front = PLAIN + "metadata:\n  author: Test Author\n  version: 1.0\nallowed-tools: Bash(jq:*) Bash(git:*)\n"
    skill = load_skill(write_skill(tmp_path, "my-skill", front), mode="strict")
    assert skill.metadata == {"author": "Test Author", "version": "1.0"}
    assert skill.allowed_tools == ("Bash(jq:*)", "Bash(git:*)")
    lower = write_raw(tmp_path, "b", named("b").encode(), file="skill.md")
    assert load_skill(lower, mode="strict").description == "A test skill"


def test_a_decomposed_name_is_kept_composed(tmp_path: Path) -> None:
    write_raw(tmp_path, "café", named("'  cafe\u0301 '").encode())
    assert names_in(tmp_path, "strict") == ["café"]
    assert names_in(tmp_path, "lenient") == ["café"]


class Verdicts(NamedTuple):
    """Of one rule: whether it is an error, a warning or nothing in seed, strict and lenient mode."""

    rule: str
    front: str
    seed: str | None
    strict: str | None
    lenient: str | None


@pytest.mark.parametrize(
    "one",
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
        Verdicts("alias", "name: &b a\ndescription: *b", "error", "error", "error"),
        Verdicts("alias", "name: a\ndescription: x\nmetadata:\n  <<: {b: c}", "error", "error", "error"),
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
    ids=lambda one: one.rule,
)
@pytest.mark.parametrize("mode", SKILL_MODES)
def test_a_mode_says_how_much_a_broken_rule_matters(tmp_path: Path, one: Verdicts, mode: SkillMode) -> None:
    plain = b"---\nname: a\ndescription: x\n---\nBody"
    raws = {
        "OPENING": plain.replace(b"---\n", b"--- \n", 1),
        "MARK": b"\xef\xbb\xbf" + plain,
        "ENCODING": plain + b"\xff",
        "NUL": plain + b"\0",
    }
    raw = raws.get(one.front) or f"---\n{one.front}\n---\nBody".encode()
    told = check_skill(write_raw(tmp_path, "a", raw), mode=mode)
    expected = {"seed": one.seed, "strict": one.strict, "lenient": one.lenient}[mode]
    found = {finding.severity for finding in told.findings if finding.rule == one.rule}
    assert found == ({expected} if expected else set())
    if expected == "error":
        assert not told.valid


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
def test_a_lenient_reader_makes_the_best_of_it(tmp_path: Path, front: str, name: str, description: str) -> None:
    folder = write_skill(tmp_path, "a", front)
    told = check_skill(folder, mode="lenient")
    assert told.skill is not None
    assert (told.skill.name, told.skill.description) == (name, description)
    assert told.name == name
    assert rules_of(told, "warning")


def test_a_mended_line_is_named(tmp_path: Path) -> None:
    told = check_skill(write_skill(tmp_path, "a", "name: a\nlicense: MIT\ndescription: use: it\n"), mode="lenient")
    assert [(finding.rule, finding.line) for finding in told.findings] == [("unquoted", 4)]


def test_what_stands_over_many_lines_is_not_mended(tmp_path: Path) -> None:
    told = check_skill(write_skill(tmp_path, "a", 'name: a\ndescription: "one\n  two: "x"\n'), mode="lenient")
    assert rules_of(told) == ["yaml"]


@pytest.mark.parametrize(
    "name", ['"a\\nb"', "'a: b'", "'a [preloaded]'", "'<b>'", "'a\u202eb'", "'`a`'", "a" * 201, "'a\u2028b'"]
)
def test_a_lenient_reader_calls_a_skill_by_its_folder_if_no_line_could_hold_its_name(tmp_path: Path, name: str) -> None:
    folder = write_skill(tmp_path, "a", f"name: {name}\ndescription: x")
    told = check_skill(folder, mode="lenient")
    assert "name-unusable" in rules_of(told, "warning")
    assert (told.skill and told.skill.name) == "a"
    folder = folder.rename(tmp_path / "What [is] this")
    assert load_skill(folder, mode="lenient").name == "what-is-this"
    assert not check_skill(folder, mode="strict").valid


def test_odd_values_are_kept_as_text_where_they_are_allowed(tmp_path: Path) -> None:
    front = "name: a\ndescription: x\nlicense:\n  - MIT\nmetadata:\n  b:\n    c: 1\n  d:\n"
    front += "allowed-tools:\n  - Read\n  - B(c d)\n"
    folder = write_skill(tmp_path, "a", front)
    for skill in (load_skill(folder, mode="strict"), load_skill(folder, mode="lenient")):
        assert skill.license == '["MIT"]'
        assert skill.metadata == {"b": '{"c":"1"}', "d": ""}
        assert skill.allowed_tools == ("Read", "B(c d)")


def test_what_is_not_utf8_is_replaced_for_a_lenient_reader(tmp_path: Path) -> None:
    folder = write_raw(tmp_path, "a", b"---\nname: a\ndescription: x\xff\n---\n\0\n")
    assert load_skill(folder, mode="lenient").description == "x\ufffd"
    assert load_skill(folder, mode="lenient").body == "\ufffd\n"
    told = check_skill(folder, mode="lenient")
    assert [(finding.rule, finding.line) for finding in told.findings] == [("encoding", 3), ("nul", 5)]


def test_two_skills_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    write_skill(tmp_path, "one", "name: same\ndescription: x\n")
    write_skill(tmp_path, "two", "name: same\ndescription: y\n")
    assert names_in(tmp_path, "lenient") == ["same", "two"]
    [second] = [one for one in library_of(tmp_path, "lenient").reports if one.path.endswith("two")]
    assert "duplicate-name" in rules_of(second, "warning")


@pytest.mark.parametrize("mode", ["seed", "strict"])
def test_of_two_skills_with_nothing_to_tell_them_apart_the_first_stays(tmp_path: Path, mode: SkillMode) -> None:
    write_skill(tmp_path / "a", "pdf", body="first")
    write_skill(tmp_path / "b", "pdf", body="second")
    library = library_of(tmp_path, mode)
    assert [skill.body for skill in library.store.list_skills()] == ["first"]
    assert [rules_of(one) for one in library.reports] == [[], ["duplicate-name"]]


def test_a_lenient_reader_numbers_skills_with_nothing_to_tell_them_apart(tmp_path: Path) -> None:
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


def test_a_finding_says_where_what_by_which_rule_and_how_to_mend_it(tmp_path: Path) -> None:
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
