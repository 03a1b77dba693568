"""Reduces a history entry to what Gemini can represent."""

import re

import msgspec

from holdfast.canonical.blocks import (
    Base64Source,
    Block,
    Image,
    Opaque,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
)
from holdfast.canonical.prompt import Passage
from holdfast.providers.gemini.parts import RESPONSE, sign, source_at, uri_of

_GENERATED_ID = re.compile(r"(.+)-(?:[0-9]+|[0-9a-f]{12})", re.DOTALL)


def lower(entry: Passage) -> Passage | None:
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


def name_in(call_id: str) -> str:
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
                sign(content, signature)
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
    return Image(source_at(uri_of(image.source)))


def _lower_result(result: ToolResult) -> ToolResult:
    """One text, or a response carried as its bytes, followed by images and other parts."""
    texts = [part.text for part in result.content if isinstance(part, Text)]
    others = [part for part in result.content if not isinstance(part, Text)]
    media = tuple(_lower_image(part) if isinstance(part, Image) else part for part in others)
    is_carried = not texts and others and isinstance(others[0], Opaque) and others[0].kind == RESPONSE
    return ToolResult(
        result.tool_use_id,
        media if is_carried else (Text("\n\n".join(texts)), *media),
        result.is_error,
        result.name or name_in(result.tool_use_id),
    )
