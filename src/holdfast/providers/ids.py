"""Ids of tool calls: a provider may refuse those that another one gave."""

import re

import msgspec

from holdfast.canonical.blocks import Block, ToolResult, ToolUse
from holdfast.canonical.encoding import digest
from holdfast.canonical.prompt import Passage

_DIGEST_CHARS = 24


def fitting_id(id: str, legal: re.Pattern[str]) -> str:
    """The id itself if the provider takes it; else one that always stands for it."""
    return id if legal.fullmatch(id) else f"call_{digest(id.encode(errors='replace'))[:_DIGEST_CHARS]}"


def with_fitting_ids(passage: Passage, legal: re.Pattern[str]) -> Passage:
    """The passage with every call, and every result, under an id that the provider takes."""
    content = tuple(_fitted(block, legal) for block in passage.content)
    same = all(new is old for new, old in zip(content, passage.content, strict=True))
    return passage if same else msgspec.structs.replace(passage, content=content)


def _fitted(block: Block, legal: re.Pattern[str]) -> Block:
    match block:
        case ToolUse(id=id) if not legal.fullmatch(id):
            return msgspec.structs.replace(block, id=fitting_id(id, legal))
        case ToolResult(tool_use_id=id) if not legal.fullmatch(id):
            return msgspec.structs.replace(block, tool_use_id=fitting_id(id, legal))
        case _:
            return block
