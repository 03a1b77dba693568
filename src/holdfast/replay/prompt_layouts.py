"""How some agents rearrange a conversation before they send it: same conversation, other prompts."""

from collections.abc import Callable, Mapping

import msgspec

from holdfast.replay.recording import RecordedCall, Recording
from holdfast.types.blocks import Block, Text, ToolResult
from holdfast.types.prompt import HistoryEntry

# LangChain's context editing middleware: its placeholder, trigger and number of kept results.
CLEARED_TEXT = "[cleared]"
CLEARING_CHARACTERS_MIN = 400_000
"""Clearing starts at 100,000 tokens, estimated at four characters per token."""

RESULTS_KEPT = 3
Layout = Callable[[Recording], Recording]
VolatileTexts = Callable[[int], tuple[str, ...]]
"""Returns the volatile texts of turn 1, 2, ...: one text per layer, the same layers in every turn."""


def render_turn_line(turn: int) -> tuple[str, ...]:
    return (f"Now it is turn {turn} of this session, on branch main; {turn} files have been changed since it began.",)


def append_volatile_to_system(recording: Recording, texts_of: VolatileTexts = render_turn_line) -> Recording:
    """Volatile text at the end of the system prompt, so that the system prompt changes with every user message."""
    calls = []
    turns = 0
    for call in recording.calls:
        turns += call.waited_for != "tool"
        calls.append(msgspec.structs.replace(call, system_suffix="\n".join(texts_of(turns))))
    return msgspec.structs.replace(recording, calls=tuple(calls))


def clear_old_results(recording: Recording) -> Recording:
    """From 100,000 tokens on, every request clears all tool results but the last three."""
    history: list[HistoryEntry] = []
    sent: list[HistoryEntry] = []
    cleared_entries: dict[HistoryEntry, HistoryEntry] = {}
    calls: list[RecordedCall] = []
    for call in recording.calls:
        if call.kept_entries is not None:
            del history[call.kept_entries :]
        history += call.added
        current = list(history)
        if sum(map(_count_characters, history)) > CLEARING_CHARACTERS_MIN:
            current = _clear_results(history, cleared_entries)
        pairs = enumerate(zip(sent, current, strict=False))
        shared = next((at for at, (old, new) in pairs if old is not new), len(sent))
        kept = None if shared == len(sent) and len(current) >= shared else shared
        calls.append(msgspec.structs.replace(call, added=tuple(current[shared:]), kept_entries=kept))
        reply = [call.reply] if call.reply is not None else []
        sent = current + reply
        history += reply
    return msgspec.structs.replace(recording, calls=tuple(calls))


LAYOUTS: Mapping[str, Layout] = {"metis": append_volatile_to_system, "langchain-clearing": clear_old_results}
"""Keyed by the name of the policy that uses the layout."""


def _clear_results(
    history: list[HistoryEntry], cleared_entries: dict[HistoryEntry, HistoryEntry]
) -> list[HistoryEntry]:
    results = sum(isinstance(block, ToolResult) for entry in history for block in entry.content)
    to_clear = results - RESULTS_KEPT
    current = []
    for entry in history:
        count = sum(isinstance(block, ToolResult) for block in entry.content)
        if count and count <= to_clear:
            if entry not in cleared_entries:
                cleared_entries[entry] = msgspec.structs.replace(entry, content=tuple(map(_clear_block, entry.content)))
            current.append(cleared_entries[entry])
        else:
            current.append(entry)
        to_clear -= count
    return current


def _clear_block(block: Block) -> Block:
    if not isinstance(block, ToolResult):
        return block
    return ToolResult(block.tool_use_id, (Text(CLEARED_TEXT),), block.is_error)


def _count_characters(entry: HistoryEntry) -> int:
    total = 0
    for block in entry.content:
        if isinstance(block, Text):
            total += len(block.text)
        elif isinstance(block, ToolResult):
            total += sum(len(part.text) for part in block.content if isinstance(part, Text))
    return total
