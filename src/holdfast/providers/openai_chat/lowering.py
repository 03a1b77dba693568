"""What of a passage can be told in chat completions, and in which order."""

import re
from collections.abc import Iterable
from itertools import groupby

import msgspec

from holdfast.canonical.blocks import (
    Block,
    Image,
    Opaque,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from holdfast.canonical.prompt import Passage
from holdfast.providers.ids import with_fitting_ids
from holdfast.providers.openai_chat.flavour import Flavour
from holdfast.providers.openai_chat.kinds import CALL, MESSAGE, REASONING
from holdfast.providers.openai_chat.parts import plain_image

CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
ERROR = Text("Error:")
IMAGE = Text("[image]")

_MEMBERS, _REASONING, _CONTENT, _CALLS = range(4)


def lower(passage: Passage, flavour: Flavour) -> Passage | None:
    """Thinking is dropped where there is no place for it, images in results and answers are named in text.

    The blocks of a message stand in the order in which it is spelled: reasoning, content, calls.
    """
    told = (_lowered(block, passage.role, flavour) for block in passage.content)
    kept = tuple(block for block in told if block is not None)
    if not kept:
        return None
    return with_fitting_ids(msgspec.structs.replace(passage, content=tuple(_ordered(kept))), CALL_ID)


def _ordered(blocks: Iterable[Block]) -> Iterable[Block]:
    """Results are messages of their own, so what stands between them is ordered for itself."""
    for _, run in groupby(blocks, key=lambda block: isinstance(block, ToolResult)):
        yield from sorted(run, key=place_of)


def place_of(block: Block) -> int:
    """Where in a message a block stands."""
    match block:
        case Opaque(kind=kind) if kind.startswith(MESSAGE):
            return _MEMBERS
        case Thinking() | RedactedThinking():
            return _REASONING
        case Opaque(kind=kind) if kind.startswith(REASONING):
            return _REASONING
        case Opaque(kind=kind) if kind.startswith(CALL):
            return _CALLS
        case ToolUse():
            return _CALLS
        case _:
            return _CONTENT


def is_reasoning(block: Block) -> bool:
    return place_of(block) == _REASONING


def _lowered(block: Block, role: Role, flavour: Flavour) -> Block | None:
    """None for what this role has no place for."""
    match block:
        case Image():
            return plain_image(block) if role == "user" else IMAGE
        case ToolResult():
            return _lowered_result(block) if role == "user" else None
        case _:
            place = place_of(block)
    if place in (_REASONING, _CALLS) and role != "assistant":
        return None
    return None if place == _REASONING and not flavour.keeps_reasoning else block


def _lowered_result(result: ToolResult) -> ToolResult:
    """Only text can be told, and whether a call failed only by it."""
    content = tuple(IMAGE if isinstance(part, Image) else part for part in result.content)
    if result.is_error and content[:1] != (ERROR,):
        content = (ERROR, *content)
    return ToolResult(result.tool_use_id, content or (Text(""),), content[:1] == (ERROR,))
