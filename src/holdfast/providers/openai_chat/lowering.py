"""Reduces a history entry to what Chat Completions can represent, in wire order."""

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

# The order of a message's members; encoding must not depend on the order in which blocks arrived.
_MEMBERS, _REASONING, _CONTENT, _CALLS = range(4)


def lower(entry: Passage, flavour: Flavour) -> Passage | None:
    """Thinking is dropped if the API cannot carry it; images in results and assistant messages become text.

    The blocks of a message are sorted into the order in which it is encoded: reasoning, content, calls.
    """
    lowered = (_lower_block(block, entry.role, flavour) for block in entry.content)
    blocks = tuple(block for block in lowered if block is not None)
    if not blocks:
        return None
    return with_fitting_ids(msgspec.structs.replace(entry, content=tuple(_in_wire_order(blocks))), CALL_ID)


def _in_wire_order(blocks: Iterable[Block]) -> Iterable[Block]:
    """Results are messages of their own, so each run of blocks between them is sorted separately."""
    for _, run in groupby(blocks, key=lambda block: isinstance(block, ToolResult)):
        yield from sorted(run, key=place_of)


def place_of(block: Block) -> int:
    """The position of a block's member in an encoded message."""
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


def _lower_block(block: Block, role: Role, flavour: Flavour) -> Block | None:
    """None for a block that a message of this role cannot have."""
    match block:
        case Image():
            return plain_image(block) if role == "user" else IMAGE
        case ToolResult():
            return _lower_result(block) if role == "user" else None
        case _:
            member = place_of(block)
    if member in (_REASONING, _CALLS) and role != "assistant":
        return None
    return None if member == _REASONING and not flavour.keeps_reasoning else block


def _lower_result(result: ToolResult) -> ToolResult:
    """A result holds text only, so that a failed call is marked by a leading error text."""
    content = tuple(IMAGE if isinstance(part, Image) else part for part in result.content)
    if result.is_error and content[:1] != (ERROR,):
        content = (ERROR, *content)
    return ToolResult(result.tool_use_id, content or (Text(""),), content[:1] == (ERROR,))
