"""What a conversation looks like behind a compaction: a pure function of its passages and the event."""

from collections.abc import Sequence

import msgspec

from holdfast.canonical.blocks import Block, Text, ToolResult
from holdfast.canonical.prompt import Passage, without_thinking
from holdfast.compaction.groups import RECORD_LAYER, is_record
from holdfast.events.payloads_compaction import ContextCompacted


def compacted(passages: Sequence[Passage], it: ContextCompacted) -> tuple[Passage, ...]:
    """The record and what is kept, or the same passages with old outputs replaced; nothing else of them changes."""
    if it.strategy == "clear":
        kept = _cleared(passages, {one.tool_use_id: one.text for one in it.cleared})
    else:
        kept = tuple(one for one in passages if one.number > it.last and not is_record(one))
    if it.thinking_dropped:
        kept = tuple(left for one in kept if (left := without_thinking(one)) is not None)
    return kept if it.strategy == "clear" else (record_passage(it), *kept)


def compacted_newest(passages: Sequence[Passage], it: ContextCompacted) -> tuple[Passage, ...]:
    """What was not sent yet is never covered; its thinking, if it has any, goes with the rest."""
    return tuple(
        left for one in passages if (left := without_thinking(one) if it.thinking_dropped else one) is not None
    )


def told_by_the_user(passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
    """The passages for a provider that may take no message of the system: a record is told as the user's."""
    if not passages or not is_record(passages[0]) or passages[0].role != "system":
        return passages
    return (msgspec.structs.replace(passages[0], role="user"), *passages[1:])


def record_passage(it: ContextCompacted) -> Passage:
    return Passage(it.role, tuple(Text(part.text) for part in it.segments), layer=RECORD_LAYER)


def _cleared(passages: Sequence[Passage], texts: dict[str, str]) -> tuple[Passage, ...]:
    return tuple(_without_outputs(one, texts) for one in passages)


def _without_outputs(passage: Passage, texts: dict[str, str]) -> Passage:
    if not any(isinstance(block, ToolResult) and block.tool_use_id in texts for block in passage.content):
        return passage
    return msgspec.structs.replace(passage, content=tuple(_replaced(block, texts) for block in passage.content))


def _replaced(block: Block, texts: dict[str, str]) -> Block:
    if not isinstance(block, ToolResult) or block.tool_use_id not in texts:
        return block
    return msgspec.structs.replace(block, content=(Text(texts[block.tool_use_id]),))
