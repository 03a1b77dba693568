"""Encodes a request to Gemini: the parameters, then tools, the system instruction and contents.

What Gemini cannot represent of a history entry is dropped or replaced before it is encoded.
"""

import re
from collections.abc import Iterator

import msgspec

from holdfast.errors import UserError
from holdfast.providers.adapter import Endpoint
from holdfast.providers.gemini.parts import (
    RESPONSE_KIND,
    attach_signature,
    encode_gemini_parts,
    source_from_uri,
    source_uri,
)
from holdfast.providers.json_splice import decode_or_none, encode_json_text, encode_string
from holdfast.providers.wire_request import check_section_order, encode_tool_spec
from holdfast.types.blocks import Base64Source, Block, Image, Opaque, RedactedThinking, Role, Text, Thinking, ToolResult
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import HistoryEntry, Parameters, PromptSection, Segment
from holdfast.types.request_buffer import EncodedBlock, make_message_block

FUNCTION_DECLARATIONS_START = b'{"functionDeclarations":['
"""Starts an element of `tools` with function declarations; every other element is a tool that Gemini defines."""

_STARTS: dict[PromptSection, bytes] = {
    "tools": b',"tools":[',
    "system": b',"systemInstruction":{"parts":[',
    "messages": b',"contents":[',
}

_ROLES = {"user": b"user", "assistant": b"model"}

# google-genai 3.x calls /v1; older SDKs called /v1beta.
API_VERSION = "v1"
JSON_HEADERS = (("content-type", "application/json"),)
MODEL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")

CONFIG_PREFIX = "generationConfig."
"""Prefix of the name of an extra field that belongs into `generationConfig`."""

CONFIG_NAMES = frozenset({"maxOutputTokens", "temperature", "stopSequences", "thinkingConfig"})
PROMPT_NAMES = frozenset({"generationConfig", "tools", "systemInstruction", "contents"})
CACHED_CONTENT = "cachedContent"
TOOL_CONFIG = "toolConfig"
FUNCTION_CALLING_MODES = {"auto": "AUTO", "any": "ANY", "none": "NONE", "tool": "ANY"}

# The tool's name, and a number or a digest: `decode` and `stream` make such ids for calls without one.
_GENERATED_ID = re.compile(r"(.+)-(?:[0-9]+|[0-9a-f]{12})", re.DOTALL)


def encode_gemini_segment(segment: Segment) -> tuple[EncodedBlock, ...]:
    """One encoded block per tool, system text or part; Gemini has no cache breakpoints."""
    layer, stability = segment.name, segment.stability
    tools = (
        EncodedBlock(
            layer,
            "tools",
            stability,
            encode_tool_spec(tool, b'{"name":%b,"description":%b,"parametersJsonSchema":%b}'),
            accepts_breakpoint=False,
            container_start=FUNCTION_DECLARATIONS_START if tool.wire_json is None else b"",
        )
        for tool in segment.tools
    )
    texts = (b'{"text":%b}' % encode_string(text.text) for text in segment.system)
    system = (EncodedBlock(layer, "system", stability, text, accepts_breakpoint=False) for text in texts)
    lowered = map(lower_gemini_entry, segment.entries)
    return (*tools, *system, *(block for entry in lowered if entry is not None for block in _encode_entry(entry)))


def _encode_entry(entry: HistoryEntry) -> Iterator[EncodedBlock]:
    """Every entry is a content of its own, even after one of the same role."""
    start = b'{"role":"%b","parts":[' % _ROLES[entry.role]
    for part in encode_gemini_parts(entry.content):
        yield make_message_block(entry, part, accepts_breakpoint=False, container_start=start)
        start = b""


def gemini_separator(before: EncodedBlock | None, block: EncodedBlock) -> bytes:
    """Adjacent function declarations share an element of `tools`."""
    if before is None:
        return _STARTS[block.section] + (block.container_start or _continuation_start(block))
    if before.section != block.section:
        check_section_order(before, block)
        return _end(before) + _STARTS[block.section] + (block.container_start or _continuation_start(block))
    if block.section == "messages":
        return b"]}," + block.container_start if block.container_start else b","
    if before.container_start == block.container_start:
        return b","
    return (b"]}," if before.container_start else b",") + block.container_start


def _continuation_start(block: EncodedBlock) -> bytes:
    """The start of a content for a part that continues one whose start is in an explicit cache."""
    return b"" if block.role is None else b'{"role":"%b","parts":[' % _ROLES[block.role]


def _end(last: EncodedBlock) -> bytes:
    """The bytes that close the section of the last block."""
    match last.section:
        case "tools":
            return b"]}]" if last.container_start else b"]"
        case "system":
            return b"]}"
        case "messages":
            return b"]}]"


def gemini_suffix(last: EncodedBlock | None) -> bytes:
    if last is None:
        return b',"contents":[]}'
    return _end(last) + (b"}" if last.section == "messages" else b',"contents":[]}')


def lower_gemini_entry(entry: HistoryEntry) -> HistoryEntry | None:
    """System messages become user messages, results get the name of their tool, empty thinking is dropped."""
    content: list[Block] = []
    for block in entry.content:
        _add(content, block)
    # Unsigned thinking at the end has no part after it to belong to.
    while content and isinstance(content[-1], Thinking) and content[-1].signature is None:
        content.pop()
    if not content:
        return None
    role: Role = "user" if entry.role == "system" else entry.role
    lowered = tuple(content)
    unchanged = role == entry.role and lowered == entry.content
    return entry if unchanged else msgspec.structs.replace(entry, role=role, content=lowered)


def tool_name_from_call_id(call_id: str) -> str:
    """The tool's name in a call id that we generated; any other id is used as the name."""
    match = _GENERATED_ID.fullmatch(call_id)
    return match[1] if match else call_id


def _add(content: list[Block], block: Block) -> None:
    before = content[-1] if content else None
    match block:
        case RedactedThinking():
            pass
        case Thinking(text="", signature=signature):
            if signature:
                attach_signature(content, signature)
        case Thinking(text=text, signature=""):
            content.append(Thinking(text))
        case Text(text="") if isinstance(before, Thinking) and before.signature is not None:
            # On the wire this is the empty part that only carries the signature.
            pass
        case Image():
            content.append(_lower_image(block))
        case ToolResult():
            content.append(_lower_result(block))
        case _:
            content.append(block)


def _lower_image(image: Image) -> Image:
    if isinstance(image.source, Base64Source):
        return image
    return Image(source_from_uri(source_uri(image.source)))


def _lower_result(result: ToolResult) -> ToolResult:
    """One text, or a response carried as its bytes, followed by images and other parts."""
    texts = [part.text for part in result.content if isinstance(part, Text)]
    others = [part for part in result.content if not isinstance(part, Text)]
    media = tuple(_lower_image(part) if isinstance(part, Image) else part for part in others)
    is_carried = not texts and others and isinstance(others[0], Opaque) and others[0].kind == RESPONSE_KIND
    content = media if is_carried else (Text("\n\n".join(texts)), *media)
    name = result.name or tool_name_from_call_id(result.tool_use_id)
    return ToolResult(result.tool_use_id, content, result.is_error, name)


class _ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Gemini has no field for `disable_parallel_tool_use`: the model decides whether calls come one at a time."""

    type: str
    name: str = ""
    disable_parallel_tool_use: bool = False


_decode_tool_choice = msgspec.json.Decoder(_ToolChoice).decode


def gemini_request_head(parameters: Parameters) -> bytes:
    settings = [b'"maxOutputTokens":%d' % parameters.output_tokens_max] if parameters.output_tokens_max else []
    if parameters.temperature is not None:
        settings.append(b'"temperature":' + encode_json(parameters.temperature))
    if parameters.stop_sequences:
        settings.append(b'"stopSequences":[' + b",".join(map(encode_string, parameters.stop_sequences)) + b"]")
    if parameters.thinking_json is not None:
        settings.append(b'"thinkingConfig":' + encode_json_text(parameters.thinking_json))
    members: list[bytes] = []
    if parameters.tool_choice_json is not None:
        members.append(b'"toolConfig":' + encode_gemini_tool_choice(parameters.tool_choice_json))
    _check_extra(parameters)
    for name, value in parameters.extra:
        target = settings if name.startswith(CONFIG_PREFIX) else members
        target.append(encode_string(name.removeprefix(CONFIG_PREFIX)) + b":" + encode_json_text(value))
    return b'{"generationConfig":{' + b",".join(settings) + b"}" + b"".join(b"," + member for member in members)


def _check_extra(parameters: Parameters) -> None:
    names = {name for name, _ in parameters.extra}
    reserved = PROMPT_NAMES | {CONFIG_PREFIX + name for name in CONFIG_NAMES}
    if parameters.tool_choice_json is not None:
        reserved |= {TOOL_CONFIG}
    for name in sorted(names & reserved):
        raise UserError(f"extra field {name!r} has a place of its own in the request; set it there")
    if CACHED_CONTENT in names and (TOOL_CONFIG in names or parameters.tool_choice_json is not None):
        raise UserError("a tool choice cannot be combined with a cache, which has its own; leave it out")


def encode_gemini_tool_choice(tool_choice_json: str) -> bytes:
    choice = decode_or_none(_decode_tool_choice, tool_choice_json) or _ToolChoice("")
    if choice.type not in FUNCTION_CALLING_MODES or (choice.type == "tool") != bool(choice.name):
        raise UserError(
            'the tool choice cannot be encoded for Gemini; use {"type":"auto"}, "any", "none", or "tool" with a "name"'
        )
    allowed = b',"allowedFunctionNames":[%b]' % encode_string(choice.name) if choice.name else b""
    return b'{"functionCallingConfig":{"mode":"%b"%b}}' % (FUNCTION_CALLING_MODES[choice.type].encode(), allowed)


def gemini_model_name(model: str) -> str:
    """The name without `models/`, checked to be valid in a path."""
    bare = model.removeprefix("models/")
    if not MODEL_NAME.fullmatch(bare):
        raise UserError(f"model {model[:80]!r} is not valid in a path; use a name like 'gemini-3.8-flash'")
    return bare


def gemini_endpoint(parameters: Parameters) -> Endpoint:
    if parameters.betas:
        raise UserError(f"Gemini has no betas, but the request names {parameters.betas[0]!r}; leave them out")
    action = "streamGenerateContent?alt=sse" if parameters.stream else "generateContent"
    return Endpoint(f"/{API_VERSION}/models/{gemini_model_name(parameters.model)}:{action}", JSON_HEADERS)
