"""Content blocks of a message, the same for every provider.

A block whose type or one of whose fields we do not know is carried as the bytes it arrived in.
"""

from typing import Literal

import msgspec

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Text(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class Base64Source(msgspec.Struct, frozen=True, tag_field="kind", tag="base64"):
    media_type: str
    data: str


class UrlSource(msgspec.Struct, frozen=True, tag_field="kind", tag="url"):
    url: str


class FileSource(msgspec.Struct, frozen=True, tag_field="kind", tag="file"):
    file_id: str


class Image(msgspec.Struct, frozen=True, tag_field="type", tag="image"):
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
