"""Which schemas a tool may have, and where arguments violate one."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import UserError
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import canonical_json
from holdfast.types.json_schema import (
    SCHEMA_BYTES_MAX,
    SCHEMA_DEPTH_MAX,
    SCHEMA_VALUES_MAX,
    JsonSchema,
    find_schema_violations,
    format_json_value,
    join_json_path,
    json_type_name,
    json_values_equal,
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
    return list(find_schema_violations(compile_part(part), {"x": value}))


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
        ("items", [], "one schema for all items"),
        ("items", False, "one schema for all items"),
        ("additionalProperties", {"type": "string"}, "true or false"),
        ("additionalProperties", 1, "true or false"),
        ("description", 1, "a string"),
        ("title", None, "a string"),
        ("format", [], "a string"),
        ("pattern", 5, "a string"),
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


def test_a_property_that_is_no_schema_is_refused() -> None:
    with pytest.raises(UserError, match=re.escape('$.properties["a b"]: must be a schema, which is a JSON object')):
        validate_schema({"type": "object", "properties": {"a b": True}})


def test_an_unusable_pattern_is_refused_with_its_reason() -> None:
    with pytest.raises(
        UserError, match=re.escape('$.properties.x: keyword "pattern" cannot be used: it leaves a group')
    ):
        compile_part({"pattern": "(a"})


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
    assert all(fault.startswith("$") for fault in find_schema_violations(schema, {"x": value}))


@settings(max_examples=100, deadline=None)
@given(json_values, json_values)
def test_a_constant_matches_only_itself(first: Json, other: Json) -> None:
    assert violations({"const": first}, first) == []
    assert (violations({"const": first}, other) == []) == json_values_equal(first, other)
    assert (violations({"enum": [first, "zz"]}, other) == []) == json_values_equal(first, other)


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
    assert json_values_equal(first, other) is equal
    assert json_values_equal(other, first) is equal


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
    assert list(find_schema_violations(schema, value)) == [
        "$.s: required but missing",
        "$.n: expected number, got string",
        "$.l[2]: expected integer or null, got string",
        '$["odd key"]: not a known property',
    ]


def test_unknown_members_are_allowed_unless_excluded() -> None:
    assert list(find_schema_violations(validate_schema({"type": "object"}), {"a": 1})) == []


def test_several_bounds_may_be_violated_at_once() -> None:
    assert len(violations({"minimum": 5, "exclusiveMinimum": 5, "const": 9, "enum": [9]}, 1)) == 4


def test_matching_stops_when_it_takes_too_long() -> None:
    part: JsonSchema = {"items": {"pattern": "(.*,){20}x"}}
    violations_found = list(itertools.islice(find_schema_violations(compile_part(part), {"x": ["," * 20_000, "b"]}), 5))
    assert violations_found == [
        "$.x[0]: too long to be checked against its pattern",
        "$.x[1]: too long to be checked against its pattern",
    ]


def test_a_long_text_is_matched_as_long_as_that_is_cheap() -> None:
    assert violations({"pattern": r"\S"}, "a" * 1_000_000) == []
    assert violations({"pattern": "^[a-z]+$"}, "a" * 20_000) == []


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
