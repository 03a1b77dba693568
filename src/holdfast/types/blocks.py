"""Content blocks of a message, the same for every provider.

A block whose type or one of whose fields we do not know is carried as the bytes it arrived in.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Text(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text of a message."""

    text: str


class Base64Source(msgspec.Struct, frozen=True, tag_field="kind", tag="base64"):
    """The bytes of an image in base64, with a media type such as `image/png`."""

    media_type: str
    data: str


class UrlSource(msgspec.Struct, frozen=True, tag_field="kind", tag="url"):
    """The address of an image, which the provider loads."""

    url: str


class FileSource(msgspec.Struct, frozen=True, tag_field="kind", tag="file"):
    """The id of a file that was uploaded to the provider before."""

    file_id: str


class Image(msgspec.Struct, frozen=True, tag_field="type", tag="image"):
    """An image of a message or of the result of a tool."""

    source: Base64Source | UrlSource | FileSource


class ToolUse(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    arguments_json: str  # Kept as received: re-serialising would change the cached bytes.


class Thinking(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    text: str
    signature: str | None = None


class RedactedThinking(msgspec.Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    data: str


class Opaque(msgspec.Struct, frozen=True, tag_field="type", tag="opaque"):
    """A block with a type or a field that we do not know, byte for byte as received."""

    kind: str
    raw: bytes


class ToolResult(msgspec.Struct, frozen=True, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: tuple[Text | Image | Opaque, ...]
    is_error: bool = False
    name: str = ""  # The tool's name: Gemini matches results to calls by it. Empty if unknown.


Block = Text | Image | ToolUse | ToolResult | Thinking | RedactedThinking | Opaque
Role = Literal["user", "assistant", "system"]
THINKING_TYPES = (Thinking, RedactedThinking)

# "reasoning" is an item of OpenAI's Responses API; "reasoning_details.*" are OpenRouter's.
_THINKING_NAMES = ("thinking", "redacted_thinking", "reasoning", "reasoning_details")


def is_thinking(block: Block) -> bool:
    """Whether the block is the model's reasoning, including reasoning carried as a provider's own bytes."""
    if isinstance(block, Opaque):
        return block.kind.partition(".")[0] in _THINKING_NAMES
    return isinstance(block, THINKING_TYPES)


class Message(msgspec.Struct, frozen=True):
    role: Role
    content: tuple[Block, ...]


def make_user_message(*content: Block | str) -> Message:
    return Message("user", tuple(Text(part) if isinstance(part, str) else part for part in content))


def make_assistant_message(*content: Block | str) -> Message:
    return Message("assistant", tuple(Text(part) if isinstance(part, str) else part for part in content))


def join_text_blocks(content: tuple[Block, ...]) -> str:
    """The text blocks joined as paragraphs; other blocks are left out."""
    return "\n\n".join(block.text for block in content if isinstance(block, Text))


def replace_surrogates(text: str) -> str:
    """The text with lone surrogates, which have no UTF-8 encoding, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class _NestedId(msgspec.Struct, frozen=True):
    id: str | None = None


class _Ids(msgspec.Struct, frozen=True):
    """The fields in which each provider writes the id of a call, and the id of the call that a result belongs to."""

    id: str | None = None
    tool_use_id: str | None = None
    call_id: str | None = None
    function_call: _NestedId | None = msgspec.field(name="functionCall", default=None)
    function_response: _NestedId | None = msgspec.field(name="functionResponse", default=None)


class _Function(msgspec.Struct):
    name: str = ""
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _WireCall(msgspec.Struct):
    """A provider's tool call: its arguments are `input`, a string `arguments`, or nested `args`."""

    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")
    arguments: str | None = None
    function_call: _Function | None = msgspec.field(name="functionCall", default=None)


def block_kind(block: Block) -> str:
    if isinstance(block, Opaque):
        return block.kind
    tag = type(block).__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def is_blank_block(block: Block) -> bool:
    """Inside a tool result white space may be genuine output, so only an empty text is refused there."""
    if isinstance(block, ToolResult):
        return any(isinstance(part, Text) and not part.text for part in block.content)
    return isinstance(block, Text) and not block.text.strip()


# The field of `_Ids` by the kind of a block: Anthropic's, OpenAI's (Responses) and Gemini's.
_CALL_ID_FIELDS = {"tool_use": "id", "function_call": "call_id", "functionCall": "function_call"}
_RESULT_ID_FIELDS = {
    "tool_result": "tool_use_id",
    "function_call_output": "call_id",
    "functionResponse": "function_response",
}


def get_call_id(block: Block) -> str | None:
    return block.id if isinstance(block, ToolUse) else _opaque_id(block, _CALL_ID_FIELDS)


def get_result_call_id(block: Block) -> str | None:
    return block.tool_use_id if isinstance(block, ToolResult) else _opaque_id(block, _RESULT_ID_FIELDS)


def _opaque_id(block: Block, fields: Mapping[str, str]) -> str | None:
    """A call with an unknown field is carried as opaque bytes, but its result still has to be matched to it."""
    if not isinstance(block, Opaque) or block.kind not in fields:
        return None
    try:
        ids = msgspec.json.decode(block.raw, type=_Ids)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    id: str | _NestedId | None = getattr(ids, fields[block.kind])
    return id.id if isinstance(id, _NestedId) else id


def parse_tool_call(block: Block) -> ToolUse | None:
    """The tool call in a block, even if the block has fields that we do not know; None if it is no call."""
    if isinstance(block, ToolUse):
        return block
    id = get_call_id(block)
    if id is None or not isinstance(block, Opaque):
        return None
    try:
        call = msgspec.json.decode(block.raw, type=_WireCall)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        call = _WireCall()
    if call.function_call is not None:
        return ToolUse(id, call.function_call.name, bytes(call.function_call.args).decode("utf-8", "replace"))
    arguments = call.arguments if call.arguments is not None else bytes(call.input).decode("utf-8", "replace")
    return ToolUse(id, call.name, arguments)
