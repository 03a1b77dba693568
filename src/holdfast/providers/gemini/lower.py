"""What of a message Gemini can be told, and in which form."""

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

_NAMED_ID = re.compile(r"(.+)-(?:[0-9]+|[0-9a-f]{12})", re.DOTALL)


def lower(passage: Passage) -> Passage | None:
    """System text is said by the user; results have the name of their tool; thinking that says nothing is left out."""
    content: list[Block] = []
    for block in passage.content:
        _add(content, block)
    while content and isinstance(content[-1], Thinking) and content[-1].signature is None:
        content.pop()
    if not content:
        return None
    role: Role = "user" if passage.role == "system" else passage.role
    lowered = tuple(content)
    same = role == passage.role and lowered == passage.content
    return passage if same else msgspec.structs.replace(passage, role=role, content=lowered)


def name_in(call_id: str) -> str:
    """The name of the tool in an id that we gave to a call ourselves; any other id stands for the name."""
    named = _NAMED_ID.fullmatch(call_id)
    return named[1] if named else call_id


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
            # On the wire this is the part that carries nothing but the signature.
            pass
        case Image():
            content.append(_lowered_image(block))
        case ToolResult():
            content.append(_lowered_result(block))
        case _:
            content.append(block)


def _lowered_image(image: Image) -> Image:
    if isinstance(image.source, Base64Source):
        return image
    return Image(source_at(uri_of(image.source)))


def _lowered_result(result: ToolResult) -> ToolResult:
    """One text, or a response kept as it came, and behind it everything that is neither."""
    texts = [part.text for part in result.content if isinstance(part, Text)]
    rest = [part for part in result.content if not isinstance(part, Text)]
    media = tuple(_lowered_image(part) if isinstance(part, Image) else part for part in rest)
    kept = not texts and rest and isinstance(rest[0], Opaque) and rest[0].kind == RESPONSE
    return ToolResult(
        result.tool_use_id,
        media if kept else (Text("\n\n".join(texts)), *media),
        result.is_error,
        result.name or name_in(result.tool_use_id),
    )
