"""Validates the JSON schemas of tools, and values against them; jsonschema-rs does the work.

The allowed keywords are those that every provider accepts. `format`, `default`, `examples`, `title` and `description`
only inform the model; a value is never checked against them. Schemas and values come from models and from other
people's tools: sizes are bounded, nothing is fetched, and patterns run on an engine that does not backtrack.
"""

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import UserError
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import canonical_json

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

SCHEMA_BYTES_MAX = 65_536
SCHEMA_DEPTH_MAX = 32
SCHEMA_VALUES_MAX = 10_000
VIOLATIONS_MAX = 20
PATTERN_CHARS_MAX = 500
# Of the compiled pattern. Repeats multiply: `(a{100}){100}` has 11 characters and takes 320,000 bytes.
PATTERN_BYTES_MAX = 2_097_152
SCHEMA_PATTERN_BYTES_MAX = 4_194_304
# Bytes of a pattern times characters of its text, for all texts of a call: about a second if the engine has to follow
# every state of the pattern at every character.
PATTERN_WORK_MAX = 4_294_967_296
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
_INTEGER_BITS_MAX = 64
_SHOWN_CHARS_MAX = 200
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")

_TYPE: JsonSchema = {"enum": [*_TYPE_NAMES.values()]}
_TEXT: JsonSchema = {"type": "string", "description": "a string"}
_NUMBER: JsonSchema = {"type": "number", "description": "a number"}
_COUNT: JsonSchema = {"type": "integer", "minimum": 0, "description": "a whole number of at least 0"}
# The schema of a tool's schema. Each description completes the sentence "keyword ... must be".
_KEYWORDS: dict[str, JsonSchema] = {
    "type": {
        "anyOf": [_TYPE, {"type": "array", "items": _TYPE, "minItems": 1, "uniqueItems": True}],
        "description": f"one of {', '.join(_TYPE_NAMES.values())}, or a list of them, each once",
    },
    "enum": {"type": "array", "minItems": 1, "description": "a list with at least one value"},
    "const": {},
    "required": {
        "type": "array",
        "items": {"type": "string"},
        "uniqueItems": True,
        "description": "a list of property names, each once",
    },
    "properties": {"type": "object", "additionalProperties": {"$ref": "#"}, "description": "an object of schemas"},
    "items": {"$ref": "#"},
    "additionalProperties": {"type": "boolean", "description": "true or false"},
    "description": _TEXT,
    "title": _TEXT,
    "format": _TEXT,
    "pattern": {
        "type": "string",
        "format": "pattern",
        "description": f"a regular expression as in JavaScript, of at most {PATTERN_CHARS_MAX} characters, "
        "without lookaround, back references and large repeat counts",
    },
    "default": {},
    "examples": {"type": "array", "description": "a list"},
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": _NUMBER,
    "exclusiveMaximum": _NUMBER,
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "minItems": _COUNT,
    "maxItems": _COUNT,
}
_REASONS = {
    "const": "must be {}",
    "enum": "must be one of {}",
    "pattern": "must match the pattern {}",
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
    "exclusiveMinimum": "must be more than {}",
    "exclusiveMaximum": "must be less than {}",
    "minLength": "must have at least {} characters, has {}",
    "maxLength": "must have at most {} characters, has {}",
    "minItems": "must have at least {} items, has {}",
    "maxItems": "must have at most {} items, has {}",
}


def validate_schema(schema: Mapping[str, object]) -> JsonSchema:
    """The schema as plain JSON. Raises `UserError` with the path and keyword of the first thing that is refused."""
    plain = _as_json(schema, "$", SCHEMA_DEPTH_MAX, itertools.count(1))
    if not isinstance(plain, dict):
        raise UserError("$: the input schema must be a JSON object")
    if plain.get("type") != "object":
        raise UserError('$: keyword "type" must be "object" at the top, since arguments are named')
    if len(canonical_json(plain)) > SCHEMA_BYTES_MAX:
        raise UserError(f"$: the input schema is larger than {SCHEMA_BYTES_MAX} bytes; shorten its descriptions")
    if error := _first_error(_schema_validator(), plain):
        raise UserError(_describe_schema_error(error))
    if sum(map(_pattern_bytes, _find_patterns(plain))) > SCHEMA_PATTERN_BYTES_MAX:
        raise UserError("$: its patterns are too large together; use smaller repeat counts")
    return plain


class SchemaChecker:
    """Checks values against a schema that has passed `validate_schema`."""

    def __init__(self, schema: JsonSchema) -> None:
        self._schema = schema
        self._validator = _compile(schema)
        self._has_patterns = any(True for _ in _find_patterns(schema))

    def find_violations(self, value: Json) -> tuple[str, ...]:
        """What is wrong with a value, as `$.path: reason`; in a list, only what is wrong with the first such item."""
        if self._has_patterns and _pattern_work(self._schema, value) > PATTERN_WORK_MAX:
            return ("$: too long to be checked against its patterns",)
        try:
            # The library can list all errors, but copies the value into each: 1.4 GB for a million wrong items. So it
            # is asked for the first error of the value, and if there is one, for the first of each member.
            if _first_error(self._validator, value) is None:
                return ()
            return tuple(itertools.islice(_find_violations(self._schema, value, "$"), VIOLATIONS_MAX))
        except ValueError:  # The library goes down 255 levels.
            return ("$: nested too deeply to be checked",)


def _find_violations(schema: dict[str, Any], value: Json, path: str) -> Iterator[str]:
    members = ("properties", "required", "additionalProperties")
    error = _first_error(_compile({name: rule for name, rule in schema.items() if name not in members}), value)
    if error is not None and isinstance(value, list) and error.instance_path:
        index = int(error.instance_path[0])
        yield from _find_violations(schema["items"], value[index], f"{path}[{index}]")
    elif error is not None:
        reason = _REASONS.get(error.kind.name, error.message)
        size = len(value) if isinstance(value, str | list) else 0
        yield f"{path}: {reason.format(format_json_value(error.kind.value), size)}"
    if isinstance(value, dict):
        missing = (name for name in schema.get("required", ()) if name not in value)
        yield from (f"{join_json_path(path, name)}: required but missing" for name in missing)
        properties = schema.get("properties", {})
        for name, member in value.items():
            if name in properties:
                yield from _find_violations(properties[name], member, join_json_path(path, name))
            elif schema.get("additionalProperties") is False:
                yield f"{join_json_path(path, name)}: not a known property"


class _StrictType:
    """The keyword `type`, stricter than JSON Schema, where 1.0 is an integer: an int parameter must receive an int."""

    def __init__(self, parent_schema: JsonSchema, value: Any, schema_path: list[str | int]) -> None:
        self._expected = [value] if isinstance(value, str) else value
        self._allowed = {*self._expected, "integer"} if "number" in self._expected else {*self._expected}

    def validate(self, instance: Any) -> None:
        if json_type_name(instance) not in self._allowed:
            raise ValueError(f"expected {' or '.join(self._expected)}, got {json_type_name(instance)}")


def _compile(schema: JsonSchema, *, pattern_bytes_max: int = PATTERN_BYTES_MAX, **options: Any) -> "Validator":
    # Loaded here, because a command without tools does not need it and would wait 20 ms for it.
    from jsonschema_rs import Draft202012Validator, RegexOptions  # noqa: PLC0415

    patterns = RegexOptions(size_limit=pattern_bytes_max)
    return Draft202012Validator(
        schema, pattern_options=patterns, keywords={"type": _StrictType}, offline=True, **options
    )


def compile_pattern(source: str, bytes_max: int) -> Callable[[str], bool]:
    """A search that takes linear time, whatever the pattern. Raises ValueError if that is impossible or too large."""
    return _compile({"pattern": source}, pattern_bytes_max=bytes_max).is_valid


def _first_error(validator: "Validator", value: Json) -> "ValidationError | None":
    from jsonschema_rs import ValidationError  # noqa: PLC0415

    try:
        validator.validate(value)
    except ValidationError as error:
        return error
    return None


@functools.cache
def _schema_validator() -> "Validator":
    schema: JsonSchema = {"type": "object", "additionalProperties": False, "properties": {**_KEYWORDS}}
    return _compile(schema, formats={"pattern": _is_pattern}, validate_formats=True)


def _describe_schema_error(error: "ValidationError") -> str:
    path = "$"
    for part in error.instance_path:
        path = f"{path}[{part}]" if isinstance(part, int) else join_json_path(path, part)
    match error.schema_path:
        case ["properties", str(keyword), *_]:
            # The path ends in the keyword, or in an item of it.
            owner = path.removesuffix(f"[{error.instance_path[-1]}]").removesuffix(f".{keyword}")
            return f'{owner}: keyword "{keyword}" must be {_KEYWORDS[keyword]["description"]}'
        case ["additionalProperties"]:
            refused = format_json_value(error.kind.value[0])
            return f"{path}: keyword {refused} is refused; allowed are {', '.join(sorted(_KEYWORDS))}"
        case _:
            return f"{path}: must be a schema, which is a JSON object"


def _is_pattern(source: str) -> bool:
    # The engine accepts more than JavaScript does, such as flags inside the pattern; providers would refuse that.
    return (
        len(source) <= PATTERN_CHARS_MAX
        and _compile({"format": "regex"}, validate_formats=True).is_valid(source)
        and _pattern_bytes(source) <= PATTERN_BYTES_MAX
    )


@functools.lru_cache(maxsize=1_024)
def _pattern_bytes(source: str) -> int:
    """The size of the compiled pattern, rounded up to a power of two; more than `PATTERN_BYTES_MAX` if it cannot be."""
    size = 4_096
    while size <= PATTERN_BYTES_MAX:
        try:
            compile_pattern(source, size)
        except ValueError:
            size *= 2
        else:
            break
    return size


def _find_patterns(schema: dict[str, Any]) -> Iterator[str]:
    if "pattern" in schema:
        yield schema["pattern"]
    for part in (*schema.get("properties", {}).values(), schema.get("items")):
        if part:
            yield from _find_patterns(part)


def _pattern_work(schema: dict[str, Any], value: Json) -> int:
    match value:
        case str() if "pattern" in schema:
            return len(value) * _pattern_bytes(schema["pattern"])
        case list() if items := schema.get("items"):
            return sum(_pattern_work(items, item) for item in value)
        case dict() if properties := schema.get("properties"):
            return sum(_pattern_work(properties[name], value[name]) for name in value.keys() & properties.keys())
    return 0


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


def json_type_name(value: Json) -> str:
    """The JSON Schema name of a value's type."""
    return _TYPE_NAMES[type(value)]


def join_json_path(path: str, key: str) -> str:
    return f"{path}.{key}" if _PLAIN_KEY.fullmatch(key) else f"{path}[{format_json_value(key)}]"


def format_json_value(value: Json) -> str:
    """A value as one line of bounded length, for messages."""
    text = canonical_json(value).decode()
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."
