"""Tools are validated at registration, described by their functions, and called only with matching arguments."""

import enum
import functools
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import UserError
from holdfast.types.blocks import Json
from holdfast.types.json_schema import VIOLATIONS_MAX
from holdfast.types.tool_spec import (
    ARGUMENTS_CHARS_MAX,
    DESCRIPTION_CHARS_MAX,
    ToolSpec,
    build_tool_spec,
    check_arguments,
    sort_tool_specs,
    tool_spec_from_function,
)

READ = build_tool_spec(
    "read_file",
    "Read a file.",
    {
        "type": "object",
        "required": ["path"],
        "properties": {"path": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}},
        "additionalProperties": False,
    },
)


def schema_of(function: Callable[..., object]) -> dict[str, Any]:
    schema: dict[str, Any] = msgspec.json.decode(tool_spec_from_function(function).input_schema_json)
    return schema


def parameter_schema(annotation: object, **parameter: object) -> Json:
    """The schema of a function's one parameter."""

    def tool(value): ...  # type: ignore[no-untyped-def]  # annotated below, so that each case can choose

    tool.__doc__ = "A tool."
    tool.__annotations__ = {"value": annotation}
    tool.__kwdefaults__ = None
    tool.__defaults__ = (parameter["default"],) if "default" in parameter else None
    schema: Json = schema_of(tool)["properties"]["value"]
    return schema


def test_a_tool_keeps_its_name_and_description_and_sorts_the_keys_of_its_schema() -> None:
    assert (
        ToolSpec(
            "read_file",
            "Read a file.",
            '{"additionalProperties":false,"properties":{"limit":{"minimum":1,"type":"integer"},'
            '"path":{"type":"string"}},"required":["path"],"type":"object"}',
        )
        == READ
    )


@settings(max_examples=50, deadline=None)
@given(st.permutations(["type", "title", "properties", "required"]), st.permutations(["b", "a", "c"]))
def test_equal_schemas_have_equal_bytes_in_whatever_order_they_were_written(keys: list[str], names: list[str]) -> None:
    parts = {
        "type": "object",
        "title": "t",
        "required": ["a"],
        "properties": {name: {"description": name, "type": "string"} for name in names},
    }
    spec = build_tool_spec("tool", "A tool.", {key: parts[key] for key in keys})
    assert spec == build_tool_spec("tool", "A tool.", {key: parts[key] for key in sorted(keys)})
    assert spec.input_schema_json.startswith('{"properties":{"a":{"description":"a","type":"string"},"b":')


@pytest.mark.parametrize("name", ["a", "Z-9_", "x" * 64])
def test_a_name_has_up_to_64_plain_characters(name: str) -> None:
    assert build_tool_spec(name, "A tool.", {"type": "object"}).name == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "é", "a.b", "a\n", "x" * 10_000])
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"tool name .* is refused; use 1 to 64 of the characters") as refusal:
        build_tool_spec(name, "A tool.", {"type": "object"})
    assert repr(name[:80]) in str(refusal.value)


@pytest.mark.parametrize("description", ["", " \n"])
def test_a_tool_without_a_description_is_refused(description: str) -> None:
    with pytest.raises(UserError, match="tool 'x' has no description"):
        build_tool_spec("x", description, {"type": "object"})


def test_the_length_of_a_description_is_limited() -> None:
    assert build_tool_spec("x", "d" * DESCRIPTION_CHARS_MAX, {"type": "object"})
    with pytest.raises(UserError, match=f"tool 'x': its description is longer than {DESCRIPTION_CHARS_MAX}"):
        build_tool_spec("x", "d" * (DESCRIPTION_CHARS_MAX + 1), {"type": "object"})


def test_a_description_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(UserError, match="tool 'x': its description holds a lone surrogate"):
        build_tool_spec("x", "\ud800", {"type": "object"})


def test_a_refused_schema_names_tool_path_and_keyword_and_what_is_allowed() -> None:
    schema = {"type": "object", "properties": {"p": {"oneOf": []}}}
    with pytest.raises(UserError, match=r"tool 'x': \$\.properties\.p: keyword \"oneOf\" is refused; allowed are"):
        build_tool_spec("x", "A tool.", schema)


def test_tools_are_sorted_by_name() -> None:
    specs = [ToolSpec(name, "", "{}") for name in ("b", "a", "B", "a_b")]
    assert [spec.name for spec in sort_tool_specs(iter(specs))] == ["B", "a", "a_b", "b"]


def test_two_tools_of_one_name_are_refused() -> None:
    specs = [ToolSpec(name, "", "{}") for name in ("b", "a", "b")]
    with pytest.raises(UserError, match="two tools are named 'b'; rename one of them"):
        sort_tool_specs(specs)


def test_matching_arguments_have_no_findings() -> None:
    assert check_arguments(READ, '{"path": "a", "limit": 1}') == ()


def test_all_violations_are_found() -> None:
    assert check_arguments(READ, '{"limit": true, "more": 1}') == (
        "$.path: required but missing",
        "$.limit: expected integer, got boolean",
        "$.more: not a known property",
    )


@pytest.mark.parametrize(
    "arguments", ["", "{", '{"path": NaN}', "\ud800", '"\\ud800"', "[" * 100_000, "1e999", '{"path": "a"} x']
)
def test_arguments_that_are_not_json_are_one_finding(arguments: str) -> None:
    assert check_arguments(READ, arguments) == ("$: not valid JSON",)


@pytest.mark.parametrize(("arguments", "name"), [("[]", "array"), ("null", "null"), ('"x"', "string")])
def test_arguments_must_be_an_object(arguments: str, name: str) -> None:
    assert check_arguments(READ, arguments) == (f"$: expected object, got {name}",)


def test_the_number_of_findings_is_limited() -> None:
    spec = build_tool_spec("x", "A tool.", {"type": "object", "additionalProperties": False})
    many = msgspec.json.encode({str(number): 1 for number in range(1_000)}).decode()
    findings = check_arguments(spec, many)
    assert len(findings) == VIOLATIONS_MAX == 20
    assert findings[0] == '$["0"]: not a known property'


def test_the_size_of_arguments_is_limited() -> None:
    most = '{"path": "a"}'.ljust(ARGUMENTS_CHARS_MAX)
    assert check_arguments(READ, most) == ()
    assert check_arguments(READ, most + " ") == (f"$: longer than {ARGUMENTS_CHARS_MAX} characters",)


@pytest.mark.parametrize(
    "schema", ['{"type":"object","anyOf":[]}', "nonsense", "[]", "[" * 100_000, '{"type":"string"}']
)
def test_an_unregistered_tool_accepts_any_object(schema: str) -> None:
    spec = ToolSpec("wire", "", schema)
    assert check_arguments(spec, '{"anything": 1}') == ()
    assert check_arguments(spec, "1") == ("$: expected object, got integer",)


def test_a_function_becomes_a_tool() -> None:
    def search(query: str, limit: int = 10, *, exact: bool = False) -> str:
        """Search the notes.

        Use it before asking.
        """
        return query

    assert tool_spec_from_function(search) == build_tool_spec(
        "search",
        "Search the notes.\n\nUse it before asking.",
        {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": "integer", "default": 10},
                "exact": {"type": "boolean", "default": False},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    )


def test_a_function_without_parameters_requires_nothing() -> None:
    async def ping() -> None:
        """Ping."""

    assert schema_of(ping) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_bound_method_is_called_without_self() -> None:
    class Shop:
        def buy(self, item: "str") -> None:
            """Buy."""

    assert list(schema_of(Shop().buy)["properties"]) == ["item"]


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (list[list[str]], {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}),
        (dict, {"type": "object"}),
        (dict[str, Any], {"type": "object"}),
        (dict[str, object], {"type": "object"}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal[1, "b", True, None], {"type": ["integer", "string", "boolean", "null"], "enum": [1, "b", True, None]}),
        (Optional[str], {"type": ["string", "null"]}),  # noqa: UP045 - the older form counts as well
        (None | int, {"type": ["integer", "null"]}),
        (list[bool] | None, {"type": ["array", "null"], "items": {"type": "boolean"}}),
        (Literal["a"] | None, {"type": ["string", "null"], "enum": ["a", None]}),
        (Literal["a", None] | None, {"type": ["string", "null"], "enum": ["a", None]}),
        (Annotated[str, 5, "what to say"], {"type": "string", "description": "what to say"}),
        (Annotated[str, []], {"type": "string"}),
        (Annotated[int, "n"] | None, {"type": ["integer", "null"], "description": "n"}),
        ("int", {"type": "integer"}),
    ],
)
def test_an_annotation_becomes_a_schema(annotation: object, schema: Json) -> None:
    assert parameter_schema(annotation) == schema


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    "annotation",
    [
        bytes,
        object,
        Any,
        set[str],
        tuple[int, ...],
        dict[str, int],
        dict[int, Any],
        list[bytes],
        int | str,
        int | str | None,
        bytes | None,
        Colour,
        Literal[Colour.RED],
        Literal[b"x"],
        Annotated[bytes, "x"],
        type(None),
        Callable[[], None],
    ],
)
def test_a_parameter_without_a_schema_is_refused_by_name(annotation: object) -> None:
    with pytest.raises(
        UserError, match="tool 'tool': parameter 'value' has a type that a schema cannot express; use str"
    ):
        parameter_schema(annotation)


@pytest.mark.parametrize(
    ("annotation", "default", "expected"),
    [
        (str, "a", True),
        (int, 3, True),
        (float, 0.5, True),
        (str | None, None, True),
        (str, None, False),
        (list, [], False),
        (str, Colour.RED, False),
    ],
)
def test_a_default_is_in_the_schema_if_the_model_could_send_it(
    annotation: object, default: object, expected: bool
) -> None:
    schema = parameter_schema(annotation, default=default)
    assert isinstance(schema, dict)
    assert ("default" in schema) is expected
    assert not expected or schema["default"] == default


def test_a_parameter_with_a_default_is_not_required() -> None:
    def tool(first: str, second: str = "x", *, third: list[str] | None = None, fourth: int) -> None:
        """A tool."""

    assert schema_of(tool)["required"] == ["first", "fourth"]


def test_a_parameter_without_an_annotation_is_refused_by_name() -> None:
    def tool(value): ...  # type: ignore[no-untyped-def]  # that is the point

    tool.__doc__ = "A tool."
    with pytest.raises(UserError, match="tool 'tool': parameter 'value' has no annotation"):
        tool_spec_from_function(tool)


def test_variadic_and_positional_only_parameters_are_refused() -> None:
    def many(*values: str) -> None:
        """Take many."""

    def named(**values: str) -> None:
        """Take named."""

    def placed(value: str, /) -> None:
        """Take by place."""

    for function in (many, named, placed):
        with pytest.raises(UserError, match=f"'{function.__name__}': parameter 'values?' cannot be passed by name"):
            tool_spec_from_function(function)


def test_a_function_without_a_docstring_is_refused() -> None:
    def silent() -> None: ...

    with pytest.raises(UserError, match="tool 'silent' has no docstring"):
        tool_spec_from_function(silent)


def test_annotations_that_cannot_be_resolved_are_refused() -> None:
    def tool(value: str) -> None:
        """A tool."""

    tool.__annotations__["value"] = "Missing"
    with pytest.raises(
        UserError, match="tool 'tool': its annotations cannot be resolved: name 'Missing' is not defined"
    ):
        tool_spec_from_function(tool)


def test_an_object_without_a_name_cannot_be_a_tool() -> None:
    with pytest.raises(UserError, match="a partial has no name that the tool could have; pass a function"):
        tool_spec_from_function(functools.partial(print))


def test_an_object_without_readable_parameters_cannot_be_a_tool() -> None:
    with pytest.raises(
        UserError, match=re.escape("tool 'dict': its parameters cannot be read; pass a Python function")
    ):
        tool_spec_from_function(dict)
