"""Clear tool results: old ones down to a low-water mark, or without loss those whose content is in view again later."""

import re
from collections.abc import Sequence

import msgspec

from holdfast.compaction.models import CompactionConfig
from holdfast.events.payloads.compaction import ClearedImage, ClearedResult
from holdfast.extraction.entities import truncate_words
from holdfast.extraction.tool_calls import interpret_call, is_failed_result, result_text
from holdfast.types.blocks import (
    Image,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    get_result_call_id,
)
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.prompt import HistoryEntry

RESULT_TOKENS_MIN = 200
LOSSLESS_CHARACTERS_MIN = 400
"""A shorter text is hardly longer than the pointer that replaces it."""

TURNS_KEPT = 2
LOW_WATER_SHARE = 0.5
"""A batch clears down to this share of the message tokens; clearing less would cause the next cache miss too soon."""


class ClearingBatch(msgspec.Struct, frozen=True):
    """Tool results and images of user messages that are cleared together, and their first and last message."""

    results: tuple[ClearedResult, ...]
    first: int
    last: int
    images: tuple[ClearedImage, ...] = ()


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
    """Results and images whose whole content is still in view later, each with a pointer to the newest place; None if
    there are none. Only the first `sent` entries are cleared; nothing that a pointer leads to is cleared itself."""
    calls = {block.id: block for entry in entries for block in entry.content if isinstance(block, ToolUse)}
    later = _LaterContent()
    results: list[ClearedResult] = []
    images: list[ClearedImage] = []
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        if entry.ephemeral:
            continue  # It is dropped with its turn.
        here = f"message m{entry.number}"
        for at in range(len(entry.content) - 1, -1, -1):
            match entry.content[at]:
                case ToolUse() as call:
                    later.add_texts(interpret_call(call).texts, f"the arguments of {_target(call)}, {here}")
                case ToolResult() as result:
                    call_made = calls.get(result.tool_use_id)
                    pointer = later.point_to(result, call_made) if index < sent else None
                    if pointer is not None:
                        results.append(ClearedResult(result.tool_use_id, pointer))
                    else:
                        later.add_result(result, call_made, f"the output of {_target(call_made)}, {here}")
                case Image() as image if image in later.images and index < sent:
                    images.append(ClearedImage(entry.number, at, f"[The same image is in {later.images[image]}.]"))
                case Image() as image:
                    later.images.setdefault(image, here)
                case Text(text=text):
                    later.add_texts((text,), here)
                case Thinking() | RedactedThinking() | Opaque():
                    pass
    if not results and not images:
        return None
    ids = {result.tool_use_id for result in results}
    numbers = {image.number for image in images}
    numbers |= {entry.number for entry in entries for block in entry.content if get_result_call_id(block) in ids}
    return ClearingBatch(tuple(reversed(results)), min(numbers), max(numbers), tuple(reversed(images)))


class _LaterContent:
    """What stays in view after the place that is looked at, newest first, each with where it is."""

    def __init__(self) -> None:
        self.images: dict[Image, str] = {}
        self._texts: list[tuple[str, str]] = []
        self._lines: dict[tuple[str, str], list[tuple[list[str], str]]] = {}

    def add_texts(self, texts: Sequence[str], place: str) -> None:
        self._texts += [(text, place) for text in texts]

    def add_result(self, result: ToolResult, call: ToolUse | None, place: str) -> None:
        self.add_texts((result_text(result),), place)
        for block in result.content:
            if isinstance(block, Image):
                self.images.setdefault(block, place)
        if call is not None and (key := _status_key(call)) is not None:
            self._lines.setdefault(key, []).append((_status_lines(result, call), place))

    def point_to(self, result: ToolResult, call: ToolUse | None) -> str | None:
        """The line that replaces a result which is repeated later, or None if a part of it is not."""
        text = result_text(result)
        shown = [block for block in result.content if isinstance(block, Image)]
        if len(text) < LOSSLESS_CHARACTERS_MIN and not shown:
            return None
        if not all(isinstance(block, Text) or block in self.images for block in result.content):
            return None
        places = [place for content, place in self._texts if text in content][:1] if text else []
        if text and not places:
            place = self._find_newer_status(result, call) if not shown else None
            return f"[Every line of this is also in {place}, which is newer.]" if place else None
        places += [self.images[image] for image in shown]
        return f"[The same content is in {' and '.join(dict.fromkeys(places))}.]"

    def _find_newer_status(self, result: ToolResult, call: ToolUse | None) -> str | None:
        """Where the same call returned all lines of this result again, in the same order, with others between."""
        key = _status_key(call) if call is not None else None
        if call is None or key is None:
            return None
        lines = _status_lines(result, call)
        return next((place for newer, place in self._lines.get(key, ()) if _is_subsequence(lines, newer)), None)


# What a task list shows before a task: a number, a bullet, a check box, a status in words.
_STATUS = r"pending|in[_ ]progress|completed|done|open|to[_ ]?do|cancelled"
_TASK_MARK = re.compile(
    rf"^(?:\s|\d+[.)]|[-*+•]|\[[ xX~>-]?\]|[☐☑☒✔✓✅⏳🔄⬜◻◼]|\(?(?:{_STATUS})\)?:?\s)+|\s*\((?:{_STATUS})\)$"
)


def _status_key(call: ToolUse) -> tuple[str, str] | None:
    """What identifies calls of which a newer result supersedes an older one: the same command, or any task list.

    Not reads of a file: how lines of an older version followed one another is not in a newer one.
    """
    kind = interpret_call(call).kind
    if kind == "plan":
        return call.name, ""
    return (call.name, call.arguments_json) if kind in ("run", "search", "other") else None


def _status_lines(result: ToolResult, call: ToolUse) -> list[str]:
    lines = [line.rstrip() for line in result_text(result).splitlines() if line.strip()]
    return [_TASK_MARK.sub("", line) for line in lines] if interpret_call(call).kind == "plan" else lines


def _is_subsequence(lines: Sequence[str], newer: Sequence[str]) -> bool:
    remaining = iter(newer)
    return all(line in remaining for line in lines)


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
