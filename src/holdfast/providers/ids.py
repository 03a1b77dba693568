"""Rewrites tool call ids that a provider refuses because another provider assigned them."""

import re

import msgspec

from holdfast.canonical.blocks import Block, ToolResult, ToolUse
from holdfast.canonical.encoding import digest
from holdfast.canonical.prompt import Passage

_DIGEST_CHARS = 24  # 96 bits: no two calls of a conversation share an id by chance.


def fitting_id(id: str, legal: re.Pattern[str]) -> str:
    """The id itself if the provider accepts it, else a replacement that depends only on the id."""
    return id if legal.fullmatch(id) else f"call_{digest(id.encode(errors='replace'))[:_DIGEST_CHARS]}"


def with_fitting_ids(entry: Passage, legal: re.Pattern[str]) -> Passage:
    """The entry with an accepted id on every call and every result."""
    content = tuple(_with_fitting_id(block, legal) for block in entry.content)
    unchanged = all(new is old for new, old in zip(content, entry.content, strict=True))
    return entry if unchanged else msgspec.structs.replace(entry, content=content)


def _with_fitting_id(block: Block, legal: re.Pattern[str]) -> Block:
    match block:
        case ToolUse(id=id) if not legal.fullmatch(id):
            return msgspec.structs.replace(block, id=fitting_id(id, legal))
        case ToolResult(tool_use_id=id) if not legal.fullmatch(id):
            return msgspec.structs.replace(block, tool_use_id=fitting_id(id, legal))
        case _:
            return block
