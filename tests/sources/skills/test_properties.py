"""Properties of every skill file and every index."""

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
from holdfast.sources.skills.library import load_skill, parse_skill
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
strange_text = st.lists(signs | st.text(max_size=3), max_size=25).map("".join)
strange_bytes = st.binary(max_size=60) | strange_text.map(lambda text: text.encode("utf-8", "surrogatepass"))
files = st.builds(
    lambda start, middle, end: start + middle + end,
    st.sampled_from([b"", b"---\n", b"---\nname: a\ndescription: x\n", b"\xef\xbb\xbf---\n"]),
    strange_bytes,
    st.sampled_from([b"", b"\n---\n", b"\n---\nBody"]),
)


@many
@given(files, modes)
@example(b"---\nname: a\ndescription: " + b"[" * 100_000 + b"\n---\n", "lenient")
def test_any_bytes_are_a_skill_or_have_an_error(raw: bytes, mode: SkillMode) -> None:
    report = parse_skill(raw, "/skills/a/SKILL.md", "global", mode)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert report.valid == (not errors)
    lines = raw.count(b"\n") + raw.count(b"\r") + 2
    for finding in report.findings:
        assert finding.line is None or 1 <= finding.line <= lines
        assert "\n" not in str(finding)
        assert finding.fix
        str(finding).encode()
    if report.skill is not None:
        assert report.skill.name
        assert report.skill.description.strip()
        assert "\n" not in render_skill_line(report.skill)
        msgspec.json.encode([report.skill.name, report.skill.description, report.skill.body, report.skill.metadata])


@few
@given(st.lists(strange_bytes | files, max_size=4), modes)
def test_a_valid_skill_loads_whatever_is_next_to_it(raws: list[bytes], mode: SkillMode) -> None:
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
bare = st.builds(lambda before, special, after: f"{before}{special}{after}", word, sign, word)
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
    lambda values, inner, special, end: "\n".join((*values, *inner, *special)) + end,
    st.lists(bare, max_size=3).map(lambda values: [f"k{at}: a{text}" for at, text in enumerate(values)]),
    st.lists(value, max_size=2).map(lambda values: ["m:", *(f"  k{at}: {scalar}" for at, scalar in enumerate(values))]),
    st.lists(line, max_size=1),
    st.sampled_from(("", "\n")),
)


@many
@given(strange_text | fronts)
def test_yaml_agrees_on_every_scalar(text: str) -> None:
    """If nothing is refused, the fields are those of a loader that keeps every scalar as text."""
    front = parse_front_matter(text)
    if front.fields is None or any(fault.rule == "duplicate-key" for fault in front.faults):
        return
    assert as_text(front.fields) == as_text(yaml.load(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)))


number = st.sampled_from(("1.10", "007", "0x1f", "1:30", ".5", ".inf", "1e3", "yes", "Off", "2024-02-01", "2024-02-31"))
anchored = st.sampled_from(("&x ", "", "")).flatmap(lambda anchor: (number | value).map(lambda text: anchor + text))
typed_fronts = st.lists(anchored | st.just("*x") | st.just("{<<: *x, q: 1}"), min_size=1, max_size=5).map(
    lambda values: "\n".join(f"k{at}: {text}" for at, text in enumerate(values))
)


@many
@given(strange_text | fronts | typed_fronts)
def test_typed_values_are_those_of_safe_load(text: str) -> None:
    """The seed parses with `yaml.safe_load`: what that reads and our limits allow has the same values."""
    front = parse_front_matter(text, typed=True)
    try:
        # The loader in C differs from the one in Python on a tab after a colon; it is the one we use.
        loaded = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        assert front.fields is None
        return
    except (ValueError, OverflowError):
        # An impossible date, which the seed does not provide for.
        return
    if not isinstance(loaded, dict):
        assert front.fields is None
    elif front.fields is None:
        assert {fault.rule for fault in front.faults} <= {"tag", "nesting", "alias"}
    else:
        assert repr(front.fields) == repr({name: member for name, member in loaded.items() if isinstance(name, str)})


def as_text(value: object) -> object:
    """The value as text, with null and the words for it treated alike."""
    if isinstance(value, dict):
        return {name: as_text(member) for name, member in value.items()}
    if isinstance(value, list):
        return [as_text(member) for member in value]
    return None if value in ("", "~", "null", "Null", "NULL") else value


@laws
@given(
    st.lists(st.from_regex(r"[A-Za-z:*]{1,6}(\([a-z :*]{0,8}\))?", fullmatch=True), max_size=6),
    st.sampled_from([" ", ", ", ",", "  "]),
)
def test_tools_are_returned_as_they_were_written(tools: list[str], between: str) -> None:
    assert split_tools(between.join(tools)) == tuple(tools)


names = st.from_regex(r"[a-z0-9]{1,6}(-[a-z0-9]{1,4})?", fullmatch=True)
descriptions = strange_text | st.text(max_size=60)
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
def test_an_index_has_a_line_per_skill_and_stays_within_its_budget(
    all_skills: list[Skill], preloaded: set[str], budget: int
) -> None:
    index = render_skill_index(all_skills, preloaded=preloaded, tokens_max=budget)
    assert index.listed_count + index.unlisted_count == len(all_skills)
    lines = index.text.splitlines()
    assert len(lines) == (2 + index.listed_count + (index.unlisted_count > 0) if all_skills else 0)
    entries = [
        index_line.split(":")[0].removesuffix(" [preloaded]") for index_line in lines[2 : 2 + index.listed_count]
    ]
    assert entries == sorted(entries)
    assert set(entries) <= {f"- {skill.name}" for skill in all_skills}
    if index.listed_count:
        assert index.tokens <= budget
    assert index == render_skill_index(reversed(all_skills), preloaded=preloaded, tokens_max=budget)


@laws
@given(skills)
def test_with_room_for_all_every_skill_is_listed(all_skills: list[Skill]) -> None:
    room = estimate_tokens(SKILL_INDEX_HEADING) + sum(
        estimate_tokens("\n" + render_skill_line(listed)) for listed in all_skills
    )
    index = render_skill_index(all_skills, tokens_max=room)
    assert (index.listed_count, index.unlisted_count) == (len(all_skills), 0)


@laws
@given(descriptions)
def test_a_neutralised_text_is_one_line_and_remains_unchanged(text: str) -> None:
    once = neutralize(text)
    assert len(once.splitlines()) <= 1
    assert neutralize(once) == once
    once.encode()


@laws
@given(st.text("abcXYZ 019.,;:!?()[]*_#-+=/&%$'\"|@^éß技", max_size=80))
def test_plain_text_on_one_line_is_unchanged(text: str) -> None:
    assert neutralize(text) == text.strip()


@laws
@given(skills, st.text("abcdefg0123 -", max_size=3), st.integers(0, 12))
def test_a_search_finds_exactly_the_skills_that_contain_the_query(
    all_skills: list[Skill], query: str, limit: int
) -> None:
    expected = query.strip().lower()
    score = {
        listed.name: 2 * (expected in listed.name.lower()) + (expected in listed.description.lower()) if expected else 1
        for listed in all_skills
    }
    ranked = sorted(
        (listed for listed in all_skills if score[listed.name]), key=lambda listed: (-score[listed.name], listed.name)
    )
    assert SkillStore(all_skills).search(query, limit=limit) == ranked[:limit]


@few
@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=40),
    st.text("abc ", min_size=1),
)
def test_a_version_changes_with_the_body_and_not_with_the_description(body: str, description: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = write_skill(Path(folder), "a", f"name: a\ndescription: x{description}y", body=body)
        other = write_skill(Path(folder) / "b", "a", body=body)
        changed = write_skill(Path(folder) / "c", "a", body=body + "!")
        assert load_skill(first).version == load_skill(other).version != load_skill(changed).version
        assert load_skill(first).body == body.lstrip("\n")
