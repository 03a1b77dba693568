"""The view of a conversation after a compaction: a pure function of its history entries and the event."""

from collections.abc import Sequence

import msgspec

from holdfast.canonical.blocks import Block, Text, ToolResult
from holdfast.canonical.prompt import Passage, without_thinking
from holdfast.compaction.groups import RECORD_LAYER, is_record
from holdfast.events.payloads_compaction import ContextCompacted


def compacted(entries: Sequence[Passage], event: ContextCompacted) -> tuple[Passage, ...]:
    """The summary and the kept entries, or for strategy `clear` the same entries with old tool results replaced."""
    if event.strategy == "clear":
        kept = _clear_results(entries, {result.tool_use_id: result.text for result in event.cleared})
    else:
        kept = tuple(entry for entry in entries if entry.number > event.last and not is_record(entry))
    # Providers sign thinking together with the prefix it was made for and reject it behind another one (decision 0014).
    if event.thinking_dropped:
        kept = tuple(remaining for entry in kept if (remaining := without_thinking(entry)) is not None)
    return kept if event.strategy == "clear" else (record_passage(event), *kept)


def compacted_newest(entries: Sequence[Passage], event: ContextCompacted) -> tuple[Passage, ...]:
    """Unsent entries are never covered; only their thinking is dropped if the event says so."""
    return tuple(
        remaining
        for entry in entries
        if (remaining := without_thinking(entry) if event.thinking_dropped else entry) is not None
    )


def told_by_the_user(entries: tuple[Passage, ...]) -> tuple[Passage, ...]:
    """Give the summary the role `user`, for a provider that does not accept system messages in the history."""
    if not entries or not is_record(entries[0]) or entries[0].role != "system":
        return entries
    return (msgspec.structs.replace(entries[0], role="user"), *entries[1:])


def record_passage(event: ContextCompacted) -> Passage:
    return Passage(event.role, tuple(Text(part.text) for part in event.segments), layer=RECORD_LAYER)


def _clear_results(entries: Sequence[Passage], texts: dict[str, str]) -> tuple[Passage, ...]:
    return tuple(_clear_entry(entry, texts) for entry in entries)


def _clear_entry(entry: Passage, texts: dict[str, str]) -> Passage:
    if not any(isinstance(block, ToolResult) and block.tool_use_id in texts for block in entry.content):
        return entry
    return msgspec.structs.replace(entry, content=tuple(_clear_block(block, texts) for block in entry.content))


def _clear_block(block: Block, texts: dict[str, str]) -> Block:
    if not isinstance(block, ToolResult) or block.tool_use_id not in texts:
        return block
    return msgspec.structs.replace(block, content=(Text(texts[block.tool_use_id]),))
