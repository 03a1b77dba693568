"""Which schemas a tool may have, and where arguments violate one."""

import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import UserError
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import canonical_json
from holdfast.types.json_schema import (
    PATTERN_CHARS_MAX,
    SCHEMA_BYTES_MAX,
    SCHEMA_DEPTH_MAX,
    SCHEMA_VALUES_MAX,
    VIOLATIONS_MAX,
    JsonSchema,
    SchemaChecker,
    format_json_value,
    join_json_path,
    json_type_name,
    validate_schema,
)

json_values: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -2.0]) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2),
    max_leaves=5,
)
garbage_schemas = st.dictionaries(
    st.sampled_from(
        ["type", "enum", "const", "required", "properties", "items", "pattern", "minimum", "maxItems", "not"]
    ),
    json_values | st.sampled_from(["object", "array", "string"]),
    max_size=4,
)


def compile_part(part: JsonSchema) -> JsonSchema:
    """A part of a schema, as the schema of the property `x`."""
    return validate_schema({"type": "object", "properties": {"x": part}})


def violations(part: JsonSchema, value: Json) -> list[str]:
    return list(SchemaChecker(compile_part(part)).find_violations({"x": value}))


EVERYTHING: JsonSchema = {
    "type": "object",
    "title": "t",
    "description": "d",
    "required": ["s"],
    "additionalProperties": False,
    "properties": {
        "s": {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^a", "format": "date", "default": "a"},
        "n": {"type": "number", "minimum": 0, "maximum": 9.5, "exclusiveMinimum": -1, "exclusiveMaximum": 10},
        "l": {"type": "array", "items": {"type": ["integer", "null"]}, "minItems": 0, "maxItems": 3, "examples": [[1]]},
        "e": {"enum": ["a", 1, None]},
        "c": {"const": {"deep": [1]}},
        "any": {},
        "o": {"type": "object", "additionalProperties": True},
    },
}


def test_every_allowed_keyword_is_accepted_unchanged() -> None:
    assert validate_schema(EVERYTHING) == EVERYTHING


@pytest.mark.parametrize(
    "keyword",
    [
        "$ref",
        "$schema",
        "$defs",
        "oneOf",
        "anyOf",
        "allOf",
        "not",
        "if",
        "then",
        "else",
        "patternProperties",
        "uniqueItems",
        "typ",
    ],
)
def test_any_other_keyword_is_refused_by_path_and_name(keyword: str) -> None:
    with pytest.raises(UserError) as refusal:
        compile_part({"type": "array", "items": {keyword: {}}})
    assert str(refusal.value).startswith(
        f'$.properties.x.items: keyword "{keyword}" is refused; allowed are additionalP'
    )
    assert "minLength, minimum, pattern, properties, required, title, type" in str(refusal.value)


@pytest.mark.parametrize(
    ("keyword", "value", "expected"),
    [
        ("type", "text", "one of array, boolean, integer, null, number, object, string, or a list of them, each once"),
        ("type", [], "one of array"),
        ("type", ["string", "string"], "one of array"),
        ("type", ["string", "text"], "one of array"),
        ("type", {}, "one of array"),
        ("enum", [], "a list with at least one value"),
        ("enum", "a", "a list with at least one value"),
        ("required", "a", "a list of property names, each once"),
        ("required", [1], "a list of property names"),
        ("required", ["a", "a"], "a list of property names"),
        ("properties", [], "an object of schemas"),
        ("additionalProperties", {"type": "string"}, "true or false"),
        ("additionalProperties", 1, "true or false"),
        ("description", 1, "a string"),
        ("title", None, "a string"),
        ("format", [], "a string"),
        ("pattern", 5, "a regular expression as in JavaScript"),
        ("examples", {}, "a list"),
        ("minimum", "1", "a number"),
        ("maximum", True, "a number"),
        ("exclusiveMinimum", None, "a number"),
        ("exclusiveMaximum", [], "a number"),
        ("minLength", -1, "a whole number of at least 0"),
        ("maxLength", 1.0, "a whole number of at least 0"),
        ("minItems", True, "a whole number of at least 0"),
        ("maxItems", "3", "a whole number of at least 0"),
    ],
)
def test_a_keyword_with_a_wrong_value_is_refused_with_the_expected_one(
    keyword: str, value: Json, expected: str
) -> None:
    with pytest.raises(UserError, match=re.escape(f'$.properties.x: keyword "{keyword}" must be {expected}')):
        compile_part({keyword: value})


@pytest.mark.parametrize(
    ("part", "path"), [({"properties": {"a b": True}}, '.properties["a b"]'), ({"items": []}, ".items")]
)
def test_a_part_that_is_no_schema_is_refused(part: JsonSchema, path: str) -> None:
    reason = f"$.properties.x{path}: must be a schema, which is a JSON object"
    with pytest.raises(UserError, match=re.escape(reason)):
        compile_part(part)


@pytest.mark.parametrize("schema", [{}, {"type": "string"}, {"type": ["object"]}, {"properties": {}}])
def test_the_top_of_a_schema_is_an_object(schema: JsonSchema) -> None:
    with pytest.raises(UserError, match=re.escape('$: keyword "type" must be "object" at the top')):
        validate_schema(schema)


def test_a_schema_is_a_json_object() -> None:
    no_mapping: Any = ["type", "object"]
    with pytest.raises(UserError, match=re.escape("$: the input schema must be a JSON object")):
        validate_schema(no_mapping)


@pytest.mark.parametrize(
    ("value", "kind"), [(float("nan"), "float"), (float("inf"), "float"), (2**64, "int"), ({1}, "set"), (b"", "bytes")]
)
def test_a_value_that_json_cannot_represent_is_refused_by_path(value: object, kind: str) -> None:
    schema = {"type": "object", "properties": {"x": {"enum": [1, value]}}}
    with pytest.raises(
        UserError, match=re.escape(f"$.properties.x.enum[1]: holds a {kind} that JSON cannot represent")
    ):
        validate_schema(schema)


def test_the_largest_integers_are_preserved() -> None:
    assert compile_part({"enum": [2**64 - 1, -(2**64) + 1]})


def test_a_key_that_is_no_string_is_refused() -> None:
    with pytest.raises(UserError, match=re.escape("$.properties: has a key that is not a string")):
        validate_schema({"type": "object", "properties": {1: {}}})


def test_a_lone_surrogate_is_refused_as_key_and_as_value() -> None:
    with pytest.raises(UserError, match=re.escape("$.title: holds a lone surrogate")):
        validate_schema({"type": "object", "title": "\ud800"})
    with pytest.raises(UserError, match=re.escape("$.properties: holds a lone surrogate")):
        validate_schema({"type": "object", "properties": {"\udc00": {}}})


def nested(levels: int) -> JsonSchema:
    value: Json = 1
    for _ in range(levels):
        value = [value]
    return {"type": "object", "default": value}


def test_the_depth_of_a_schema_is_limited() -> None:
    deepest = nested(SCHEMA_DEPTH_MAX - 2)
    assert validate_schema(deepest) == deepest
    with pytest.raises(UserError, match=f"nested deeper than {SCHEMA_DEPTH_MAX} levels"):
        validate_schema(nested(SCHEMA_DEPTH_MAX - 1))


def test_a_schema_that_contains_itself_is_refused() -> None:
    schema: dict[str, object] = {"type": "object"}
    schema["properties"] = {"self": schema}
    with pytest.raises(UserError, match="nested deeper"):
        validate_schema(schema)


def test_the_number_of_values_in_a_schema_is_limited() -> None:
    most = {"type": "object", "default": [0] * (SCHEMA_VALUES_MAX - 3)}
    assert validate_schema(most) == most
    with pytest.raises(UserError, match=f"more than {SCHEMA_VALUES_MAX} values"):
        validate_schema({"type": "object", "default": [0] * (SCHEMA_VALUES_MAX - 2)})


def test_a_small_schema_that_expands_endlessly_is_refused() -> None:
    part: dict[str, object] = {"type": "string"}
    for _ in range(12):
        part = {"type": "object", "properties": {"a": part, "b": part}}
    with pytest.raises(UserError, match="more than"):
        validate_schema(part)


def test_the_size_of_a_schema_is_limited() -> None:
    bare = len(canonical_json({"type": "object", "title": ""}))
    assert validate_schema({"type": "object", "title": "t" * (SCHEMA_BYTES_MAX - bare)})
    with pytest.raises(UserError, match=f"larger than {SCHEMA_BYTES_MAX} bytes"):
        validate_schema({"type": "object", "title": "t" * (SCHEMA_BYTES_MAX - bare + 1)})


@settings(max_examples=100, deadline=None)
@given(garbage_schemas, json_values)
def test_any_schema_is_refused_clearly_or_can_check_any_value(part: JsonSchema, value: Json) -> None:
    try:
        schema = compile_part(part)
    except UserError:
        return
    assert all(fault.startswith("$") for fault in SchemaChecker(schema).find_violations({"x": value}))


@settings(max_examples=100, deadline=None)
@given(json_values, json_values)
def test_a_constant_matches_only_itself(first: Json, other: Json) -> None:
    assert violations({"const": first}, first) == []
    assert (violations({"const": first}, other) == []) == (violations({"const": other}, first) == [])
    assert (violations({"enum": [first, "zz"]}, other) == []) == (violations({"const": first}, other) == [])


@settings(max_examples=100, deadline=None)
@given(json_values)
def test_a_value_matches_its_own_type_and_an_integer_is_a_number_too(value: Json) -> None:
    fitting = {json_type_name(value)} | ({"number"} if json_type_name(value) == "integer" else set())
    types = ["array", "boolean", "integer", "null", "number", "object", "string"]
    assert {kind for kind in types if not violations({"type": kind}, value)} == fitting


@pytest.mark.parametrize(
    ("value", "name"),
    [(None, "null"), (True, "boolean"), (1, "integer"), (1.0, "number"), ("", "string"), ([], "array"), ({}, "object")],
)
def test_a_wrong_type_is_named_with_the_expected_one(value: Json, name: str) -> None:
    expected = "string" if name != "string" else "array"
    assert violations({"type": expected}, value) == [f"$.x: expected {expected}, got {name}"]


def test_one_of_several_types_is_enough() -> None:
    assert violations({"type": ["string", "null"]}, None) == []
    assert violations({"type": ["string", "null"]}, 1) == ["$.x: expected string or null, got integer"]


@pytest.mark.parametrize(
    ("first", "other", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        ([1], [True], False),
        ([1, 2], [1], False),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"b": 1}, False),
        ({"a": 1}, {"a": 2}, False),
        ([], {}, False),
        (None, False, False),
    ],
)
def test_equality_is_that_of_json(first: Json, other: Json, equal: bool) -> None:
    assert (violations({"const": first}, other) == []) is equal
    assert (violations({"enum": [other]}, first) == []) is equal


@pytest.mark.parametrize(
    ("part", "value", "fault"),
    [
        ({"const": 5}, 6, "must be 5"),
        ({"enum": ["a", None]}, "b", 'must be one of ["a",null]'),
        ({"minimum": 2}, 1, "must be at least 2"),
        ({"maximum": 2}, 3, "must be at most 2"),
        ({"exclusiveMinimum": 2}, 2, "must be more than 2"),
        ({"exclusiveMaximum": 2.5}, 2.5, "must be less than 2.5"),
        ({"minLength": 2}, "é", "must have at least 2 characters, has 1"),
        ({"maxLength": 2}, "abc", "must have at most 2 characters, has 3"),
        ({"minItems": 2}, [1], "must have at least 2 items, has 1"),
        ({"maxItems": 2}, [1, 2, 3], "must have at most 2 items, has 3"),
        ({"pattern": "^a"}, "ba", 'must match the pattern "^a"'),
    ],
)
def test_a_violated_bound_is_named(part: JsonSchema, value: Json, fault: str) -> None:
    assert violations(part, value) == [f"$.x: {fault}"]


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ({"minimum": 2}, 2),
        ({"maximum": 2}, 2),
        ({"exclusiveMinimum": 2}, 2.1),
        ({"exclusiveMaximum": 2}, 1.9),
        ({"minLength": 2}, "ab"),
        ({"maxLength": 2}, "ab"),
        ({"minItems": 2}, [1, 2]),
        ({"maxItems": 2}, [1, 2]),
        ({"minimum": 2}, True),
        ({"minimum": 2}, "text"),
        ({"maxLength": 0}, [1]),
        ({"maxItems": 0}, {"a": 1}),
        ({"pattern": "a"}, 5),
        ({"required": ["a"]}, "text"),
    ],
)
def test_a_bound_is_inclusive_and_ignores_values_of_other_types(part: JsonSchema, value: Json) -> None:
    assert violations(part, value) == []


def test_members_and_items_are_checked_by_path() -> None:
    schema = validate_schema(EVERYTHING)
    value: Json = {"n": "x", "l": [1, None, "no"], "odd key": 1, "o": {"free": 1}}
    assert SchemaChecker(schema).find_violations(value) == (
        "$.s: required but missing",
        "$.n: expected number, got string",
        "$.l[2]: expected integer or null, got string",
        '$["odd key"]: not a known property',
    )


def test_unknown_members_are_allowed_unless_excluded() -> None:
    assert SchemaChecker(validate_schema({"type": "object"})).find_violations({"a": 1}) == ()


def test_members_of_members_are_all_checked_and_of_a_list_the_first_wrong_item() -> None:
    person: JsonSchema = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string", "minLength": 1}, "friends": {"type": "array"}},
        "additionalProperties": False,
    }
    part: JsonSchema = {"properties": {"one": person, "all": {"type": "array", "items": person}}}
    wrong: Json = {"name": "", "age": 3}
    assert violations(part, {"one": wrong, "all": [{"name": "a"}, wrong, wrong]}) == [
        "$.x.one.name: must have at least 1 characters, has 0",
        "$.x.one.age: not a known property",
        "$.x.all[1].name: must have at least 1 characters, has 0",
        "$.x.all[1].age: not a known property",
    ]


def test_of_several_violated_bounds_one_is_named() -> None:
    assert len(violations({"minimum": 5, "exclusiveMinimum": 5, "const": 9, "enum": [9]}, 1)) == 1


@pytest.mark.parametrize(
    "value",
    [
        [1] * 1_000_000,
        [{}] * 300_000,
        {f"k{number}": number for number in range(300_000)},
        {"deep": [["x"] * 500] * 2_000},
    ],
    ids=["items", "objects", "members", "copies"],
)
def test_a_large_wrong_value_is_refused_quickly(value: Json) -> None:
    names: list[Json] = [f"name{number}" for number in range(3_000)]
    item: JsonSchema = {"type": "object", "required": names, "additionalProperties": False}
    checker = SchemaChecker(compile_part({"type": ["array", "object"], "items": item, "required": names}))
    started = time.process_time()
    assert 0 < len(checker.find_violations({"x": value})) <= VIOLATIONS_MAX
    assert time.process_time() - started < 3


def test_a_value_that_is_nested_too_deeply_is_refused_not_raised() -> None:
    value: Json = "x"
    for _ in range(600):
        value = [value]
    assert violations({"const": 1}, value) == ["$: nested too deeply to be checked"]


def test_nothing_is_fetched_for_a_schema() -> None:
    with pytest.raises(UserError, match=re.escape('keyword "$ref" is refused')):
        compile_part({"$ref": "http://127.0.0.1:9/schema.json"})


def test_texts_are_matched_as_long_as_that_is_cheap() -> None:
    part: JsonSchema = {"items": {"pattern": "^[01]*1[01]{400}2$"}}
    assert violations(part, ["01" * 100_000, "01" * 100_000]) == ["$: too long to be checked against its patterns"]
    assert violations({"pattern": r"\S"}, "a" * 1_000_000) == []
    assert violations({"pattern": "^[a-z]+$"}, "a" * 500_000) == []


def test_patterns_have_a_largest_size_together() -> None:
    large: JsonSchema = {"pattern": r"^\S{1,500}$"}
    properties: dict[str, Json] = {f"p{number}": large for number in range(5)}
    with pytest.raises(UserError, match=re.escape("$: its patterns are too large together; use smaller repeat counts")):
        validate_schema({"type": "object", "properties": properties})


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)+$", "(a*)*b", "^(a?){60}a{60}b", "(.*,){20}x", "(.*){0,30}#"])
def test_a_hostile_pattern_is_matched_in_linear_time(pattern: str) -> None:
    checker = SchemaChecker(compile_part({"pattern": pattern}))
    started = time.process_time()
    checker.find_violations({"x": "a" * 50_000 + "!"})
    assert time.process_time() - started < 2


atoms = st.sampled_from(
    ["a", "b", "-", "[^\\n]", r"\d", r"\w", r"\D", r"\W", r"\.", "[ab]", "[^ab]", r"[a-c\d-]", "^", "$", r"\b", r"\B"]
)
quantifiers = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "{1,3}?", "*?"])


def grow(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.tuples(st.sampled_from(["(", "(?:"]), parts, st.just(")"), quantifiers).map("".join)
    return st.one_of(group, st.tuples(parts, parts).map("".join), st.tuples(parts, parts).map("|".join))


repeated = st.tuples(atoms, quantifiers).map(lambda pair: pair[0] if pair[0] in "^$\\b\\B" else "".join(pair))


@settings(max_examples=100, deadline=None)
@given(st.recursive(repeated, grow, max_leaves=6), st.text("ab-1 _.", min_size=1, max_size=6))
def test_a_pattern_finds_what_python_finds(pattern: str, text: str) -> None:
    assert (violations({"pattern": pattern}, text) == []) == bool(re.search(pattern, text, re.ASCII))


@settings(max_examples=100, deadline=None)
@given(st.text(r"ab-[](){}|*+?.\dws^$1,2<>:=!", max_size=12), st.text("ab-1", max_size=6))
def test_any_text_is_a_pattern_or_a_clear_refusal(pattern: str, text: str) -> None:
    try:
        schema = compile_part({"pattern": pattern})
    except UserError:
        return
    assert len(SchemaChecker(schema).find_violations({"x": text})) <= 1


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("^[a-z]+(-[a-z]+)*$", "some-kebab-name", "some--name"),
        (r"^(?<year>\d{2,4})$", "2026", "20265"),
        (r"^\x41\u0042$", "AB", "ab"),
        (r"^\t\n\r\f\v$", "\t\n\r\f\x0b", "tnrfv"),
        (r"^[\]\\-]$", "\\", "^"),
        ("^[a&&b~~]$", "&", "c"),
        ("^a$", "a", "a\n"),
        (r"^\d$", "5", "\u0663"),
        (r"^\w$", "a", "é"),
        (r"^\s$", "\u00a0", "\x1c"),
        ("^.$", "é", "\n"),
        ("^[😀-😂]$", "😁", "😃"),
        (r"^\p{Lu}$", "Ä", "ä"),
    ],
)
def test_a_pattern_finds_what_it_means(pattern: str, inside: str, outside: str) -> None:
    assert violations({"pattern": pattern}, inside) == []
    assert len(violations({"pattern": pattern}, outside)) == 1


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a", "a)", "*a", "a|+", "a**", "^*", "a{3,2}", "[a", "[]", "[b-a]", r"[\d-a]", "a\\", r"(a)\1", "{}"),
        *("(?=a)", "(?!a)", "(?<=a)", "(?i)a", "(?P<name>a)", r"\Aa", "a{99999999}", "((a{100}){100}){100}"),
        "[" + "a" * (PATTERN_CHARS_MAX - 1) + "]",
    ],
)
def test_what_is_no_pattern_or_cannot_be_bounded_is_refused(pattern: str) -> None:
    with pytest.raises(
        UserError, match=r'\$\.properties\.x: keyword "pattern" must be a regular expression as in Java'
    ):
        compile_part({"pattern": pattern})


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("a", "$.a"),
        ("a-b_9", "$.a-b_9"),
        ("k" * 64, "$." + "k" * 64),
        ("k" * 65, '$["' + "k" * 65 + '"]'),
        ("9a", '$["9a"]'),
        ("a\nb", '$["a\\nb"]'),
        ("", '$[""]'),
    ],
)
def test_paths_quote_keys_that_are_not_plain_names(key: str, path: str) -> None:
    assert join_json_path("$", key) == path


def test_shown_values_are_short() -> None:
    assert format_json_value("x" * 198) == '"' + "x" * 198 + '"'
    assert format_json_value("x" * 199) == '"' + "x" * 199 + "..."
