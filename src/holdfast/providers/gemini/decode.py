"""Decodes a request to Gemini: its prompt and its parameters."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.errors import ProviderError
from holdfast.providers.adapter import NO_HEADERS, PATH_HEADER, WireRequest
from holdfast.providers.gemini.encode import (
    CONFIG_NAMES,
    CONFIG_PREFIX,
    FUNCTION_CALLING_MODES,
    FUNCTION_DECLARATIONS_START,
    MODEL_NAME,
    PROMPT_NAMES,
    TOOL_CONFIG,
)
from holdfast.providers.gemini.parts import attach_signature, decode_gemini_part
from holdfast.providers.json_splice import get_string_member, remove_member, split_object
from holdfast.providers.wire_request import (
    build_prompt,
    build_wire_request,
    decode_each,
    decoding_request,
    reject_oversized,
)
from holdfast.types.blocks import Block, Role, Text, ToolResult, ToolUse
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import HistoryEntry, Parameters
from holdfast.types.tool_spec import ToolSpec

GEMINI_BODY_BYTES_MAX = 100 * 1024 * 1024
_DECLARATIONS = "functionDeclarations"
_PATH = re.compile(
    rf"(?:/[\w.-]+)*/models/({MODEL_NAME.pattern}):(generateContent|streamGenerateContent)(?:\?.*)?", re.ASCII
)
_ROLES: dict[str | None, Role] = {
    None: "user",
    "user": "user",
    "function": "user",
    "tool": "user",
    "model": "assistant",
}


class _Settings(msgspec.Struct, frozen=True, rename="camel"):
    max_output_tokens: int | None = None
    temperature: float | None = None
    stop_sequences: tuple[str, ...] | None = None


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str | None = None
    parts: tuple[msgspec.Raw, ...] | None = None


class _Body(msgspec.Struct, frozen=True, rename="camel"):
    contents: tuple[msgspec.Raw, ...]
    generation_config: _Settings = _Settings()
    tools: tuple[msgspec.Raw, ...] | dict[str, msgspec.Raw] | None = None
    system_instruction: _Content | None = None


class _Calling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    mode: str
    allowed_function_names: tuple[str, ...] = ()


class _ToolConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    function_calling_config: _Calling


_decode_wire_content = msgspec.json.Decoder(_Content).decode


def decode_gemini_path(path: str) -> tuple[str, bool]:
    """The model's name, and whether the response is streamed."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise ProviderError(
            "invalid_request", "the path names no model; it must end like /models/NAME:generateContent", status=404
        )
    return match[1], match[2] == "streamGenerateContent"


def decode_gemini_request(body: bytes, headers: Mapping[str, str] = NO_HEADERS) -> WireRequest:
    reject_oversized(body, GEMINI_BODY_BYTES_MAX)
    model, stream = decode_gemini_path(headers.get(PATH_HEADER, ""))
    with decoding_request():
        body.decode()
        top = split_object(body)
        typed = msgspec.json.decode(body, type=_Body)
        parameters = _decode_parameters(model, stream, top, typed)
    # The API also accepts a single element without the list around it.
    elements = (msgspec.Raw(top["tools"]),) if isinstance(typed.tools, dict) else typed.tools or ()
    tools = [tool for tools in decode_each(elements, "tools", _decode_tools) for tool in tools]
    instruction = (typed.system_instruction or _Content()).parts or ()
    system = tuple(decode_each(instruction, "systemInstruction.parts", _decode_system_text))
    return build_wire_request(build_prompt(tuple(tools), system, _decode_contents(typed.contents)), (), parameters)


def _decode_parameters(model: str, stream: bool, top: Mapping[str, bytes], typed: _Body) -> Parameters:
    members = split_object(top.get("generationConfig", b"{}"))
    settings = typed.generation_config
    if settings.max_output_tokens is not None and settings.max_output_tokens < 1:
        raise msgspec.ValidationError("Expected `int` from 1 (inclusive) - at `$.generationConfig.maxOutputTokens`")
    choice = _decode_tool_choice(top.get(TOOL_CONFIG, b"null"))
    known = PROMPT_NAMES | ({TOOL_CONFIG} if choice is not None else set())
    outer = {name: value for name, value in top.items() if name not in known}
    if any(name.startswith(CONFIG_PREFIX) for name in outer):
        raise msgspec.ValidationError(f"a field of the request is named like one of `{CONFIG_PREFIX[:-1]}`")
    inner = {CONFIG_PREFIX + name: value for name, value in members.items() if name not in CONFIG_NAMES}
    return Parameters(
        model=model,
        output_tokens_max=settings.max_output_tokens or 0,
        stream=stream,
        stop_sequences=settings.stop_sequences or (),
        temperature=settings.temperature,
        tool_choice_json=choice,
        thinking_json=members["thinkingConfig"].decode() if "thinkingConfig" in members else None,
        extra=tuple((name, value.decode()) for name, value in (inner | outer).items()),
    )


def _decode_tool_choice(raw: bytes) -> str | None:
    """None if there is none, or one that only Gemini has, which stays an extra field."""
    try:
        calling = msgspec.json.decode(raw, type=_ToolConfig).function_calling_config
    except msgspec.ValidationError:
        return None
    allowed = calling.allowed_function_names
    if calling.mode == FUNCTION_CALLING_MODES["tool"] and len(allowed) == 1 and allowed[0]:
        return encode_json({"type": "tool", "name": allowed[0]}).decode()
    choice = next((kind for kind, mode in FUNCTION_CALLING_MODES.items() if mode == calling.mode and not allowed), None)
    return None if choice is None else encode_json({"type": choice}).decode()


def _decode_tools(raw: bytes) -> list[ToolSpec]:
    members = split_object(raw)
    if _DECLARATIONS not in members:
        return [_provider_tool(raw)]
    declared = msgspec.json.decode(members[_DECLARATIONS], type=tuple[msgspec.Raw, ...] | None)
    tools = [_decode_declaration(bytes(declaration)) for declaration in declared or ()]
    if len(members) > 1:
        tools.append(_provider_tool(remove_member(raw, _DECLARATIONS)))
    return tools


def _decode_declaration(raw: bytes) -> ToolSpec:
    """A declaration with further fields is carried as its bytes, in an element of its own."""
    members = split_object(raw)
    name = get_string_member(members, "name")
    description = get_string_member(members, "description") if "description" in members else ""
    schema = members.get("parametersJsonSchema", members.get("parameters", b"{}")).decode()
    if members.keys() == {"name", "description", "parametersJsonSchema"}:
        return ToolSpec(name, description, schema)
    return ToolSpec(name, description, schema, wire_json=(FUNCTION_DECLARATIONS_START + raw + b"]}").decode())


def _provider_tool(raw: bytes) -> ToolSpec:
    members = split_object(raw)
    has_name = members.get("name", b"").startswith(b'"')
    name = get_string_member(members, "name") if has_name else next(iter(members), "")
    return ToolSpec(name, "", "{}", wire_json=raw.decode())


def _decode_system_text(raw: bytes) -> Text:
    """A part of the system instruction; the instruction's role, which some clients set, is ignored."""
    block, signature = decode_gemini_part(raw)
    if not isinstance(block, Text) or signature is not None:
        raise msgspec.ValidationError("only text without further fields is allowed here")
    return block


def _decode_contents(raws: Sequence[msgspec.Raw]) -> tuple[HistoryEntry, ...]:
    ids = _CallIds()
    entries: list[HistoryEntry] = []
    for index, content in enumerate(decode_each(raws, "contents", _decode_content)):
        blocks: list[Block] = []
        for position, part in enumerate(content.parts or ()):
            with decoding_request(f"contents.{index}.parts.{position}"):
                block, signature = decode_gemini_part(bytes(part))
                if signature is not None:
                    attach_signature(blocks, signature)
                if signature is None or block != Text(""):
                    blocks.append(ids.assign(block))
        entries.append(HistoryEntry(_ROLES[content.role], tuple(blocks)))
    return tuple(entries)


def _decode_content(raw: bytes) -> _Content:
    content = _decode_wire_content(raw)
    if content.role not in _ROLES:
        raise msgspec.ValidationError("the role must be one of user, model - at `$.role`")
    return content


class _CallIds:
    """Assigns ids to calls and results without one: the nth result of a name belongs to its nth call."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._results: Counter[str] = Counter()

    def assign(self, block: Block) -> Block:
        match block:
            case ToolUse(id=id, name=name, arguments_json=arguments):
                split_object(arguments.encode())
                if not id:
                    self._calls[name] += 1
                    return ToolUse(f"{name}-{self._calls[name]}", name, arguments)
            case ToolResult(tool_use_id="", name=name):
                self._results[name] += 1
                return msgspec.structs.replace(block, tool_use_id=f"{name}-{self._results[name]}")
            case _:
                pass
        return block
