"""What holds of every skill file, whatever is in it, and of every index."""

import tempfile
from pathlib import Path

import msgspec
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.skill_folders import library_of, write_raw, write_skill

from holdfast.sources.skills.frontmatter import parse_front_matter
from holdfast.sources.skills.index import (
    SKILL_INDEX_HEADING,
    estimate_tokens,
    neutralize,
    render_skill_index,
    render_skill_line,
)
from holdfast.sources.skills.library import load_skill
from holdfast.sources.skills.parse import parse_skill
from holdfast.sources.skills.skill import SKILL_MODES, Skill, SkillMode
from holdfast.sources.skills.store import SkillStore
from holdfast.sources.skills.validation import split_tools

laws = settings(max_examples=2 * settings().max_examples)
many = settings(max_examples=10 * settings().max_examples)
few = settings(max_examples=settings().max_examples)

modes = st.sampled_from(SKILL_MODES)

signs = st.sampled_from(
    (
        *("---\n", "---", "\n", "name: a\n", "description: x\n", "metadata:\n", "allowed-tools: ", "version: 1.0\n"),
        *("...\n", "--- ", "&b ", "*b", "!!int ", "<<: ", "| ", "> ", "? ", "- ", ": ", " #", "  ", "null", "\r"),
        *("\0", "\t", "\ufeff", "\x85", "\u2028", "\x07", *":a'\"\\#[]{}%@`~,é技"),
    )
)
odd_text = st.lists(signs | st.text(max_size=3), max_size=25).map("".join)
odd_bytes = st.binary(max_size=60) | odd_text.map(lambda text: text.encode("utf-8", "surrogatepass"))
files = st.builds(
    lambda start, middle, end: start + middle + end,
    st.sampled_from([b"", b"---\n", b"---\nname: a\ndescription: x\n", b"\xef\xbb\xbf---\n"]),
    odd_bytes,
    st.sampled_from([b"", b"\n---\n", b"\n---\nBody"]),
)


@many
@given(files, modes)
@example(b"---\nname: a\ndescription: " + b"[" * 100_000 + b"\n---\n", "lenient")
def test_any_bytes_are_a_skill_or_have_a_reason_not_to_be(raw: bytes, mode: SkillMode) -> None:
    told = parse_skill(raw, "/skills/a/SKILL.md", "global", mode)
    errors = [finding for finding in told.findings if finding.severity == "error"]
    assert told.valid == (not errors)
    lines = raw.count(b"\n") + raw.count(b"\r") + 2
    for finding in told.findings:
        assert finding.line is None or 1 <= finding.line <= lines
        assert "\n" not in str(finding)
        assert finding.fix
        str(finding).encode()
    if told.skill is not None:
        assert told.skill.name
        assert told.skill.description.strip()
        assert "\n" not in render_skill_line(told.skill)
        msgspec.json.encode([told.skill.name, told.skill.description, told.skill.body, told.skill.metadata])


@few
@given(st.lists(odd_bytes | files, max_size=4), modes)
def test_whatever_stands_beside_it_a_good_skill_loads(raws: list[bytes], mode: SkillMode) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_skill(Path(folder), "good")
        for number, raw in enumerate(raws):
            write_raw(Path(folder), f"a{number}", raw)
        library = library_of(Path(folder), mode)
        assert "good" in library.store
        assert len(library.reports) == len(raws) + 1
        again = library.reload()
        assert (again.store, again.reports) == (library.store, library.reports)
        assert library_of(Path(folder), mode).reports == library.reports


def test_the_fields_of_a_front_matter_stay_in_order_with_their_lines() -> None:
    text = "name: a\ndescription: 'Use it: now'\nlicense: \"MIT\"\nmetadata:\n  author: me\n  version: 1.0\nx: é\n"
    front = parse_front_matter(text)
    assert list(front.fields or ()) == ["name", "description", "license", "metadata", "x"]
    assert front.lines["metadata"] == 5


word = st.text("ab1 ", max_size=4)
sign = st.sampled_from((*":#'\"-,~\\[{&*!|>%@`?\t\u2028\u2029\x85\ufeff\xa0é", "")) | st.characters()
bare = st.builds(lambda before, odd, behind: f"{before}{odd}{behind}", word, sign, word)
value = (
    bare | bare.map(lambda text: f'"{text}"') | bare.map(lambda text: f"'{text}'") | st.sampled_from(("null", "~", ""))
)
line = st.builds(
    lambda indent, name, gap, text: f"{indent}{name}:{gap}{text}",
    st.sampled_from(("", "", "", "", "  ", "  ", "   ", " " * 9, "\t")),
    st.sampled_from(("name", "a-b", "null", "true", "y", "a1", "k", "e", "-x", "x y")),
    st.sampled_from((" ", " ", " ", "  ", "", "\t", "\xa0")),
    value,
)
fronts = st.builds(
    lambda values, inner, odd, end: "\n".join((*values, *inner, *odd)) + end,
    st.lists(bare, max_size=3).map(lambda values: [f"k{at}: a{text}" for at, text in enumerate(values)]),
    st.lists(value, max_size=2).map(lambda values: ["m:", *(f"  k{at}: {one}" for at, one in enumerate(values))]),
    st.lists(line, max_size=1),
    st.sampled_from(("", "\n")),
)


@many
@given(odd_text | fronts)
def test_yaml_says_the_same_of_every_scalar(text: str) -> None:
    """Where nothing is refused, the fields are those of a loader that keeps every scalar as text."""
    front = parse_front_matter(text)
    if front.fields is None or any(fault.rule == "duplicate-key" for fault in front.faults):
        return
    assert as_text(front.fields) == as_text(yaml.load(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)))


def as_text(value: object) -> object:
    """Without the difference between nothing and the words for it."""
    if isinstance(value, dict):
        return {name: as_text(one) for name, one in value.items()}
    if isinstance(value, list):
        return [as_text(one) for one in value]
    return None if value in ("", "~", "null", "Null", "NULL") else value


@laws
@given(
    st.lists(st.from_regex(r"[A-Za-z:*]{1,6}(\([a-z :*]{0,8}\))?", fullmatch=True), max_size=6),
    st.sampled_from([" ", ", ", ",", "  "]),
)
def test_tools_come_back_as_they_were_written(tools: list[str], between: str) -> None:
    assert split_tools(between.join(tools)) == tuple(tools)


names = st.from_regex(r"[a-z0-9]{1,6}(-[a-z0-9]{1,4})?", fullmatch=True)
descriptions = odd_text | st.text(max_size=60)
skills = st.lists(
    st.builds(
        lambda name, text, source: Skill(name, text, "body", source, Path(name)),
        names,
        descriptions,
        st.sampled_from(["global", "workspace"]),
    ),
    max_size=12,
    unique_by=lambda skill: skill.name,
)


@laws
@given(skills, st.sets(names, max_size=3), st.integers(0, 400))
def test_an_index_has_a_line_a_skill_and_stays_within_its_budget(
    given_skills: list[Skill], preloaded: set[str], budget: int
) -> None:
    made = render_skill_index(given_skills, preloaded=preloaded, tokens_max=budget)
    assert made.listed_count + made.unlisted_count == len(given_skills)
    lines = made.text.splitlines()
    assert len(lines) == (2 + made.listed_count + (made.unlisted_count > 0) if given_skills else 0)
    entries = [one.split(":")[0].removesuffix(" [preloaded]") for one in lines[2 : 2 + made.listed_count]]
    assert entries == sorted(entries)
    assert set(entries) <= {f"- {skill.name}" for skill in given_skills}
    if made.listed_count:
        assert made.tokens <= budget
    assert made == render_skill_index(reversed(given_skills), preloaded=preloaded, tokens_max=budget)


@laws
@given(skills)
def test_with_room_for_all_every_skill_is_listed(given_skills: list[Skill]) -> None:
    room = estimate_tokens(SKILL_INDEX_HEADING) + sum(
        estimate_tokens("\n" + render_skill_line(one)) for one in given_skills
    )
    made = render_skill_index(given_skills, tokens_max=room)
    assert (made.listed_count, made.unlisted_count) == (len(given_skills), 0)


@laws
@given(descriptions)
def test_a_neutral_text_is_one_line_and_neutral(text: str) -> None:
    once = neutralize(text)
    assert len(once.splitlines()) <= 1
    assert neutralize(once) == once
    once.encode()


@laws
@given(st.text("abcXYZ 019.,;:!?()[]*_#-+=/&%$'\"|@^éß技", max_size=80))
def test_plain_text_on_one_line_stays_what_it_is(text: str) -> None:
    assert neutralize(text) == text.strip()


@laws
@given(skills, st.text("abcdefg0123 -", max_size=3), st.integers(0, 12))
def test_a_search_finds_what_holds_the_query_and_nothing_else(
    given_skills: list[Skill], query: str, limit: int
) -> None:
    wanted = query.strip().lower()
    score = {
        one.name: 2 * (wanted in one.name.lower()) + (wanted in one.description.lower()) if wanted else 1
        for one in given_skills
    }
    ranked = sorted((one for one in given_skills if score[one.name]), key=lambda one: (-score[one.name], one.name))
    assert SkillStore(given_skills).search(query, limit=limit) == ranked[:limit]


@few
@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=40),
    st.text("abc ", min_size=1),
)
def test_a_version_changes_with_the_body_and_not_with_the_description(body: str, description: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        one = write_skill(Path(folder), "a", f"name: a\ndescription: x{description}y", body=body)
        other = write_skill(Path(folder) / "b", "a", body=body)
        changed = write_skill(Path(folder) / "c", "a", body=body + "!")
        assert load_skill(one).version == load_skill(other).version != load_skill(changed).version
        assert load_skill(one).body == body.lstrip("\n")
