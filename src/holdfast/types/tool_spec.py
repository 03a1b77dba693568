"""Tool definitions: built from a schema or a Python function, and used to check the arguments of calls."""

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

import msgspec

from holdfast.errors import UserError
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import canonical_json
from holdfast.types.json_schema import JsonSchema, SchemaChecker, json_type_name, validate_schema

DESCRIPTION_CHARS_MAX = 16_384
ARGUMENTS_CHARS_MAX = 8_388_608

# The narrowest of the providers' rules.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_JSON_TYPES: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_LITERALS = (str, int, float, bool, types.NoneType)


class ToolSpec(msgspec.Struct, frozen=True):
    """`input_schema_json` is canonical JSON, so that equal schemas have equal bytes.

    `wire_json`, if set, is sent as is: a tool that the provider defines, or one with fields we do not know.
    """

    name: str
    description: str
    input_schema_json: str
    wire_json: str | None = None

    @property
    def is_deferred(self) -> bool:
        """Whether the tool is sent with `defer_loading`: the model sees it only after a tool search has found it."""
        # Most tools need not be decoded to see that they are not.
        if self.wire_json is None or '"defer_loading"' not in self.wire_json:
            return False
        try:
            return msgspec.json.decode(self.wire_json, type=_Deferral).defer_loading is True
        except (msgspec.MsgspecError, RecursionError):
            return False


class _Deferral(msgspec.Struct, frozen=True):
    defer_loading: object = False


def build_tool_spec(name: str, description: str, input_schema: Mapping[str, object]) -> ToolSpec:
    """A tool that every provider accepts. Raises `UserError` naming the part that a provider would refuse."""
    if not _NAME.fullmatch(name):
        raise UserError(f"tool name {name[:80]!r} is refused; use 1 to 64 of the characters a-z, A-Z, 0-9, _ and -")
    if not description.strip():
        raise UserError(f"tool {name!r} has no description; say in a sentence what it does and when to use it")
    if len(description) > DESCRIPTION_CHARS_MAX:
        raise UserError(f"tool {name!r}: its description is longer than {DESCRIPTION_CHARS_MAX} characters; shorten it")
    try:
        description.encode()
        return ToolSpec(name, description, canonical_json(validate_schema(input_schema)).decode())
    except UnicodeEncodeError:
        raise UserError(f"tool {name!r}: its description holds a lone surrogate; remove it") from None
    except UserError as error:
        raise UserError(f"tool {name!r}: {error}") from None


def sort_tool_specs(specs: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Sort by name, so that the order of registration does not change the first bytes of the prompt."""
    ordered = sorted(specs, key=lambda spec: spec.name)
    for previous, spec in pairwise(ordered):
        if previous.name == spec.name:
            raise UserError(f"two tools are named {spec.name!r}; rename one of them")
    return tuple(ordered)


def check_arguments(spec: ToolSpec, arguments_json: str) -> tuple[str, ...]:
    """What is wrong with a call's arguments, as `$.path: reason`; empty if the tool can be called.

    For a tool with a schema that `build_tool_spec` would refuse, such as one decoded from a request, the only check is
    that the arguments are a JSON object.
    """
    if len(arguments_json) > ARGUMENTS_CHARS_MAX:
        return (f"$: longer than {ARGUMENTS_CHARS_MAX} characters",)
    try:
        arguments: Json = msgspec.json.decode(arguments_json)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return ("$: not valid JSON",)
    return _load_checker(spec.input_schema_json).find_violations(arguments)


@functools.lru_cache(maxsize=256)
def _load_checker(schema_json: str) -> SchemaChecker:
    try:
        return SchemaChecker(validate_schema(msgspec.json.decode(schema_json)))
    except (UserError, msgspec.MsgspecError, RecursionError, ValueError):
        return SchemaChecker({"type": "object"})


def tool_spec_from_function(
    function: Callable[..., object],
    *,
    name: str | None = None,
    description: str | None = None,
    hidden: str | None = None,
) -> ToolSpec:
    """A tool from a function's name, docstring and annotations; it is called with keyword arguments.

    `Annotated[T, "text"]` gives a parameter its description. The parameter named by `hidden` is not in the schema,
    because the host fills it in and not the model.
    """
    name = name if name is not None else getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise UserError(f"a {type(function).__name__} has no name that the tool could have; pass a function")
    description = description if description is not None else inspect.getdoc(function)
    if not description:
        raise UserError(f"tool {name!r} has no docstring; the model reads it to know when to call the tool")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise UserError(f"tool {name!r}: its annotations cannot be resolved: {error}") from None
    properties: JsonSchema = {}
    required: list[Json] = []
    for parameter in _parameters_of(name, function):
        if parameter.name == hidden:
            continue
        properties[parameter.name] = _parameter_schema(name, parameter, hints.get(parameter.name))
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    schema: JsonSchema = {"type": "object", "properties": properties, "additionalProperties": False}
    return build_tool_spec(name, description, schema | ({"required": required} if required else {}))


def _parameters_of(tool: str, function: Callable[..., object]) -> tuple[inspect.Parameter, ...]:
    try:
        return tuple(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        raise UserError(f"tool {tool!r}: its parameters cannot be read; pass a Python function") from None


def _parameter_schema(tool: str, parameter: inspect.Parameter, hint: object) -> JsonSchema:
    where = f"tool {tool!r}: parameter {parameter.name!r}"
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise UserError(f"{where} cannot be passed by name; make it an ordinary parameter")
    if hint is None:
        raise UserError(f"{where} has no annotation; give it one, such as str")
    schema = _schema_for(hint)
    if schema is None:
        raise UserError(
            f"{where} has a type that a schema cannot express; "
            "use str, int, float, bool, list, dict, Literal, or one of them | None"
        )
    default = parameter.default
    if type(default) not in _LITERALS or SchemaChecker(schema).find_violations(default):
        return schema  # The schema does not allow this default, so showing it to the model would only confuse it.
    return schema | {"default": default}


def _schema_for(hint: object) -> JsonSchema | None:
    """None for a type that the allowed schema keywords cannot express."""
    if isinstance(hint, type) and hint in _JSON_TYPES:
        return {"type": _JSON_TYPES[hint]}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if (hint is list or origin is list) and not arguments:
        return {"type": "array"}
    if origin is list:
        items = _schema_for(arguments[0])
        return None if items is None else {"type": "array", "items": items}
    if hint is dict or (origin is dict and arguments in ((str, object), (str, typing.Any))):
        return {"type": "object"}
    if origin is typing.Literal:
        return _literal_schema(arguments)
    if origin is typing.Annotated:
        schema = _schema_for(arguments[0])
        text = next((metadata for metadata in arguments[1:] if isinstance(metadata, str)), None)
        return schema if schema is None or text is None else schema | {"description": text}
    if origin in (typing.Union, types.UnionType):
        return _optional_schema(arguments)
    return None


def _literal_schema(values: tuple[object, ...]) -> JsonSchema | None:
    choices: list[Json] = [value for value in values if value is None or isinstance(value, str | int)]
    # `type`, because a member of a str or int Enum is an instance of str or int.
    if any(type(value) not in _LITERALS for value in values):
        return None
    types_of_choices: list[Json] = list(dict.fromkeys(json_type_name(choice) for choice in choices))
    return {"type": types_of_choices[0] if len(types_of_choices) == 1 else types_of_choices, "enum": choices}


def _optional_schema(options: tuple[object, ...]) -> JsonSchema | None:
    others = [option for option in options if option is not types.NoneType]
    schema = _schema_for(others[0]) if len(others) == 1 else None
    if schema is None:
        return None
    declared, choices = schema["type"], schema.get("enum")
    types_allowed = declared if isinstance(declared, list) else [declared]
    if "null" in types_allowed:
        return schema
    optional = schema | {"type": [*types_allowed, "null"]}
    return optional | {"enum": [*choices, None]} if isinstance(choices, list) else optional
