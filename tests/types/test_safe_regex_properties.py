"""The pattern matcher agrees with Python's where both support the same dialect, and never takes long."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import UserError
from holdfast.types.safe_regex import (
    PATTERN_CHARS_MAX,
    PATTERN_DEPTH_MAX,
    PATTERN_STATES_MAX,
    StepBudget,
    compile_schema_pattern,
)

PLENTY = 1_000_000

atoms = st.sampled_from(
    [
        "a",
        "b",
        "-",
        ".",
        r"\d",
        r"\w",
        r"\s",
        r"\D",
        r"\W",
        r"\S",
        r"\.",
        "[ab]",
        "[^ab]",
        r"[a-c\d-]",
        "^",
        r"\Z",
        r"\b",
        r"\B",
    ]
)
quantifiers = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "{1,3}?", "*?"])


def grow(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.tuples(st.sampled_from(["(", "(?:"]), parts, st.just(")"), quantifiers).map("".join)
    return st.one_of(group, st.tuples(parts, parts).map("".join), st.tuples(parts, parts).map("|".join))


edges = ("^", r"\Z", r"\b", r"\B")
repeated = st.tuples(atoms, quantifiers).map(lambda pair: pair[0] if pair[0] in edges else "".join(pair))
patterns = st.recursive(repeated, grow, max_leaves=6)


def matches(pattern: str, text: str) -> bool | None:
    return compile_schema_pattern(pattern).search(text, StepBudget(PLENTY))


@settings(max_examples=300, deadline=None)
@given(patterns, st.lists(st.text("ab-1 _.\n", min_size=1, max_size=6), min_size=3, max_size=3))
def test_the_matcher_agrees_with_python(pattern: str, texts: list[str]) -> None:
    python_pattern = re.compile(pattern, re.ASCII)
    our_pattern = compile_schema_pattern(pattern.replace(r"\Z", "$"))
    for text in texts:
        assert our_pattern.search(text, StepBudget(PLENTY)) == bool(python_pattern.search(text))


@settings(max_examples=300, deadline=None)
@given(st.text(r"ab-[](){}|*+?.\dws^$1,2<>:=!", max_size=12), st.text("ab-1", max_size=6))
def test_any_text_is_a_pattern_or_clearly_refused(pattern: str, text: str) -> None:
    try:
        answer = matches(pattern, text)
    except UserError:
        return
    assert answer in (True, False)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("^[a-z]+(-[a-z]+)*$", "some-kebab-name", "some--name"),
        (r"^\d{4}-\d{2}-\d{2}$", "2026-11-15", "2026-11-5"),
        (r"^(?<year>\d{2,4})$", "2026", "20265"),
        ("^a{2,3}$", "aaa", "aaaa"),
        ("^a{2,3}$", "aa", "a"),
        ("^a{2}$", "aa", "aaa"),
        ("^a{2,}$", "aaaaaa", "a"),
        ("^(ab|cd|ef)$", "ef", "af"),
        ("^(|x)y$", "y", "zy"),
        (r"^\x41\u0042$", "AB", "ab"),
        (r"^\t\n\r\f\v\0$", "\t\n\r\f\x0b\x00", "tnrfv0"),
        (r"^[\b]$", "\x08", "b"),
        (r"^[\]\\-]$", "\\", "^"),
        ("^[a-]$", "-", "b"),
        ("^[^a-c]$", "d", "c"),
        ("^[^\\d]$", "x", "5"),
        ("^[\\w.]+$", "a.b_9", "a b"),
        ("^{}$", "{}", ""),
        ("^a{,2}$", "a{,2}", "aa"),
        ("^]}$", "]}", "}"),
        (r"\bcat\b", "a cat!", "concat"),
        (r"\Bcat", "concat", "a cat"),
        ("^.$", "é", "\n"),
        ("^.$", "\x85", "\u2028"),
        (r"^\s$", "\u00a0", "x"),
        (r"^\s$", "\ufeff", "\x1c"),
        ("^[😀-😂]$", "😁", "😃"),
        ("^[^\x00-\U0010fffe]$", "\U0010ffff", "a"),
    ],
)
def test_a_pattern_matches_as_specified(pattern: str, inside: str, outside: str) -> None:
    assert matches(pattern, inside) is True
    assert matches(pattern, outside) is False


def test_a_negated_class_of_everything_matches_nothing() -> None:
    assert matches("[^\x00-\U0010ffff]", "anything") is False


def test_a_dollar_matches_only_the_very_end() -> None:
    assert matches("a$", "a\n") is False


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", "leaves a group open"),
        ("a)", "closes a group that is not open at character 2"),
        ("*a", "repeats nothing at character 1"),
        ("a|+", "repeats nothing at character 3"),
        ("a**", "repeats nothing at character 3"),
        ("^*", "repeats an anchor at character 2"),
        (r"\b+", "repeats an anchor at character 3"),
        ("a{3,2}", "repeats at least 3 but at most 2 times"),
        ("[a", "leaves a character class open"),
        ("[]", "has an empty character class"),
        ("[b-a]", "has a character range out of order at character 4"),
        (r"[\d-a]", "has a character range out of order"),
        (r"[a-\d]", "has a character range out of order"),
        (r"[a-\w]", "has a character range out of order"),
        ("a\\", "ends in a backslash"),
        (r"(a)\1", r"uses the escape '\1', which is not allowed"),
        (r"\p{L}", r"uses the escape '\p', which is not allowed"),
        ("(?=a)", "uses the group '(?='; only plain, (?:...) and (?<name>...) groups are allowed"),
        ("(?!a)", "uses the group '(?!'"),
        ("(?<=a)", "uses the group '(?<'"),
        ("(?i)a", "uses the group '(?i'"),
        ("a{99999999}", "repeats too much; use smaller repeat counts"),
        ("((a{100}){100}){100}", "repeats too much"),
        ("((((){1000}){1000}){1000}){1000}", "repeats too much"),
    ],
)
def test_an_invalid_pattern_is_refused_with_its_reason(pattern: str, reason: str) -> None:
    with pytest.raises(UserError, match=re.escape(reason)):
        compile_schema_pattern(pattern)


def test_the_length_of_a_pattern_is_limited() -> None:
    assert matches("[" + "a" * (PATTERN_CHARS_MAX - 2) + "]", "a") is True
    with pytest.raises(UserError, match=f"is longer than {PATTERN_CHARS_MAX} characters"):
        compile_schema_pattern("[" + "a" * (PATTERN_CHARS_MAX - 1) + "]")


def test_groups_nest_up_to_a_depth() -> None:
    deepest = "(" * PATTERN_DEPTH_MAX + "a" + ")" * PATTERN_DEPTH_MAX
    assert matches(deepest, "a") is True
    with pytest.raises(UserError, match=f"nests groups deeper than {PATTERN_DEPTH_MAX}"):
        compile_schema_pattern(f"({deepest})")


def test_groups_side_by_side_are_not_nested() -> None:
    assert matches("(a)" * (PATTERN_DEPTH_MAX + 1), "a" * (PATTERN_DEPTH_MAX + 1)) is True


@pytest.mark.parametrize(
    ("largest", "larger"),
    [
        ("a{1000}", "a{1001}"),
        ("a{998}b?", "a{999}b?"),
        ("a{996}b+", "a{997}b+"),
        ("a{997}b*", "a{998}b*"),
        ("a{995}(b|c)", "a{996}(b|c)"),
        ("a{999}(b)", "a{1000}(b)"),
        ("(a?){500}", "(a?){501}"),
        ("(){1000}", "(){1001}"),
        ("(a{0}){1000}", "(a{0}){1001}"),
        ("a{1,500}", "a{1,502}"),
    ],
)
def test_the_size_of_a_pattern_is_limited(largest: str, larger: str) -> None:
    assert PATTERN_STATES_MAX == 1_000
    compile_schema_pattern(largest)
    with pytest.raises(UserError, match="repeats too much"):
        compile_schema_pattern(larger)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)+$", "(a*)*b", "^(a?){60}a{60}b", "(.*,){20}x", "(.*){0,30}#"])
def test_a_hostile_pattern_takes_no_more_steps_than_allowed(pattern: str) -> None:
    allowance = StepBudget(20_000)
    assert compile_schema_pattern(pattern).search("a" * 5_000 + "!", allowance) is not True
    assert allowance.steps_left > -PATTERN_STATES_MAX


def test_steps_are_counted_over_all_texts_of_one_check() -> None:
    allowance = StepBudget(8)
    assert compile_schema_pattern("b").search("aaa", allowance) is False
    assert allowance.steps_left == 4
    assert compile_schema_pattern("b").search("aaa", allowance) is False
    assert allowance.steps_left == 0
    assert compile_schema_pattern("b").search("aaa", allowance) is None


def test_an_allowance_that_ends_before_the_text_leaves_the_result_open() -> None:
    assert compile_schema_pattern("b").search("aaa", StepBudget(3)) is None
    assert compile_schema_pattern("b").search("aaa", StepBudget(4)) is False
    assert compile_schema_pattern("b").search("aba", StepBudget(0)) is None
