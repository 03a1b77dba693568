"""Validates the JSON schemas of tools, and values against them.

The allowed keywords are those that every provider accepts. `format`, `default`, `examples`, `title` and `description`
only inform the model; a value is never checked against them.
"""

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping

from holdfast.errors import UserError
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import canonical_json
from holdfast.types.safe_regex import StepBudget, compile_schema_pattern

SCHEMA_BYTES_MAX = 65_536
SCHEMA_DEPTH_MAX = 32
SCHEMA_VALUES_MAX = 10_000
PATTERN_MATCH_STEPS_MAX = 250_000  # For all patterns of one call together.
JsonSchema = dict[str, Json]

_TYPE_NAMES: dict[type, str] = {
    list: "array",
    bool: "boolean",
    int: "integer",
    type(None): "null",
    float: "number",
    dict: "object",
    str: "string",
}
_TYPES = tuple(_TYPE_NAMES.values())
_INTEGER_BITS_MAX = 64
_SHOWN_CHARS_MAX = 200
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def validate_schema(schema: Mapping[str, object]) -> JsonSchema:
    """The schema as plain JSON. Raises `UserError` with the path and keyword of the first thing that is refused."""
    plain = _as_json(schema, "$", SCHEMA_DEPTH_MAX, itertools.count(1))
    if not isinstance(plain, dict):
        raise UserError("$: the input schema must be a JSON object")
    if plain.get("type") != "object":
        raise UserError('$: keyword "type" must be "object" at the top, since arguments are named')
    _check_schema(plain, "$")
    if len(canonical_json(plain)) > SCHEMA_BYTES_MAX:
        raise UserError(f"$: the input schema is larger than {SCHEMA_BYTES_MAX} bytes; shorten its descriptions")
    return plain


def find_schema_violations(schema: JsonSchema, value: Json) -> Iterator[str]:
    """What is wrong with a value, as `$.path: reason`. The schema must have passed `validate_schema`."""
    return _violations(schema, value, "$", StepBudget(PATTERN_MATCH_STEPS_MAX))


def _as_json(value: object, path: str, depth_max: int, counter: Iterator[int]) -> Json:
    if next(counter) > SCHEMA_VALUES_MAX:
        raise UserError(f"$: the input schema has more than {SCHEMA_VALUES_MAX} values; split the tool")
    if depth_max < 1:
        raise UserError(f"$: the input schema is nested deeper than {SCHEMA_DEPTH_MAX} levels; flatten it")
    if isinstance(value, Mapping):
        members: JsonSchema = {}
        for key, member in value.items():
            if not isinstance(key, str):
                raise UserError(f"{path}: has a key that is not a string")
            _check_encodable(key, path)
            members[key] = _as_json(member, join_json_path(path, key), depth_max - 1, counter)
        return members
    if isinstance(value, list | tuple):
        return [_as_json(item, f"{path}[{index}]", depth_max - 1, counter) for index, item in enumerate(value)]
    if isinstance(value, str):
        _check_encodable(value, path)
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value.bit_length() <= _INTEGER_BITS_MAX:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise UserError(f"{path}: holds a {type(value).__name__} that JSON cannot represent")


def _check_encodable(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{path}: holds a lone surrogate, which JSON cannot encode; remove it") from None


def _check_schema(schema: Json, path: str) -> None:
    if not isinstance(schema, dict):
        raise UserError(f"{path}: must be a schema, which is a JSON object")
    for keyword, value in schema.items():
        rule = _KEYWORDS.get(keyword)
        if rule is None:
            allowed = ", ".join(sorted(_KEYWORDS))
            raise UserError(f"{path}: keyword {format_json_value(keyword)} is refused; allowed are {allowed}")
        is_allowed, expected = rule
        if not is_allowed(value):
            raise UserError(f"{path}: keyword {format_json_value(keyword)} must be {expected}")
    if isinstance(pattern := schema.get("pattern"), str):
        try:
            compile_schema_pattern(pattern)
        except UserError as error:
            raise UserError(f'{path}: keyword "pattern" cannot be used: it {error}') from None
    if isinstance(properties := schema.get("properties"), dict):
        for name, property_schema in properties.items():
            _check_schema(property_schema, join_json_path(f"{path}.properties", name))
    if "items" in schema:
        _check_schema(schema["items"], f"{path}.items")


def _is_type(value: Json) -> bool:
    if isinstance(value, list):
        return bool(value) and all(item in _TYPES for item in value) and _all_differ(value)
    return value in _TYPES


def _all_differ(items: list[Json]) -> bool:
    return len(items) == len({item for item in items if isinstance(item, str)})


_ANYTHING = (lambda value: True, "any value")
_TEXT = (lambda value: isinstance(value, str), "a string")
_NUMBER = (lambda value: isinstance(value, int | float) and not isinstance(value, bool), "a number")
_COUNT = (
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0,
    "a whole number of at least 0",
)
_NAMES = (lambda value: isinstance(value, list) and _all_differ(value), "a list of property names, each once")

_KEYWORDS: dict[str, tuple[Callable[[Json], bool], str]] = {
    "type": (_is_type, f"one of {', '.join(_TYPES)}, or a list of them, each once"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list with at least one value"),
    "const": _ANYTHING,
    "required": _NAMES,
    "properties": (lambda value: isinstance(value, dict), "an object of schemas"),
    "items": (lambda value: isinstance(value, dict), "one schema for all items"),
    "additionalProperties": (lambda value: isinstance(value, bool), "true or false"),
    "description": _TEXT,
    "title": _TEXT,
    "format": _TEXT,
    "pattern": _TEXT,
    "default": _ANYTHING,
    "examples": (lambda value: isinstance(value, list), "a list"),
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": _NUMBER,
    "exclusiveMaximum": _NUMBER,
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "minItems": _COUNT,
    "maxItems": _COUNT,
}


def _violations(schema: Json, value: Json, path: str, budget: StepBudget) -> Iterator[str]:
    assert isinstance(schema, dict)
    types = schema.get("type")
    expected = types if isinstance(types, list) else [types]
    if types is not None and not any(_is_of(value, str(name)) for name in expected):
        yield f"{path}: expected {' or '.join(map(str, expected))}, got {json_type_name(value)}"
        return
    if "const" in schema and not json_values_equal(schema["const"], value):
        yield f"{path}: must be {format_json_value(schema['const'])}"
    choices = schema.get("enum")
    if isinstance(choices, list) and not any(json_values_equal(choice, value) for choice in choices):
        yield f"{path}: must be one of {format_json_value(choices)}"
    if isinstance(value, str):
        yield from _text_violations(schema, value, path, budget)
    elif isinstance(value, list):
        yield from _size_violations(schema, len(value), path, ("minItems", "maxItems", "items"))
        if "items" in schema:
            for index, item in enumerate(value):
                yield from _violations(schema["items"], item, f"{path}[{index}]", budget)
    elif isinstance(value, dict):
        yield from _object_violations(schema, value, path, budget)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number_violations(schema, value, path)


def _text_violations(schema: JsonSchema, text: str, path: str, budget: StepBudget) -> Iterator[str]:
    yield from _size_violations(schema, len(text), path, ("minLength", "maxLength", "characters"))
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        matches = compile_schema_pattern(pattern).search(text, budget)
        if matches is None:
            yield f"{path}: too long to be checked against its pattern"
        elif not matches:
            yield f"{path}: must match the pattern {format_json_value(pattern)}"


def _object_violations(schema: JsonSchema, value: JsonSchema, path: str, budget: StepBudget) -> Iterator[str]:
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in value:
            yield f"{join_json_path(path, name)}: required but missing"
    declared = schema.get("properties")
    properties = declared if isinstance(declared, dict) else {}
    for name, member in value.items():
        if name in properties:
            yield from _violations(properties[name], member, join_json_path(path, name), budget)
        elif schema.get("additionalProperties") is False:
            yield f"{join_json_path(path, name)}: not a known property"


def _number_violations(schema: JsonSchema, value: float, path: str) -> Iterator[str]:
    for keyword, is_allowed, relation in _BOUNDS:
        bound = schema.get(keyword)
        if isinstance(bound, int | float) and not is_allowed(value, bound):
            yield f"{path}: must be {relation} {bound}"


_BOUNDS: tuple[tuple[str, Callable[[float, float], bool], str], ...] = (
    ("minimum", operator.ge, "at least"),
    ("maximum", operator.le, "at most"),
    ("exclusiveMinimum", operator.gt, "more than"),
    ("exclusiveMaximum", operator.lt, "less than"),
)


def _size_violations(schema: JsonSchema, size: int, path: str, keywords: tuple[str, str, str]) -> Iterator[str]:
    minimum_keyword, maximum_keyword, unit = keywords
    if isinstance(minimum := schema.get(minimum_keyword), int) and size < minimum:
        yield f"{path}: must have at least {minimum} {unit}, has {size}"
    if isinstance(maximum := schema.get(maximum_keyword), int) and size > maximum:
        yield f"{path}: must have at most {maximum} {unit}, has {size}"


def json_type_name(value: Json) -> str:
    """The JSON Schema name of a value's type."""
    return _TYPE_NAMES[type(value)]


def _is_of(value: Json, expected: str) -> bool:
    # Stricter than JSON Schema, where 1.0 is an integer: a function with an int parameter must receive an int.
    return json_type_name(value) == expected or (expected == "number" and json_type_name(value) == "integer")


def json_values_equal(first: Json, second: Json) -> bool:
    """Equality of JSON values: 1 equals 1.0, but true does not equal 1."""
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(json_values_equal, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(json_values_equal(first[key], second[key]) for key in first)
    return isinstance(first, bool) == isinstance(second, bool) and first == second


def join_json_path(path: str, key: str) -> str:
    return f"{path}.{key}" if _PLAIN_KEY.fullmatch(key) else f"{path}[{format_json_value(key)}]"


def format_json_value(value: Json) -> str:
    """A value as one line of bounded length, for messages."""
    text = canonical_json(value).decode()
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."
