"""Rewrites tool call ids that a provider refuses because another provider assigned them."""

import re

import msgspec

from holdfast.types.blocks import Block, ToolResult, ToolUse
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.prompt import HistoryEntry

_DIGEST_CHARS = 24  # 96 bits: no two calls of a conversation share an id by chance.


def fit_call_id(id: str, legal: re.Pattern[str]) -> str:
    """The id itself if the provider accepts it, else a replacement that depends only on the id."""
    return id if legal.fullmatch(id) else f"call_{sha256_hex(id.encode(errors='replace'))[:_DIGEST_CHARS]}"


def fit_call_ids(entry: HistoryEntry, legal: re.Pattern[str]) -> HistoryEntry:
    """The entry with an accepted id on every call and every result."""
    content = tuple(_with_fitting_id(block, legal) for block in entry.content)
    unchanged = all(new is old for new, old in zip(content, entry.content, strict=True))
    return entry if unchanged else msgspec.structs.replace(entry, content=content)


def _with_fitting_id(block: Block, legal: re.Pattern[str]) -> Block:
    match block:
        case ToolUse(id=id) if not legal.fullmatch(id):
            return msgspec.structs.replace(block, id=fit_call_id(id, legal))
        case ToolResult(tool_use_id=id) if not legal.fullmatch(id):
            return msgspec.structs.replace(block, tool_use_id=fit_call_id(id, legal))
        case _:
            return block
