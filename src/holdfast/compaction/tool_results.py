"""Clear old tool results: replace them by one line each, oldest first, in one batch down to a low-water mark."""

from collections.abc import Sequence

import msgspec

from holdfast.compaction.models import CompactionConfig
from holdfast.events.payloads.compaction import ClearedResult
from holdfast.extraction.entities import truncate_words
from holdfast.extraction.tool_calls import interpret_call, is_failed_result, result_text
from holdfast.types.blocks import Image, Text, ToolResult, ToolUse
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.prompt import HistoryEntry

RESULT_TOKENS_MIN = 200
LOSSLESS_CHARACTERS_MIN = 400
"""A shorter text is hardly longer than the pointer that replaces it."""

TURNS_KEPT = 2
LOW_WATER_SHARE = 0.5
"""A batch clears down to this share of the message tokens; clearing less would cause the next cache miss too soon."""


class ClearingBatch(msgspec.Struct, frozen=True):
    """Tool results that are cleared together, and their first and last message."""

    results: tuple[ClearedResult, ...]
    first: int
    last: int


def plan_clearing(
    entries: Sequence[HistoryEntry], tokens: Sequence[int], config: CompactionConfig, *, unsent: int
) -> ClearingBatch | None:
    """The oldest results, as many as it takes to reach the low-water mark; None if all of them do not suffice.

    Errors, results of protected tools, the last two turns and unsent messages are never cleared.
    """
    calls = {block.id: block for entry in entries for block in entry.content if isinstance(block, ToolUse)}
    # Clearing changes the prefix from the first cleared result on, so one large batch costs one cache miss, while
    # clearing result by result would cost one each time.
    tokens_to_free = sum(tokens) * (1 - LOW_WATER_SHARE)
    chosen: list[ClearedResult] = []
    freed, first, last = 0, 0, 0
    for index in range(_clearable_end(entries, unsent)):
        for block in entries[index].content:
            if freed >= tokens_to_free or not isinstance(block, ToolResult):
                continue
            size = result_tokens(block, entries[index], tokens[index])
            call = calls.get(block.tool_use_id)
            # An error may still be unresolved, and a short result is hardly longer than the line that replaces it.
            if size < RESULT_TOKENS_MIN or is_failed_result(block) or (call and call.name in config.protected_tools):
                continue
            chosen.append(ClearedResult(block.tool_use_id, describe_cleared_result(block, call, entries[index].number)))
            freed, first, last = freed + size, first or index + 1, index
    if freed < tokens_to_free or not chosen:
        return None
    return ClearingBatch(tuple(chosen), entries[first - 1].number, entries[last].number)


def plan_lossless_clearing(entries: Sequence[HistoryEntry], *, sent: int) -> ClearingBatch | None:
    """Results whose whole content is still in view later, each with a pointer to the newest place; None if there is
    none. Only the first `sent` entries are cleared; nothing that a pointer leads to is cleared itself."""
    calls = {block.id: block for entry in entries for block in entry.content if isinstance(block, ToolUse)}
    later: list[tuple[str, str]] = []  # Texts that stay, newest first, each with where it is.
    images: dict[Image, str] = {}
    chosen: list[ClearedResult] = []
    numbers: list[int] = []
    for index in range(len(entries) - 1, -1, -1):
        if entries[index].ephemeral:
            continue  # It is dropped with its turn.
        for block in reversed(entries[index].content):
            call = calls.get(block.tool_use_id) if isinstance(block, ToolResult) else None
            call = block if isinstance(block, ToolUse) else call
            where = f"{_target(call)}, message m{entries[index].number}"
            if isinstance(block, ToolUse):
                later += [(text, f"the arguments of {where}") for text in interpret_call(block).texts]
                continue
            if isinstance(block, Text):
                later.append((block.text, f"message m{entries[index].number}"))
            if isinstance(block, Image):
                images.setdefault(block, f"message m{entries[index].number}")
            if not isinstance(block, ToolResult):
                continue
            pointer = _pointer(block, later, images) if index < sent else None
            if pointer is not None:
                chosen.append(ClearedResult(block.tool_use_id, pointer))
                numbers.append(entries[index].number)
                continue
            later.append((result_text(block), f"the output of {where}"))
            for image in block.content:
                if isinstance(image, Image):
                    images.setdefault(image, f"the output of {where}")
    if not chosen:
        return None
    return ClearingBatch(tuple(reversed(chosen)), numbers[-1], numbers[0])


def _pointer(result: ToolResult, later: Sequence[tuple[str, str]], images: dict[Image, str]) -> str | None:
    """The line that replaces a result which is repeated later, or None if a part of it is not."""
    text = result_text(result)
    shown = [block for block in result.content if isinstance(block, Image)]
    if len(text) < LOSSLESS_CHARACTERS_MIN and not shown:
        return None
    if not all(isinstance(block, Text) or block in images for block in result.content):
        return None
    places = [place for content, place in later if text in content][:1] if text else []
    if text and not places:
        return None
    places += [images[image] for image in shown]
    return f"[The same content is in {' and '.join(dict.fromkeys(places))}.]"


def _clearable_end(entries: Sequence[HistoryEntry], unsent: int) -> int:
    """The index at which the last two turns or the unsent messages start, whichever is first."""
    turn_starts = [
        index
        for index, entry in enumerate(entries)
        if entry.role == "user" and not entry.is_injected and any(isinstance(block, Text) for block in entry.content)
    ]
    return min(unsent, turn_starts[-TURNS_KEPT] if len(turn_starts) >= TURNS_KEPT else 0)


def result_tokens(result: ToolResult, entry: HistoryEntry, tokens: int) -> int:
    """One result's share of its message's tokens, in proportion to text length."""
    lengths = [len(result_text(block)) for block in entry.content if isinstance(block, ToolResult)]
    return round(tokens * len(result_text(result)) / max(1, sum(lengths)))


def describe_cleared_result(result: ToolResult, call: ToolUse | None, number: int) -> str:
    text = result_text(result)
    what = _target(call)
    sha = sha256_hex(text.encode("utf-8", "surrogatepass"))[:8]
    return f"[The output of {what} was cleared: {len(text)} characters, sha:{sha}, message m{number}.]"


def _target(call: ToolUse | None) -> str:
    """What a call was about, in one line."""
    action = interpret_call(call) if call else None
    return truncate_words(
        f"{action.tool} {action.path or action.command or action.pattern}" if action else "a tool", 160
    )
